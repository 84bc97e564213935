// Random numbers for sharded tensors: functions of the seed, the operation and the index in the
// global tensor (random/counter_random.h). Ranks that hold the same elements get the same numbers,
// others independent ones, and every mesh and sharding gives the same global tensor. Where a tensor
// is Partial, what is filled in becomes Replicate: it is a value, not a summand.
#include <limits>
#include <optional>
#include <string>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/add.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/mul.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/random_box.h"
#include "parallel/shard/random/counter_random.h"

namespace meshrun {
namespace {

using at::Tensor;
using Gen = std::optional<at::Generator>;

// Fills the local part in place.
template <typename Fill>
Tensor& fill_in_place(Tensor& self, const Gen& generator, const Fill& fill) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = gradient_spec(spec_of(self));
  if (same(spec, spec_of(self))) {
    draw(local_of(self), spec, generator, fill);
    return self;
  }
  // A Partial stays one, since views of it share its memory: one rank takes the values.
  const Tensor values = at::empty_like(local_of(self), at::MemoryFormat::Contiguous);
  draw(values, spec, generator, fill);
  write_back(self, values, spec);
  return self;
}

Tensor& uniform_(Tensor& self, double from, double to, Gen generator) {
  return fill_in_place(self, generator, [=](const auto&... x) { fill_uniform(x..., from, to); });
}
Tensor& normal_(Tensor& self, double mean, double std, Gen generator) {
  return fill_in_place(self, generator, [=](const auto&... x) { fill_normal(x..., mean, std); });
}
Tensor& bernoulli_(Tensor& self, double p, Gen generator) {
  return fill_in_place(self, generator, [=](const auto&... x) { fill_bernoulli(x..., p); });
}
Tensor& exponential_(Tensor& self, double lambda, Gen generator) {
  return fill_in_place(self, generator, [=](const auto&... x) { fill_exponential(x..., lambda); });
}
Tensor& geometric_(Tensor& self, double p, Gen generator) {
  return fill_in_place(self, generator, [=](const auto&... x) { fill_geometric(x..., p); });
}
Tensor& cauchy_(Tensor& self, double median, double sigma, Gen generator) {
  return fill_in_place(self, generator,
                       [=](const auto&... x) { fill_cauchy(x..., median, sigma); });
}
Tensor& log_normal_(Tensor& self, double mean, double std, Gen generator) {
  return fill_in_place(self, generator,
                       [=](const auto&... x) { fill_log_normal(x..., mean, std); });
}

// The largest number that random_() gives: all integers up to it have a value of their own.
uint64_t largest_integer(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return uint64_t{1} << 53;
    case at::kFloat:
      return uint64_t{1} << 24;
    case at::kHalf:
      return uint64_t{1} << 11;
    case at::kBFloat16:
      return uint64_t{1} << 8;
    case at::kBool:
      return 1;
    case at::kByte:
      return std::numeric_limits<uint8_t>::max();
    case at::kChar:
      return std::numeric_limits<int8_t>::max();
    case at::kShort:
      return std::numeric_limits<int16_t>::max();
    case at::kInt:
      return std::numeric_limits<int32_t>::max();
    default:
      return std::numeric_limits<int64_t>::max();
  }
}

Tensor& integers_(Tensor& self, int64_t from, uint64_t range, const Gen& generator) {
  return fill_in_place(self, generator,
                       [=](const auto&... x) { fill_integers(x..., from, range); });
}

// How many integers there are in [from, to); raises where there is none.
uint64_t range_of(int64_t from, int64_t to) {
  TORCH_CHECK(from < to, "random_ expects 'from' to be less than 'to', but got from=", from,
              " >= to=", to);
  return static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
}

Tensor& random_(Tensor& self, Gen generator) {
  return integers_(self, 0, largest_integer(self.scalar_type()) + 1, generator);
}
Tensor& random_to_(Tensor& self, int64_t to, Gen generator) {
  return integers_(self, 0, range_of(0, to), generator);
}
Tensor& random_from_(Tensor& self, int64_t from, std::optional<int64_t> to, Gen generator) {
  const uint64_t range = to ? range_of(from, *to)
                            : largest_integer(self.scalar_type()) - static_cast<uint64_t>(from) + 1;
  return integers_(self, from, range, generator);
}

// New tensors, filled.

using Dtype = std::optional<at::ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OnDevice = std::optional<at::Device>;
using Pin = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;

template <typename Fill>
Tensor filled_like(const Tensor& self, const Gen& generator, const at::TensorOptions& options,
                   Format format, const Fill& fill) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = gradient_spec(spec_of(self));
  const Tensor local = at::empty_like(local_of(self), options, format);
  draw(local, spec, generator, fill);
  return wrap(local, spec);
}

at::TensorOptions options_of(Dtype dtype, OptionalLayout layout, OnDevice device, Pin pin) {
  return at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pin);
}

