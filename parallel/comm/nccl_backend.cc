// Makes "nccl" known to process_group_factory.h in programs that link this file. Needs
// --config=cuda.
//
// Its store prefix ends in kNcclPrefix, by which AgentStore knows the keys of unique ids.
#include <cstdlib>
#include <string_view>
#include <utility>

#include "parallel/comm/nccl_group.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/store/agent_store.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

// The group whose communicator to split; null: none.
c10::intrusive_ptr<c10d::ProcessGroupNCCL> parent_of(const ProcessGroupOptions& options) {
  const char* split = std::getenv("MESHRUN_NCCL_SPLIT");
  const bool is_refused = split != nullptr && std::string_view(split) == "0";
  if (options.split_from == nullptr || !options.device || is_refused) return nullptr;
  const auto backend = options.split_from->getBackend(c10::DeviceType::CUDA);
  auto* const nccl = dynamic_cast<c10d::ProcessGroupNCCL*>(backend.get());
  return nccl == nullptr ? nullptr : c10::intrusive_ptr<c10d::ProcessGroupNCCL>::reclaim_copy(nccl);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const ProcessGroupOptions& options) {
  // The watchdog stays on (TORCH_NCCL_ASYNC_ERROR_HANDLING is left as it is): without it a lost
  // rank hangs the rest.
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  if (options.timeout) nccl->timeout = *options.timeout;
  nccl->group_name = nccl->group_desc = options.name;
  // Without them c10d's records and reports name the ranks of a group as those of the world.
  for (int member = 0; member < size; ++member) {
    const auto index = static_cast<size_t>(member);
    nccl->global_ranks_in_group.push_back(
        static_cast<uint64_t>(options.world_ranks.empty() ? member : options.world_ranks[index]));
  }
  if (auto parent = parent_of(options)) {
    nccl->split_from = std::move(parent);
    nccl->split_color = options.split_color;
  }
  auto backend = c10::make_intrusive<NcclGroup>(
      c10::make_intrusive<c10d::PrefixStore>(kNcclPrefix, store), rank, size, std::move(nccl));
  // In a group of sends and receives a rank may have none, and would be missing from a communicator
  // that is made by the first call. A split needs all ranks at the same time anyway.
  if (options.device) backend->eagerConnectSingleDevice(*options.device);
  return backend;
}

[[maybe_unused]] const bool kRegistered = register_cuda_backend("nccl", make_nccl);

}  // namespace
}  // namespace meshrun
