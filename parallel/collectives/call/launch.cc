#include "parallel/collectives/call/launch.h"

#include <utility>

#include "c10/util/DimVector.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/call/output_memory.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

thread_local const char* called_as = nullptr;

// The name that the caller knows, beside what the call says already.
void add_name(CollectiveSpec& spec) {
  if (called_as == nullptr) return;
  if (!spec.problem.empty()) spec.problem += fmt::format(" ({})", called_as);
  spec.say([name = called_as, words = std::move(spec.words)] {
    return fmt::format(" ({}){}", name, words ? (*words)() : std::string());
  });
}

at::Tensor empty_output_of(const CollectiveSpec& spec, int rank, const at::Tensor& tensor) {
  using Kind = CollectiveSpec::Kind;
  at::DimVector shape(tensor.sizes());
  int64_t& extent = shape[static_cast<size_t>(spec.cut.dim)];
  switch (spec.kind) {
    case Kind::kAllGatherV:
      extent = spec.cut.total();
      break;
    case Kind::kGatherV:
      extent = rank == spec.root ? spec.cut.total() : 0;
      break;
    case Kind::kReduceScatterV:
    case Kind::kScatterV:
      extent = spec.cut.of(rank);
      break;
    case Kind::kAllToAllV:
      extent = spec.cut.of(rank);
      shape[static_cast<size_t>(spec.received.dim)] = spec.received.total();
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, name_of(spec.kind));
  }
  return empty_output(shape, tensor.options());
}

}  // namespace

CalledAs::CalledAs(const char* name) : before_(std::exchange(called_as, name)) {}
CalledAs::~CalledAs() { called_as = before_; }

at::Tensor empty_with_extent(const at::Tensor& tensor, int64_t dim, int64_t extent) {
  at::DimVector shape(tensor.sizes());
  shape[static_cast<size_t>(dim)] = extent;
  return empty_output(shape, tensor.options());
}

void finish(WorkPtr work, const std::string& problem, const Launch& how) {
  if (how.work != nullptr) {
    *how.work = std::move(work);
    return;
  }
  work->wait();
  if (!problem.empty()) throw CollectiveArgumentError(problem);
}

void call_backend(const GroupArgument::Handle& group, c10::DeviceType device,
                  const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec,
                  const std::string& problem, const Launch& how) {
  spec.requires_grad = how.requires_grad;
  spec.async = how.work != nullptr;
  add_name(spec);
  finish(run_v_collective(group, device, output, input, std::move(spec)), problem, how);
}

at::Tensor launch(const Collective& collective, const at::Tensor& tensor, const Launch& how) {
  const bool is_back = how.pass == Pass::kBackward;
  CollectiveSpec spec = is_back ? adjoint(collective.spec) : collective.spec;
  at::Tensor output;
  if (spec.problem.empty()) output = empty_output_of(spec, collective.rank, tensor);
  call_backend(collective.group, device_of(tensor, *collective.group), output, tensor,
               std::move(spec), collective.spec.problem, how);
  return output;
}

}  // namespace meshrun
