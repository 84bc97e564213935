#include "parallel/collectives/exchange.h"

#include <numeric>
#include <string_view>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "c10/util/DimVector.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/sharded_key.h"
#include "parallel/collectives/output_memory.h"
#include "parallel/collectives/split.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

thread_local const char* called_as = nullptr;

// The name that the caller knows, beside what the call says already.
void add_name(VCall& call) {
  if (called_as == nullptr) return;
  if (!call.problem.empty()) call.problem += fmt::format(" ({})", called_as);
  if (!call.details) {
    call.details = [name = called_as] { return fmt::format(" ({})", name); };
  } else {
    call.details = [name = called_as, details = std::move(call.details)] {
      return fmt::format(" ({}){}", name, details());
    };
  }
}

void agree(VCall& call, const Exchange& exchange) {
  if (exchange.agreed != 0) {
    call.agreed = exchange.agreed;
    call.details = [words = exchange.words] { return words; };
  }
  add_name(call);
}

// How large the equal pieces of rank src's tensor are, told by src to all. A scatter itself, so
// that what is wrong on any rank is heard by all, as ever.
int64_t tell_extent(const at::Tensor& tensor, const Exchange& exchange, int64_t extent) {
  const auto device = device_of(tensor, *exchange.group);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor told = at::empty({1}, options);
  const at::Tensor all =
      exchange.is_root() ? at::full({exchange.world}, extent, options) : at::Tensor();
  const Extents ones(static_cast<size_t>(exchange.world), 1);
  VCall call = make_call(exchange.problem, {});
  finish(VCollectivesOf(exchange.group, device)
             ->scatter_v(told, all, ones, 0, exchange.root, std::move(call)),
         exchange.problem, {});
  return told.item<int64_t>();
}

std::string words_of(const Exchange& exchange, bool reversed) {
  if (!exchange.words.empty()) return exchange.words;
  const std::string sides[] = {
      fmt::format("dim {} {}", exchange.dim, to_words(exchange.sizes)),
      fmt::format("dim {} {}", exchange.other_dim, to_words(exchange.other_sizes))};
  return fmt::format(" (transpose of {} and {})", sides[reversed], sides[!reversed]);
}

// `tensor` may be undefined, which is a problem.
ExchangePtr make_exchange(Role role, const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                          const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(group);
  exchange->problem = tensor_problem(tensor);
  if (!exchange->problem.empty()) return exchange;
  Pieces pieces = cut(role, sizes, tensor.sizes(), dim, exchange->rank, exchange->world);
  if (!pieces.problem.empty()) exchange->problem = std::move(pieces.problem);
  exchange->dim = pieces.dim;
  exchange->sizes = std::move(pieces.extents);
  return exchange;
}

// `name`: of the argument.
void set_root(Exchange& exchange, std::string_view name, int64_t root) {
  std::string problem = check_rank(name, root, exchange.world);
  if (problem.empty()) {
    exchange.root = static_cast<int>(root);
  } else if (exchange.problem.empty()) {
    exchange.problem = std::move(problem);
  }
}

}  // namespace

CalledAs::CalledAs(const char* name) : before_(std::exchange(called_as, name)) {}
CalledAs::~CalledAs() { called_as = before_; }

const char* tensor_problem(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  return is_sharded(tensor) ? kTakesLocalTensors : "";
}

int64_t Exchange::total() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

at::Tensor empty_with_extent(const at::Tensor& tensor, int64_t dim, int64_t extent) {
  at::DimVector shape(tensor.sizes());
  shape[static_cast<size_t>(dim)] = extent;
  return empty_output(shape, tensor.options());
}

VCall make_call(const std::string& problem, const CallForm& form) {
  VCall call;
  if (!problem.empty()) call.problem = problem;
  call.requires_grad = form.requires_grad;
  call.async = form.work != nullptr;
  return call;
}

void finish(WorkPtr work, const std::string& problem, const CallForm& form) {
  if (form.work != nullptr) {
    *form.work = std::move(work);
    return;
  }
  work->wait();
  if (!problem.empty()) throw CollectiveArgumentError(problem);
}

void agree_on_transpose(Exchange& exchange, uint64_t also) {
  std::vector<int64_t> values = {exchange.dim, exchange.other_dim, static_cast<int64_t>(also)};
  values.insert(values.end(), exchange.sizes.begin(), exchange.sizes.end());
  values.insert(values.end(), exchange.other_sizes.begin(), exchange.other_sizes.end());
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(int64_t));
  exchange.agreed = Fingerprint(bytes) | 1;  // 0: nothing to compare
}

