// A world of rank processes on the ucx backend, for its tests.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx/backend.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using std::chrono::milliseconds;

int number(const char* variable) { return std::atoi(std::getenv(variable)); }

c10::intrusive_ptr<c10d::Store> join_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(number("MASTER_PORT"));
  options.isServer = number("RANK") == 0;
  options.numWorkers = number("WORLD_SIZE");
  // No rank leaves while another still needs rank 0's store.
  options.waitWorkers = true;
  return c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), options);
}

// A group of all ranks; its Work is waited for before the store goes.
struct World {
  explicit World(const ProcessGroupOptions& options = {})
      : store(join_store()),
        rank(number("RANK")),
        size(number("WORLD_SIZE")),
        group(make_process_group(c10::make_intrusive<c10d::PrefixStore>("world", store), rank, size,
                                 "ucx", options)) {
    // Ranks share the cores.
    at::set_num_threads(1);
  }
  ~World() {
    if (leaves_together) group->barrier()->wait();
  }
  UcxBackend& backend() const {
    return dynamic_cast<UcxBackend&>(*group->getBackend(c10::DeviceType::CPU));
  }

  c10::intrusive_ptr<c10d::Store> store;
  int rank, size;
  GroupPtr group;
  bool leaves_together = true;
};

#define MESHRUN_RANK_FUNCTION(name)                                                       \
  void name();                                                                            \
  [[maybe_unused]] const bool name##_is_registered = register_rank_function(#name, name); \
  void name()

[[maybe_unused]] void expect_text(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// What `rank` has in a piece. Sums of floats depend on the order.
[[maybe_unused]] Tensor content(int rank, int piece, int64_t count, at::ScalarType type) {
  const Tensor numbers =
      (at::arange(count, at::kDouble) * 7 + rank * 13 + piece * 5).remainder(23) - 11;
  if (type == at::kBool) return numbers.remainder(3) == 0;
  if (type == at::kLong) return numbers.to(at::kLong) * 1000000007;
  const Tensor real = numbers * 0.3711 + rank * 100.123;
  if (at::isComplexType(type)) return at::complex(real, -real * 0.77).to(type);
  return real.to(type);
}

}  // namespace
}  // namespace meshrun
