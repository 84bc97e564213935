// A program runs with the LibTorch that it was built with: another minor version has other classes,
// and what does not end at a missing symbol would compute with the wrong members.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun {

// What is wrong when a program built with one version has loaded the other, from the library
// `path`; empty where major and minor agree. As TORCH_ABI_VERSION has them: a byte each.
std::string libtorch_problem(uint64_t built, uint64_t loaded, std::string_view path);

// Raises EnvironmentError with that: the environment has led to another LibTorch.
void require_libtorch_of_build();

}  // namespace meshrun