Extents tell_extents(const at::Tensor& tensor, const Exchange& exchange, int64_t extent) {
  const auto device = device_of(tensor, *exchange.group);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor own = at::full({1}, extent, options);
  const at::Tensor all = at::empty({exchange.world}, options);
  const Extents ones(static_cast<size_t>(exchange.world), 1);
  VCall call = make_call(exchange.problem, {});
  finish(VCollectivesOf(exchange.group, device)->all_gather_v(all, own, ones, 0, std::move(call)),
         exchange.problem, {});
  const at::Tensor here = all.cpu();
  const int64_t* const extents = here.const_data_ptr<int64_t>();
  return {extents, extents + exchange.world};
}

ExchangePtr make_exchange(const GroupArgument& group) {
  auto exchange = c10::make_intrusive<Exchange>();
  exchange->group = group.get();
  exchange->rank = exchange->group->getRank();
  exchange->world = exchange->group->getSize();
  return exchange;
}

ExchangePtr make_all_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                            bool use_fp32, const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(Role::kPiece, tensor, sizes, dim, group);
  exchange->use_fp32 = use_fp32;
  return exchange;
}

ExchangePtr make_reduce_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                                bool use_fp32, const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(Role::kWhole, tensor, sizes, dim, group);
  exchange->use_fp32 = use_fp32;
  return exchange;
}

ExchangePtr make_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                        const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(Role::kPiece, tensor, sizes, dim, group);
  set_root(*exchange, "dst", dst);
  return exchange;
}

ExchangePtr make_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t src,
                         const GroupArgument& group) {
  if (!sizes.is_absent()) {
    const auto resolved = group.get();
    const Role role = resolved->getRank() == src ? Role::kWhole : Role::kTemplate;
    ExchangePtr exchange = make_exchange(role, tensor, sizes, dim, resolved);
    set_root(*exchange, "src", src);
    return exchange;
  }
  ExchangePtr exchange = make_exchange(group);
  set_root(*exchange, "src", src);
  if (exchange->problem.empty()) exchange->problem = tensor_problem(tensor);
  if (exchange->problem.empty()) {
    // Off src the extent along dim has no meaning, so that any template is a piece.
    Pieces pieces = cut(exchange->is_root() ? Role::kWhole : Role::kPiece, sizes, tensor.sizes(),
                        dim, exchange->rank, exchange->world);
    exchange->problem = std::move(pieces.problem);
    exchange->dim = pieces.dim;
    exchange->sizes = std::move(pieces.extents);
  }
  const int64_t own = exchange->problem.empty() ? exchange->own() : 0;
  exchange->sizes.assign(static_cast<size_t>(exchange->world), tell_extent(tensor, *exchange, own));
  return exchange;
}

ExchangePtr make_all_to_all(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                            at::IntArrayRef output_sizes, int64_t input_dim, int64_t output_dim,
                            const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(group);
  std::string& problem = exchange->problem;
  problem = tensor_problem(tensor);
  if (problem.empty()) problem = wrap_dim("input_dim", input_dim, tensor.dim());
  if (problem.empty()) problem = wrap_dim("output_dim", output_dim, tensor.dim());
  if (problem.empty()) {
    problem = check_extents("input_sizes", input_sizes, tensor.size(input_dim), exchange->world);
  }
  if (problem.empty()) problem = check_extents("output_sizes", output_sizes, -1, exchange->world);
  if (problem.empty() && input_dim != output_dim) {
    problem = check_piece("output_sizes", output_sizes, exchange->rank, tensor.size(output_dim),
                          output_dim);
  }
  if (!problem.empty()) return exchange;
  const auto own = static_cast<size_t>(exchange->rank);
  if (input_dim == output_dim && output_sizes[own] != input_sizes[own]) {
    problem = fmt::format("output_sizes[{}] is {} on rank {}, which sends {} to itself",
                          exchange->rank, output_sizes[own], exchange->rank, input_sizes[own]);
    return exchange;
  }
  exchange->dim = input_dim;
  exchange->sizes.assign(input_sizes.begin(), input_sizes.end());
  exchange->other_dim = output_dim;
  exchange->other_sizes.assign(output_sizes.begin(), output_sizes.end());
  return exchange;
}

