// Makes "nccl" known to process_group_factory.h in programs that link this file. Needs
// --config=cuda.
//
// Its store prefix ends in kNcclPrefix, by which AgentStore knows the keys of unique ids.
#include "parallel/comm/agent_store.h"
#include "parallel/comm/process_group_factory.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

namespace meshrun {
namespace {

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const ProcessGroupOptions& options) {
  // The watchdog stays on (TORCH_NCCL_ASYNC_ERROR_HANDLING is left as it is): without it a lost
  // rank hangs the rest.
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  if (options.timeout) nccl->timeout = *options.timeout;
  nccl->group_name = options.name;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>(kNcclPrefix, store), rank, size, std::move(nccl));
}

[[maybe_unused]] const bool kRegistered = register_cuda_backend("nccl", make_nccl);

}  // namespace
}  // namespace meshrun
