#include "parallel/c_api/world.h"

#include <ATen/Context.h>

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/version.h"
#include "fmt/format.h"
#include "parallel/c_api/arguments.h"
#include "parallel/c_api/call_error.h"
#include "parallel/manager/bootstrap.h"

namespace meshrun::c_api {
namespace {

constexpr size_t kErrorBytes = 512;

// Raises what a function of the caller's says.
template <typename Call>
void ask(const char* name, const Call& call) {
  std::array<char, kErrorBytes> error{};
  const int code = call(error.data(), error.size());
  if (code == 0) return;
  error.back() = '\0';
  throw std::runtime_error(error[0] == '\0' ? fmt::format("{}() returned {}", name, code)
                                            : std::string(error.data()));
}

Bootstrap bootstrap_of(const meshrun_bootstrap& given) {
  Bootstrap bootstrap;
  bootstrap.method = given.method == nullptr ? "MPI" : given.method;
  bootstrap.rank = given.rank;
  bootstrap.world_size = given.world_size;
  bootstrap.local_rank = given.local_rank;
  bootstrap.local_world_size = given.local_world_size;
  bootstrap.node_rank = given.node_rank;
  if (given.broadcast != nullptr) {
    bootstrap.broadcast = [given](void* data, size_t bytes) {
      ask("broadcast", [&](char* error, size_t size) {
        return given.broadcast(given.context, data, bytes, error, size);
      });
    };
  }
  if (given.all_gather != nullptr) {
    bootstrap.all_gather = [given](const void* own, void* all, size_t bytes) {
      ask("all_gather", [&](char* error, size_t size) {
        return given.all_gather(given.context, own, all, bytes, error, size);
      });
    };
  }
  return bootstrap;
}

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
    DistributedManager::initialize(meshrun::c_api::bootstrap_of(*bootstrap));
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
