#include "parallel/manager/libtorch_version.h"

#include <dlfcn.h>

#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "torch/csrc/inductor/aoti_torch/c/shim.h"
#include "torch/headeronly/version.h"

namespace meshrun {
namespace {

std::string version_of(uint64_t abi) { return fmt::format("{}.{}", abi >> 56, (abi >> 48) & 0xff); }

std::string path_of(const void* symbol) {
  Dl_info info{};
  const bool is_known = dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return is_known ? info.dli_fname : "a library without a path";
}

}  // namespace

std::string libtorch_problem(uint64_t built, uint64_t loaded, std::string_view path) {
  if (version_of(built) == version_of(loaded)) return {};
  return fmt::format(
      "this program was built with LibTorch {} and has loaded LibTorch {}, {}: take that directory "
      "out of LD_LIBRARY_PATH, or build the program with LibTorch {}",
      version_of(built), version_of(loaded), path, version_of(loaded));
}

void require_libtorch_of_build() {
  const std::string problem =
      libtorch_problem(TORCH_ABI_VERSION, aoti_torch_abi_version(),
                       path_of(reinterpret_cast<const void*>(&aoti_torch_abi_version)));
  if (!problem.empty()) throw EnvironmentError(problem);
}

}  // namespace meshrun
