#include "parallel/c_api/world.h"

#include <ATen/Context.h>

#include "core/version.h"
#include "parallel/c_api/arguments.h"
#include "parallel/c_api/c_bootstrap.h"
#include "parallel/c_api/call_error.h"

namespace meshrun::c_api {
namespace {

template <typename Value>
int tell(Value* result, const char* name, Value (*ask)(const DistributedManager&)) {
  return run_call([&] {
    require_pointer(result, name);
    *result = ask(joined_world());
  });
}

}  // namespace

DistributedManager& joined_world() {
  if (DistributedManager::is_initialized()) return DistributedManager::get();
  throw CallError(MESHRUN_INVALID_STATE,
                  "there is no world, or it has ended: call meshrun_initialize() first");
}

}  // namespace meshrun::c_api

using meshrun::DistributedManager;
using meshrun::c_api::run_call;

extern "C" {

int32_t meshrun_abi_version(void) { return MESHRUN_ABI_VERSION; }

const char* meshrun_version(void) { return meshrun::kVersion; }

int meshrun_initialize(void) {
  return run_call([] {
    if (!DistributedManager::is_initialized()) DistributedManager::initialize();
  });
}

int meshrun_initialize_with(const meshrun_bootstrap* bootstrap) {
  return run_call([&] {
    meshrun::c_api::require_pointer(bootstrap, "bootstrap");
    DistributedManager::initialize(meshrun::to_bootstrap(*bootstrap));
  });
}

int meshrun_finalize(void) {
  return run_call([] { DistributedManager::cleanup(/*barrier=*/true); });
}

int meshrun_is_initialized(int32_t* initialized) {
  return run_call([&] {
    meshrun::c_api::require_pointer(initialized, "initialized");
    *initialized = DistributedManager::is_initialized() ? 1 : 0;
  });
}

int meshrun_rank(int32_t* rank) {
  return meshrun::c_api::tell<int32_t>(rank, "rank", [](const auto& m) { return m.rank(); });
}
int meshrun_world_size(int32_t* size) {
  return meshrun::c_api::tell<int32_t>(size, "size", [](const auto& m) { return m.world_size(); });
}
int meshrun_local_rank(int32_t* rank) {
  return meshrun::c_api::tell<int32_t>(rank, "rank", [](const auto& m) { return m.local_rank(); });
}
int meshrun_local_world_size(int32_t* size) {
  return meshrun::c_api::tell<int32_t>(size, "size",
                                       [](const auto& m) { return m.local_world_size(); });
}
int meshrun_node_rank(int32_t* node) {
  return meshrun::c_api::tell<int32_t>(node, "node", [](const auto& m) { return m.node_rank(); });
}

int meshrun_manual_seed(uint64_t seed) {
  return run_call([&] { at::manual_seed(seed); });
}

}  // extern "C"
