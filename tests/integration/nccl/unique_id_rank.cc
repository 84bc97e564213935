// Rank 0 makes a real NCCL unique id, and every rank prints the one that it got through the store,
// in the way ProcessGroupNCCL sends it. No GPU is needed for that much of NCCL.
#include <nccl.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "parallel/comm/store/agent_store.h"
#include "parallel/manager/distributed_manager.h"

namespace {

using Bytes = std::vector<uint8_t>;

Bytes new_unique_id() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
    throw std::runtime_error(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result));
  }
  Bytes bytes(sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

void exchange() {
  meshrun::DistributedManager::initialize();
  auto& manager = meshrun::DistributedManager::get();
  const auto store = c10::make_intrusive<c10d::PrefixStore>(meshrun::kNcclPrefix, manager.store());
  const std::string key = "0";
  if (manager.rank() == 0) store->set(key, new_unique_id());
  const Bytes id = store->get(key);
  std::string text;
  for (const uint8_t byte : id) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  std::printf("rank %d of %d: id %s\n", manager.rank(), manager.world_size(), text.c_str());
  if (manager.rank() == 0) {
    // An ordinary key could be overwritten; an exchange is over once it took place.
    try {
      store->set(key, new_unique_id());
      std::printf("a second id was taken\n");
    } catch (const c10::DistStoreError&) {
      std::printf("a second id was refused\n");
    }
  }
  meshrun::DistributedManager::cleanup(/*barrier=*/true);
}

}  // namespace

int main() {
  try {
    exchange();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "unique_id_rank: %s\n", error.what());
    return 1;
  }
}
