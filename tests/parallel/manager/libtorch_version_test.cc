#include "parallel/manager/libtorch_version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshrun {
namespace {

constexpr uint64_t version(uint64_t major, uint64_t minor, uint64_t patch) {
  return major << 56 | minor << 48 | patch << 40;
}

TEST(LibTorchVersionTest, AnotherMinorVersionIsOneSentence) {
  EXPECT_EQ(
      libtorch_problem(version(2, 15, 0), version(2, 11, 1), "/opt/torch/lib/libtorch_cpu.so"),
      "this program was built with LibTorch 2.15 and has loaded LibTorch 2.11, "
      "/opt/torch/lib/libtorch_cpu.so: take that directory out of LD_LIBRARY_PATH, or build "
      "the program with LibTorch 2.11");
  EXPECT_NE(libtorch_problem(version(2, 11, 0), version(3, 11, 0), ""), "");
}

TEST(LibTorchVersionTest, AnotherPatchIsTheSame) {
  EXPECT_EQ(libtorch_problem(version(2, 15, 0), version(2, 15, 2), ""), "");
}

TEST(LibTorchVersionTest, ThisProgramHasItsOwn) { EXPECT_NO_THROW(require_libtorch_of_build()); }

}  // namespace
}  // namespace meshrun
