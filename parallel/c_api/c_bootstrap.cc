#include "parallel/c_api/c_bootstrap.h"

#include <array>
#include <stdexcept>
#include <string>

#include "fmt/format.h"

namespace meshrun {
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

}  // namespace

Bootstrap to_bootstrap(const meshrun_bootstrap& given) {
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

}  // namespace meshrun
