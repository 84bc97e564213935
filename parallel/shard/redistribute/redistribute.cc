#include "parallel/shard/redistribute/redistribute.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/plans/planned_collective.h"
#include "parallel/shard/redistribute/deferred_work.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

using Step = RedistributionStep;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp::RedOpType reduce_op(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return c10d::ReduceOp::SUM;
    case PartialOp::kAvg:
      return c10d::ReduceOp::AVG;
    case PartialOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case PartialOp::kMin:
      return c10d::ReduceOp::MIN;
    case PartialOp::kMax:
      return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

at::Tensor narrow_to(at::Tensor tensor, const Box& part) {
  for (size_t d = 0; d < part.sizes.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (part.sizes[d] != tensor.size(dim)) {
      tensor = tensor.narrow(dim, part.offsets[d], part.sizes[d]);
    }
  }
  return tensor;
}

// Whoever waits may do so on another stream than the call's, to which the allocator gives the
// memory back.
void record_on_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

// `finish` runs after the transfer: at once, or where `work` is waited for.
template <typename Finish>
void finish_after(WorkPtr transfer, WorkPtr* work, Finish finish) {
  if (work == nullptr) {
    transfer->wait();
    finish();
  } else {
    *work = c10::make_intrusive<DeferredWork>(std::move(transfer), std::move(finish));
  }
}

at::Tensor all_reduce(const PreparedStep& prepared, const at::Tensor& local, bool is_own,
                      WorkPtr* work) {
  const at::Tensor sum = is_own && local.is_non_overlapping_and_dense()
                             ? local
                             : local.clone(at::MemoryFormat::Contiguous);
  CollectiveSpec spec;
  spec.async = work != nullptr;
  if (prepared.agreed != 0) {
    spec.agreed = prepared.agreed;
    spec.say([words = prepared.words] { return words; });
  }
  detail::PendingAllReduce pending =
      detail::all_reduce(prepared.group, sum, reduce_op(prepared.step.op), std::move(spec));
  if (work == nullptr || !pending.work()) return pending.wait();
  const WorkPtr transfer = pending.work();
  finish_after(transfer, work,
               [pending = std::make_shared<detail::PendingAllReduce>(std::move(pending))] {
                 pending->wait();
               });
  return sum;
}

at::Tensor reduce_scatter(const PreparedStep& prepared, const at::Tensor& local, WorkPtr* work) {
  if (prepared.step.op != PartialOp::kAvg) return (*prepared.collective)(local, work);
  TORCH_CHECK_VALUE(local.is_floating_point() || local.is_complex(),
                    "an average needs a floating-point or complex type");
  const auto ranks = static_cast<int64_t>(prepared.step.sent_sizes.size());
  WorkPtr transfer;
  const at::Tensor sum = (*prepared.collective)(local, work == nullptr ? nullptr : &transfer);
  if (work == nullptr) return at::Tensor(sum).div_(ranks);
  finish_after(transfer, work, [sum, ranks] { at::Tensor(sum).div_(ranks); });
  return sum;
}

at::Tensor exchange(const PreparedStepPtr& prepared, const at::Tensor& local, WorkPtr* work) {
  const Step& step = prepared->step;
  int64_t total = 0;
  for (const int64_t size : step.sent_sizes) total += size;
  const at::Tensor packed = at::empty({total}, local.options());
  int64_t offset = 0;
  for (size_t rank = 0; rank < step.sent.size(); ++rank) {
    if (step.sent_sizes[rank] == 0) continue;
    packed.narrow(0, offset, step.sent_sizes[rank])
        .view(step.sent[rank].sizes)
        .copy_(narrow_to(local, step.sent[rank]));
    offset += step.sent_sizes[rank];
  }
  const at::Tensor result = at::empty(step.shape, local.options());
  const auto place_own = [&] {
    if (numel(step.own_from) == 0) return;
    narrow_to(result, step.own_to).copy_(narrow_to(local, step.own_from));
  };
  // The Work of a GPU covers only what is on its stream before the call.
  if (!local.is_cpu() || !step.is_on_wire) place_own();
  if (!step.is_on_wire) return result;
  WorkPtr transfer;
  const at::Tensor arrived = (*prepared->collective)(packed, &transfer);
  // While the others' are on their way.
  if (local.is_cpu()) place_own();
  finish_after(std::move(transfer), work, [prepared, arrived, result] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    record_on_current_stream(result);
    int64_t begin = 0;
    for (size_t rank = 0; rank < prepared->step.received.size(); ++rank) {
      const int64_t size = prepared->step.received_sizes[rank];
      if (size == 0) continue;
      const Box& box = prepared->step.received[rank];
      narrow_to(result, box).copy_(arrived.narrow(0, begin, size).view(box.sizes));
      begin += size;
    }
  });
  return result;
}