constexpr auto kUniform = [](const auto&... x) { fill_uniform(x...); };
constexpr auto kNormal = [](const auto&... x) { fill_normal(x...); };

Tensor rand_like(const Tensor& self, Dtype dtype, OptionalLayout layout, OnDevice device, Pin pin,
                 Format format) {
  return filled_like(self, {}, options_of(dtype, layout, device, pin), format, kUniform);
}
Tensor rand_like_from(const Tensor& self, Gen generator, Dtype dtype, OptionalLayout layout,
                      OnDevice device, Pin pin, Format format) {
  return filled_like(self, generator, options_of(dtype, layout, device, pin), format, kUniform);
}
Tensor randn_like(const Tensor& self, Dtype dtype, OptionalLayout layout, OnDevice device, Pin pin,
                  Format format) {
  return filled_like(self, {}, options_of(dtype, layout, device, pin), format, kNormal);
}
Tensor randn_like_from(const Tensor& self, Gen generator, Dtype dtype, OptionalLayout layout,
                       OnDevice device, Pin pin, Format format) {
  return filled_like(self, generator, options_of(dtype, layout, device, pin), format, kNormal);
}

Tensor integers_like(const Tensor& self, int64_t low, int64_t high, const Gen& generator,
                     const at::TensorOptions& options, Format format) {
  const uint64_t range = range_of(low, high);
  return filled_like(self, generator, options, format,
                     [=](const auto&... x) { fill_integers(x..., low, range); });
}
Tensor randint_like(const Tensor& self, int64_t high, Dtype dtype, OptionalLayout layout,
                    OnDevice device, Pin pin, Format format) {
  return integers_like(self, 0, high, {}, options_of(dtype, layout, device, pin), format);
}
Tensor randint_like_from(const Tensor& self, int64_t high, Gen generator, Dtype dtype,
                         OptionalLayout layout, OnDevice device, Pin pin, Format format) {
  return integers_like(self, 0, high, generator, options_of(dtype, layout, device, pin), format);
}
Tensor randint_low_like(const Tensor& self, int64_t low, int64_t high, Dtype dtype,
                        OptionalLayout layout, OnDevice device, Pin pin, Format format) {
  return integers_like(self, low, high, {}, options_of(dtype, layout, device, pin), format);
}
Tensor randint_low_like_from(const Tensor& self, int64_t low, int64_t high, Gen generator,
                             Dtype dtype, OptionalLayout layout, OnDevice device, Pin pin,
                             Format format) {
  return integers_like(self, low, high, generator, options_of(dtype, layout, device, pin), format);
}

// As the out= forms draw: in the dtype of the tensor.
Tensor rand_as(const Tensor& self, Format format) {
  return filled_like(self, {}, {}, format, kUniform);
}
Tensor randn_as(const Tensor& self, Format format) {
  return filled_like(self, {}, {}, format, kNormal);
}
Tensor randint_as(const Tensor& self, int64_t high, Format format) {
  return integers_like(self, 0, high, {}, {}, format);
}
Tensor randint_low_as(const Tensor& self, int64_t low, int64_t high, Format format) {
  return integers_like(self, low, high, {}, {}, format);
}

// Probabilities, means and deviations per element.

// The part of `tensor` that broadcasts to a tensor of layout `spec`.
Tensor part_for(const Tensor& tensor, const SpecPtr& spec) {
  const SpecPtr whole = replicated_spec(spec->mesh(), tensor.sizes());
  if (is_shard_tensor(tensor)) {
    if (tensor.sizes() == at::IntArrayRef(spec->global_shape())) {
      return redistribute_local(local_of(tensor), spec_of(tensor), spec);
    }
    return part_for(redistribute_local(local_of(tensor), spec_of(tensor), whole), spec);
  }
  const SpecPtr from = replicated_spec(spec->mesh(), spec->global_shape());
  return redistribute_local(tensor.expand(spec->global_shape()), from, spec);
}

// Their numbers come from values that a traced program has later.
void refuse_traced_probabilities(const Tensor& self) {
  if (is_compiling() || is_traced(local_of(self)))
    throw NotTraceableError("random numbers with probabilities that are tensors");
}

Tensor& bernoulli_tensor_(Tensor& self, const Tensor& p, Gen generator) {
  refuse_traced_probabilities(self);
  const SpecPtr spec = gradient_spec(spec_of(self));
  return fill_in_place(self, generator, [&](const Tensor& local, const auto&... x) {
    fill_bernoulli(local, x..., part_for(p, spec).to(at::kDouble));
  });
}
Tensor bernoulli(const Tensor& self, Gen generator) {
  refuse_traced_probabilities(self);
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = gradient_spec(spec_of(self));
  return filled_like(self, generator, {}, {}, [&](const Tensor& local, const auto&... x) {
    fill_bernoulli(local, x..., part_for(self, spec));
  });
}
Tensor bernoulli_p(const Tensor& self, double p, Gen generator) {
  return filled_like(self, generator, {}, {}, [=](const auto&... x) { fill_bernoulli(x..., p); });
}

