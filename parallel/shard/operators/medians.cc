// Median of a whole tensor, without gathering it. Elements have keys, integers in the same order.
// The median's key is found byte by byte: ranks count how many of the keys that are still possible
// have which byte, and add up the counts.
#include <limits>

#include "ATen/Functions.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/equal_elements.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/reduced.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBitsOfAByte = 8;
constexpr int64_t kBytes = 256;

// Signed integers with the bits of elements of a type; the type itself where it is integral.
struct KeyType {
  explicit KeyType(at::ScalarType elements) : type(elements), bits(elements) {
    switch (elements) {
      case at::kDouble:
        bits = at::kLong;
        break;
      case at::kFloat:
        bits = at::kInt;
        break;
      case at::kHalf:
      case at::kBFloat16:
        bits = at::kShort;
        break;
      case at::kLong:
      case at::kInt:
      case at::kShort:
      case at::kChar:
      case at::kByte:
        break;
      default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "median of a sharded tensor of ", elements);
    }
  }

  int64_t width() const { return static_cast<int64_t>(c10::elementSize(type)) * kBitsOfAByte; }
  // Bits of negative floating-point numbers are in the opposite order. Its own inverse.
  at::Tensor ordered(const at::Tensor& numbers) const {
    if (!at::isFloatingType(type)) return numbers;
    const auto below_sign = static_cast<int64_t>((uint64_t{1} << (width() - 1)) - 1);
    return numbers.bitwise_xor(
        at::bitwise_right_shift(numbers, at::Scalar(63)).bitwise_and(at::Scalar(below_sign)));
  }
  // int64, of the type's range; that of bytes begins at -128, too.
  at::Tensor keys_of(const at::Tensor& elements) const {
    const at::Tensor numbers = elements.view(bits).to(at::kLong);
    return type == at::kByte ? numbers - kBytes / 2 : ordered(numbers);
  }
  at::Tensor element_of(int64_t key, const at::Tensor& like) const {
    if (type == at::kByte) key += kBytes / 2;
    return ordered(at::full({}, key, at::kLong)).to(bits).view(type).to(like.device());
  }

  at::ScalarType type;
  at::ScalarType bits;
};

int64_t number_of(const at::Tensor& count) { return count.item<int64_t>(); }

// The key at `place`, from 0, in the order of the keys of all ranks along the axes.
int64_t key_at(int64_t place, at::Tensor keys, int64_t width, const ShardMesh& mesh,
               const std::vector<int64_t>& axes) {
  int64_t key = 0;
  for (int64_t shift = width - kBitsOfAByte; shift >= 0; shift -= kBitsOfAByte) {
    const bool has_sign = shift == width - kBitsOfAByte;
    at::Tensor bytes = at::bitwise_right_shift(keys, at::Scalar(shift));
    bytes = has_sign ? bytes + kBytes / 2 : bytes.bitwise_and(at::Scalar(kBytes - 1));
    const at::Tensor ends = sum_over(at::bincount(bytes, {}, kBytes), mesh, axes).cpu().cumsum(0);
    const auto* end = ends.const_data_ptr<int64_t>();
    int64_t byte = 0;
    while (byte + 1 < kBytes && end[byte] <= place) ++byte;
    if (byte > 0) place -= end[byte - 1];
    key = has_sign ? byte - kBytes / 2 : key * kBytes + byte;
    keys = keys.masked_select(bytes == byte);
  }
  return key;
}

at::Tensor median_of(const at::Tensor& local, const SpecPtr& spec, const std::vector<int64_t>& axes,
                     bool ignores_nan) {
  const KeyType type(local.scalar_type());
  at::Tensor elements = local.reshape({-1});
  int64_t count = c10::multiply_integers(spec->global_shape());
  if (at::isFloatingType(type.type)) {
    const at::Tensor is_nan = elements.isnan();
    const int64_t nans = number_of(sum_over(is_nan.sum().reshape({1}), *spec->mesh(), axes));
    if (nans == count || (nans > 0 && !ignores_nan)) {
      return at::full({}, std::numeric_limits<double>::quiet_NaN(), local.options());
    }
    if (nans > 0) elements = elements.masked_select(is_nan.logical_not());
    count -= nans;
  }
  const int64_t key =
      key_at((count - 1) / 2, type.keys_of(elements), type.width(), *spec->mesh(), axes);
  return type.element_of(key, local);
}

struct Median : torch::autograd::Function<Median> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const SpecPtr& spec,
                            const std::vector<int64_t>& axes, bool ignores_nan) {
    const at::Tensor value = median_of(local, spec, axes, ignores_nan);
    ctx->save_for_backward({local, value});
    ctx->saved_data.emplace("spec", c10::IValue::make_capsule(spec));
    return value;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto spec =
        c10::static_intrusive_pointer_cast<ShardTensorSpec>(ctx->saved_data.at("spec").toCapsule());
    return {shared_among_equal(gradients[0], saved[0], saved[1], spec,
                               reduced_dims({}, saved[0].dim())),
            {},
            {},
            {}};
  }
};

template <bool IgnoresNaN>
at::Tensor median_of_all(const at::Tensor& self) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const std::vector<int64_t> dims = reduced_dims({}, input.dim());
  const std::vector<int64_t> axes = axes_that_cut(*spec, dims);
  const SpecPtr result = reduced_spec(spec, dims, /*keepdim=*/false, Replicate());
  const at::Tensor local = to_local(input);
  if (axes.empty() || self.numel() == 0) {
    return from_local(IgnoresNaN ? at::nanmedian(local) : at::median(local), result);
  }
  return from_local(Median::apply(local, spec, axes, IgnoresNaN), result);
}

const Movement kMedian = {
    "any Shard, Replicate",
    "a Partial is reduced; where the tensor is cut, 256 counts for each byte of its dtype and, of "
    "floating-point numbers, the count of NaNs, all-reduced",
    "the number of equal elements"};

const bool kRegistered = OperatorFamily("reductions")
                             .above_autograd("aten::median", &median_of_all<false>, kMedian)
                             .above_autograd("aten::nanmedian", &median_of_all<true>, kMedian)
                             .registered();

}  // namespace
}  // namespace meshrun
