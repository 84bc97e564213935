#include "parallel/comm/v_collectives_of.h"

#include <chrono>
#include <utility>

#include "parallel/base/errors.h"
#include "parallel/base/no_collectives.h"
#include "parallel/base/traced_calls.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/found_in.h"
#include "parallel/comm/interface/stream_calls.h"
#include "parallel/comm/point_to_point/point_to_point_v_collectives.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

class DoneWork : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/ = kNoTimeout) override { return true; }
};

// Where a rank sends itself nothing the caller may have written that slice of the output.
TracedOutput output_of(const CollectiveSpec& spec, int rank) {
  return spec.kind == CollectiveSpec::Kind::kAllToAllV && spec.cut.of(rank) == 0
             ? TracedOutput::kReadAndWritten
             : TracedOutput::kWritten;
}

void trace(const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10::DeviceType device,
           const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) {
  // Made as written, the call raises it on all ranks.
  if (!spec.problem.empty()) throw NotTraceableError(spec.problem);
  if (spec.fill) throw NotTraceableError("a collective that sends rows by their indices");
  spec.async = false;
  trace_call(
      output, input,
      [group = WeakGroup(group), device, spec](const at::Tensor& to, const at::Tensor& from) {
        VCollectivesOf(living(group), device)->run(to, from, spec)->wait();
      },
      output_of(spec, group->getRank()));
}

}  // namespace

VCollectives::WorkPtr run_v_collective(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                       c10::DeviceType device, const at::Tensor& output,
                                       const at::Tensor& input, CollectiveSpec spec) {
  if (!is_traced(output) && !is_traced(input)) {
    return VCollectivesOf(group, device)->run(output, input, std::move(spec));
  }
  trace(group, device, output, input, std::move(spec));
  return c10::make_intrusive<DoneWork>();
}

c10::intrusive_ptr<c10d::ProcessGroup> living(const WeakGroup& group) {
  auto found = group.lock();
  TORCH_CHECK(found, "the process group of a compiled program has ended");
  return found;
}

VCollectivesOf::VCollectivesOf(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               c10::DeviceType device) {
  try {
    backend_ = group->getBackend(device);
  } catch (const c10::Error&) {
    throw BackendError("the process group \"" + group->getGroupName() + "\" has no backend for " +
                       c10::DeviceTypeName(device, /*lower_case=*/true) + " tensors");
  }
  collectives_ = found_in<VCollectives>(*backend_);
  // The backend's own ask by themselves, and know the call.
  if (collectives_ != nullptr) return;
  check_collectives_allowed([] { return CallScope::current_or("a collective on uneven pieces"); });
  PointToPointVCollectives::Compare compare;
  if (auto comparer = comparer_of(*group)) {
    compare = [comparer](Comparison comparison) {
      return comparer->compare(std::move(comparison));
    };
  }
  adapter_ = std::make_unique<PointToPointVCollectives>(backend_, std::move(compare),
                                                        found_in<StreamCalls>(*backend_));
  collectives_ = adapter_.get();
}

VCollectivesOf::~VCollectivesOf() = default;
VCollectivesOf::VCollectivesOf(VCollectivesOf&&) noexcept = default;

c10::DeviceType device_of(const at::Tensor& tensor, const c10d::ProcessGroup& group) {
  if (tensor.defined()) return tensor.device().type();
  for (const c10::Device device : group.getDeviceTypes()) {
    if (!device.is_cpu()) return device.type();
  }
  return c10::DeviceType::CPU;
}

}  // namespace meshrun