// Where only the deviations are sharded, `like` is they.
Tensor standard_normal(const Tensor& like, const Gen& generator) {
  return filled_like(like, generator, {}, {}, kNormal);
}
Tensor normal_means(const Tensor& mean, double std, Gen generator) {
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::add(mean, standard_normal(mean, generator), std);
}
void check_deviations(const Tensor& std) {
  TORCH_CHECK(!std.is_complex(), "normal expects standard deviation to be non-complex");
}
Tensor normal_deviations(double mean, const Tensor& std, Gen generator) {
  check_deviations(std);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return at::add(at::mul(standard_normal(std, generator), std), mean);
}
Tensor normal_both(const Tensor& mean, const Tensor& std, Gen generator) {
  check_deviations(std);
  const at::AutoDispatchBelowADInplaceOrView guard;
  // The sum has the shape that both broadcast to; its zeros carry the layout.
  const Tensor zeros = at::mul(at::add(mean, std), 0);
  return at::add(at::mul(standard_normal(zeros, generator), std), mean);
}

// Each rank would draw other numbers for what all of them hold.
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  throw MissingShardRuleError(fmt::format(
      "{} draws random numbers and has no rule for sharded tensors: call it on to_local(), on one "
      "rank",
      c10::toString(op.operator_name())));
}

const Movement kFill = {"any; Replicate where it was Partial, which stays in place", "nothing", ""};
const Movement kPerElement = {"any", "parameters sharded otherwise move", "nothing"};
const bool kRegistered =
    OperatorFamily("random numbers")
        .below_autograd("aten::uniform_", &uniform_, kFill)
        .below_autograd("aten::normal_", &normal_, kFill)
        .below_autograd("aten::bernoulli_.float", &bernoulli_, kFill)
        .below_autograd("aten::exponential_", &exponential_, kFill)
        .below_autograd("aten::geometric_", &geometric_, kFill)
        .below_autograd("aten::cauchy_", &cauchy_, kFill)
        .below_autograd("aten::log_normal_", &log_normal_, kFill)
        .below_autograd("aten::random_", &random_, kFill)
        .below_autograd("aten::random_.to", &random_to_, kFill)
        .below_autograd("aten::random_.from", &random_from_, kFill)
        .below_autograd("aten::rand_like", &rand_like, kFill)
        .below_autograd("aten::rand_like.generator", &rand_like_from, kFill)
        .below_autograd("aten::randn_like", &randn_like, kFill)
        .below_autograd("aten::randn_like.generator", &randn_like_from, kFill)
        .below_autograd("aten::randint_like", &randint_like, kFill)
        .below_autograd("aten::randint_like.generator", &randint_like_from, kFill)
        .below_autograd("aten::randint_like.low_dtype", &randint_low_like, kFill)
        .below_autograd("aten::randint_like.low_generator_dtype", &randint_low_like_from, kFill)
        .below_autograd("aten::rand_like.out", &Into<&rand_as>::call, kFill)
        .below_autograd("aten::randn_like.out", &Into<&randn_as>::call, kFill)
        .below_autograd("aten::randint_like.out", &Into<&randint_as>::call, kFill)
        .below_autograd("aten::randint_like.low_dtype_out", &Into<&randint_low_as>::call, kFill)
        .below_autograd("aten::bernoulli.out", &Into<&bernoulli>::call, kPerElement)
        .below_autograd("aten::normal.Tensor_float_out", &Into<&normal_means>::call, kPerElement)
        .below_autograd("aten::normal.float_Tensor_out", &Into<&normal_deviations>::call,
                        kPerElement)
        .below_autograd("aten::normal.Tensor_Tensor_out", &Into<&normal_both>::call, kPerElement)
        .below_autograd("aten::bernoulli_.Tensor", &bernoulli_tensor_, kPerElement)
        .below_autograd("aten::bernoulli", &bernoulli, kPerElement)
        .below_autograd("aten::bernoulli.p", &bernoulli_p, kFill)
        .below_autograd("aten::normal.Tensor_float", &normal_means, kPerElement)
        .below_autograd("aten::normal.float_Tensor", &normal_deviations, kPerElement)
        .below_autograd("aten::normal.Tensor_Tensor", &normal_both, kPerElement)
        .registered();

// operators whose numbers no rank could agree on
const char* const kRefused[] = {"aten::poisson",           "aten::binomial",
                                "aten::multinomial",       "aten::_standard_gamma",
                                "aten::_sample_dirichlet", "aten::_fused_dropout"};

const bool kRefusedAreRegistered = [] {
  for (const char* name : kRefused) {
    register_operator({"random numbers",
                       name,
                       HandlerLevel::kBelowAutograd,
                       {"none: MissingShardRuleError", "", ""}},
                      torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
  return true;
}();

}  // namespace
}  // namespace meshrun