// `is_own`: nobody else sees `local`'s memory.
at::Tensor take(const PreparedStepPtr& prepared, const at::Tensor& local, bool is_own,
                WorkPtr* work) {
  switch (prepared->step.kind) {
    case Step::Kind::kSlice:
      return narrow_to(local, prepared->step.own_from);
    case Step::Kind::kAllReduce:
      return all_reduce(*prepared, local, is_own, work);
    case Step::Kind::kReduceScatter:
      return reduce_scatter(*prepared, local, work);
    case Step::Kind::kExchange:
      return exchange(prepared, local, work);
    case Step::Kind::kAllGather:
    case Step::Kind::kAllToAll:
      break;
  }
  return (*prepared->collective)(local, work);
}

// On the device "meta", for which no backend sends anything, only shapes count.
bool has_no_values(const at::Tensor& local, const ShardMesh& mesh) {
  if (!local.device().is_meta() || is_traced(local)) return false;
  const std::vector<c10::Device> devices = mesh.group()->getDeviceTypes();
  return std::none_of(devices.begin(), devices.end(),
                      [](const c10::Device& device) { return device.is_meta(); });
}

}  // namespace

SpecPtr target_spec(const SpecPtr& from, const Placements& placements) {
  return target_spec(from, from->mesh(), placements);
}

SpecPtr target_spec(const SpecPtr& from, const ShardMesh::Ptr& mesh, const Placements& placements) {
  if (mesh == from->mesh() && placements == from->placements()) return from;
  return RedistributionPlans::of(*from).target(from, mesh, placements);
}

void check_same_ranks(const DeviceMesh& from, const DeviceMesh& to) {
  std::vector<int> before = from.ranks();
  std::vector<int> after = to.ranks();
  std::sort(before.begin(), before.end());
  std::sort(after.begin(), after.end());
  if (before == after) return;
  throw ShardTensorError(fmt::format(
      "a tensor on the ranks [{}] of {} cannot be redistributed to the ranks [{}] of {}: "
      "both meshes need the same ranks",
      fmt::join(before, ", "), from.to_string(), fmt::join(after, ", "), to.to_string()));
}

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to,
                              WorkPtr* work) {
  if (same(from, to)) return local;
  const bool grows_partial = from->mesh() != to->mesh() && to->has_partial();
  if (grows_partial || from->global_shape() != to->global_shape()) {
    throw ShardTensorError(
        fmt::format("cannot redistribute {} to {}", from->to_string(), to->to_string()));
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (has_no_values(local, *from->mesh())) return at::empty(to->local_shape(), local.options());
  const auto prepared = RedistributionPlans::of(*from).to(*from, *to);
  at::Tensor tensor = local;
  bool is_own = false;
  for (size_t i = 0; i < prepared->steps.size(); ++i) {
    const PreparedStepPtr& step = prepared->steps[i];
    tensor = take(step, tensor, is_own, i == prepared->may_go_on ? work : nullptr);
    is_own |= step->step.is_on_wire;
  }
  return tensor;
}

SpecPtr gradient_spec(const SpecPtr& spec) {
  if (!spec->has_partial()) return spec;
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  return target_spec(spec, placements);
}

}  // namespace meshrun
