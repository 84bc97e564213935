#include "parallel/collectives/transpose.h"

#include <numeric>
#include <string>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/output_memory.h"
#include "parallel/collectives/pieces.h"
#include "parallel/collectives/split.h"
#include "parallel/comm/v_collectives_of.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using detail::ProcessGroupPtr;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// One dimension of the global tensor, and how the ranks cut it.
struct Side {
  int64_t dim = 0;
  std::vector<int64_t> extents;  // by rank
};

// All of `from` and a piece of `to`, before; the other way round, after. Held by the graph.
struct Exchange : torch::CustomClassHolder {
  Exchange(ProcessGroupPtr its_group, Side its_from, Side its_to)
      : group(std::move(its_group)), from(std::move(its_from)), to(std::move(its_to)) {}

  const ProcessGroupPtr group;
  const Side from, to;
};
using ExchangePtr = c10::intrusive_ptr<Exchange>;

std::string words_of(const Side& from, const Side& to) {
  return fmt::format(" (transpose of dim {} [{}] and dim {} [{}])", from.dim,
                     fmt::join(from.extents, ", "), to.dim, fmt::join(to.extents, ", "));
}

std::pair<Tensor, WorkPtr> start(const Exchange& exchange, const Tensor& tensor, bool async,
                                 bool requires_grad) {
  const auto& [dim0, extents0] = exchange.from;
  const auto& [dim1, extents1] = exchange.to;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim0)] = extents0[static_cast<size_t>(exchange.group->getRank())];
  shape[static_cast<size_t>(dim1)] = std::accumulate(extents1.begin(), extents1.end(), int64_t{0});
  const Tensor output = empty_output(shape, tensor.options());
  VCall call;
  call.async = async;
  call.requires_grad = requires_grad;
  const std::string words = words_of(exchange.from, exchange.to);
  call.agreed = Fingerprint(words);
  call.details = [words] { return words; };
  WorkPtr work = VCollectivesOf(exchange.group, tensor.device().type())
                     ->all_to_all_v(output, extents1, dim1, tensor, extents0, dim0, call);
  return {output, std::move(work)};
}

struct Transpose : torch::autograd::Function<Transpose> {
  static Tensor forward(AutogradContext* context, const Tensor& tensor, ExchangePtr exchange,
                        bool requires_grad) {
    const auto [output, work] = start(*exchange, tensor, /*async=*/false, requires_grad);
    work->wait();
    context->saved_data["exchange"] = c10::IValue::make_capsule(std::move(exchange));
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(context->saved_data["exchange"].toCapsule());
    auto back = c10::make_intrusive<Exchange>(exchange->group, exchange->to, exchange->from);
    const bool requires_grad = at::GradMode::is_enabled() && gradients[0].requires_grad();
    return {Transpose::apply(gradients[0].contiguous(), std::move(back), requires_grad), Tensor(),
            Tensor()};
  }
};

// What is wrong with this rank's arguments; else empty, and the dims count from the front.
std::string check(const Tensor& tensor, int64_t& dim0, int64_t& dim1,
                  const std::optional<std::vector<int64_t>>& dim1_sizes, int rank, int size) {
  if (!tensor.defined()) return "distributed_transpose: the tensor is undefined";
  if (std::string text = wrap_dim("dim0", dim0, tensor.dim()); !text.empty()) return text;
  if (std::string text = wrap_dim("dim1", dim1, tensor.dim()); !text.empty()) return text;
  if (dim0 == dim1) {
    return fmt::format("dim0 and dim1 are both {}; a transpose needs two dimensions", dim0);
  }
  if (!dim1_sizes) return "";
  if (dim1_sizes->size() != static_cast<size_t>(size)) {
    return fmt::format("dim1_sizes has {} entries in a group of {} ranks", dim1_sizes->size(),
                       size);
  }
  if (const int64_t own = (*dim1_sizes)[static_cast<size_t>(rank)]; own != tensor.size(dim1)) {
    return fmt::format("dim1_sizes says {} for rank {}, whose tensor has {} along dim {}", own,
                       rank, tensor.size(dim1), dim1);
  }
  for (const int64_t extent : *dim1_sizes) {
    if (extent < 0) return fmt::format("dim1_sizes has a negative entry, {}", extent);
  }
  return "";
}

// The ranks' extents along dim1. Raises on all ranks where they do not mean the same transpose.
std::vector<int64_t> gather_extents(const ProcessGroupPtr& group, const Tensor& tensor,
                                    int64_t dim0, int64_t dim1, bool requires_grad) {
  const int64_t size = group->getSize();
  const at::TensorOptions options = at::device(tensor.device()).dtype(at::kLong);
  const Tensor own = at::full({1}, tensor.size(dim1), options);
  const Tensor all = at::empty({size}, options);
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim1)] = -1;
  const std::string words =
      fmt::format(" (extents along dim {} for a transpose with dim {}, {} [{}])", dim1, dim0,
                  c10::toString(tensor.scalar_type()), fmt::join(shape, ", "));
  VCall call;
  call.requires_grad = requires_grad;
  call.agreed = Fingerprint(words);
  call.details = [words] { return words; };
  VCollectivesOf(group, tensor.device().type())
      ->all_gather_v(all, own, std::vector<int64_t>(static_cast<size_t>(size), 1), 0, call)
      ->wait();
  const Tensor here = all.cpu();
  const int64_t* const values = here.const_data_ptr<int64_t>();
  return {values, values + size};
}

}  // namespace

std::pair<Tensor, WorkPtr> distributed_transpose(
    const Tensor& tensor, int64_t dim0, int64_t dim1, const GroupArgument& group_argument,
    bool async_op, const std::optional<std::vector<int64_t>>& dim1_sizes) {
  const ProcessGroupPtr group = group_argument.get();
  const std::string problem =
      check(tensor, dim0, dim1, dim1_sizes, group->getRank(), group->getSize());
  if (!problem.empty()) {
    detail::raise_on_all_ranks(group, detail::device_of(group, tensor), problem);
  }
  const bool requires_grad = at::GradMode::is_enabled() && tensor.requires_grad() && !async_op;
  std::vector<int64_t> extents1 =
      dim1_sizes ? *dim1_sizes : gather_extents(group, tensor, dim0, dim1, requires_grad);
  auto exchange = c10::make_intrusive<Exchange>(
      group, Side{dim0, compute_split_shapes(tensor.size(dim0), group->getSize())},
      Side{dim1, std::move(extents1)});
  if (async_op) return start(*exchange, tensor.detach().contiguous(), true, false);
  return {Transpose::apply(tensor.contiguous(), std::move(exchange), requires_grad), nullptr};
}

}  // namespace meshrun