ExchangePtr make_transpose(const at::Tensor& tensor, int64_t dim0, int64_t dim1,
                           const std::optional<std::vector<int64_t>>& dim1_sizes,
                           const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(group);
  std::string& problem = exchange->problem;
  problem = tensor_problem(tensor);
  if (problem.empty()) problem = wrap_dim("dim0", dim0, tensor.dim());
  if (problem.empty()) problem = wrap_dim("dim1", dim1, tensor.dim());
  if (problem.empty() && dim0 == dim1) {
    problem = fmt::format("dim0 and dim1 are both {}; a transpose needs two dimensions", dim0);
  }
  if (!dim1_sizes) {
    exchange->other_sizes =
        tell_extents(tensor, *exchange, problem.empty() ? tensor.size(dim1) : 0);
  } else if (problem.empty()) {
    exchange->other_sizes.assign(dim1_sizes->begin(), dim1_sizes->end());
    problem = check_extents("dim1_sizes", *dim1_sizes, -1, exchange->world);
    if (problem.empty()) {
      problem = check_piece("dim1_sizes", *dim1_sizes, exchange->rank, tensor.size(dim1), dim1);
    }
  }
  if (!problem.empty()) return exchange;
  const std::vector<int64_t> pieces = compute_split_shapes(tensor.size(dim0), exchange->world);
  exchange->dim = dim0;
  exchange->sizes.assign(pieces.begin(), pieces.end());
  exchange->other_dim = dim1;
  agree_on_transpose(*exchange);
  return exchange;
}

at::Tensor all_gather(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form) {
  at::Tensor output;
  if (exchange.problem.empty()) output = empty_with_extent(tensor, exchange.dim, exchange.total());
  VCall call = make_call(exchange.problem, form);
  call.use_fp32 = exchange.use_fp32;
  agree(call, exchange);
  finish(VCollectivesOf(exchange.group, device_of(tensor, *exchange.group))
             ->all_gather_v(output, tensor, exchange.sizes, exchange.dim, std::move(call)),
         exchange.problem, form);
  return output;
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const Exchange& exchange,
                          const CallForm& form) {
  at::Tensor output;
  if (exchange.problem.empty()) output = empty_with_extent(tensor, exchange.dim, exchange.own());
  VCall call = make_call(exchange.problem, form);
  call.use_fp32 = exchange.use_fp32;
  agree(call, exchange);
  finish(VCollectivesOf(exchange.group, device_of(tensor, *exchange.group))
             ->reduce_scatter_v(output, tensor, exchange.sizes, exchange.dim, std::move(call)),
         exchange.problem, form);
  return output;
}

at::Tensor gather(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form) {
  at::Tensor output;
  if (exchange.problem.empty()) {
    output = empty_with_extent(tensor, exchange.dim, exchange.is_root() ? exchange.total() : 0);
  }
  VCall call = make_call(exchange.problem, form);
  add_name(call);
  finish(
      VCollectivesOf(exchange.group, device_of(tensor, *exchange.group))
          ->gather_v(output, tensor, exchange.sizes, exchange.dim, exchange.root, std::move(call)),
      exchange.problem, form);
  return output;
}

at::Tensor scatter(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form) {
  at::Tensor output;
  if (exchange.problem.empty()) output = empty_with_extent(tensor, exchange.dim, exchange.own());
  VCall call = make_call(exchange.problem, form);
  agree(call, exchange);
  finish(
      VCollectivesOf(exchange.group, device_of(tensor, *exchange.group))
          ->scatter_v(output, tensor, exchange.sizes, exchange.dim, exchange.root, std::move(call)),
      exchange.problem, form);
  return output;
}

at::Tensor all_to_all(const at::Tensor& tensor, const ExchangePtr& exchange, bool reversed,
                      const CallForm& form) {
  const int64_t input_dim = reversed ? exchange->other_dim : exchange->dim;
  const int64_t output_dim = reversed ? exchange->dim : exchange->other_dim;
  const Extents& input_sizes = reversed ? exchange->other_sizes : exchange->sizes;
  const Extents& output_sizes = reversed ? exchange->sizes : exchange->other_sizes;
  at::Tensor output;
  if (exchange->problem.empty()) {
    at::DimVector shape(tensor.sizes());
    shape[static_cast<size_t>(input_dim)] = input_sizes[static_cast<size_t>(exchange->rank)];
    shape[static_cast<size_t>(output_dim)] =
        std::accumulate(output_sizes.begin(), output_sizes.end(), int64_t{0});
    output = empty_output(shape, tensor.options());
  }
  VCall call = make_call(exchange->problem, form);
  if (exchange->agreed != 0) {
    call.agreed = exchange->agreed;
    call.details = [exchange, reversed] { return words_of(*exchange, reversed); };
  }
  add_name(call);
  finish(VCollectivesOf(exchange->group, device_of(tensor, *exchange->group))
             ->all_to_all_v(output, output_sizes, output_dim, tensor, input_sizes, input_dim,
                            std::move(call)),
         exchange->problem, form);
  return output;
}

}  // namespace meshrun
