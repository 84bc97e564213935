// An all_reduce in place and a broadcast of one tensor, over UCX in forked ranks, with every
// element checked.
#pragma once

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "tests/parallel/comm/ucx/forked_ranks.h"

namespace meshrun::ucx {

// A ForkedRank. Each rank takes 4 bytes for each element, and the schedule's scratch memory.
struct LargeSums {
  int size = 2;
  int64_t count = 0;  // of float32
  Tuning tuning = {};
  int64_t heap_bytes = 0;  // where peers may write; 0: nowhere
  bool prints = false;     // rank 0, one line for each operation

  std::string operator()(Board& board, int rank) const {
    const int64_t bytes = count * 4;
    void* const memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return "no memory for the tensor";
    auto* const tensor = static_cast<float*>(memory);
    for (int64_t i = 0; i < count; ++i) tensor[i] = value(i, rank);

    auto transport = create_ucx_transport();
    if (!transport.ok()) return transport.status().ToString();
    const std::unique_ptr<SharedHeap> heap =
        heap_bytes > 0 ? SharedHeap::create(static_cast<size_t>(heap_bytes)) : nullptr;
    Engine::Options options;
    options.heap = heap.get();
    const auto engine = Engine::start(*std::move(transport), std::move(options));
    GroupConfig config;
    config.name = "world";
    config.rank = rank;
    config.size = size;
    config.least_offered = config.least_lent = 64;
    std::shared_ptr<Group> group;
    if (auto error = engine->join(config, std::make_unique<BoardBook>(board), &group)) {
      return *error;
    }
    Place place = group->place();
    place.tuning = tuning;
    const StridedSpan span = contiguous(memory, bytes);

    OperationSpec sum;
    sum.signature.kind = OperationKind::kAllReduce;
    sum.outputs = {span};
    sum.schedule = std::make_shared<const Schedule>(
        plan_all_reduce(place, count, {ReductionOp::kSum, DType::kFloat32}));
    const auto expected_sum = [&](int64_t i) {
      float total = 0;
      for (int r = 0; r < size; ++r) total += value(i, r);
      return total;
    };
    std::string problem = run(*group, "all_reduce", std::move(sum), tensor, expected_sum);
    if (!problem.empty()) return problem;

    if (rank > 0) {
      for (int64_t i = 0; i < count; ++i) tensor[i] = -1;
    }
    const Piece piece{span.layout, bytes};
    OperationSpec broadcast;
    broadcast.signature.kind = OperationKind::kBroadcast;
    broadcast.signature.root = 0;
    if (rank == 0) broadcast.inputs = {span};
    broadcast.outputs = {span};
    broadcast.schedule = std::make_shared<const Schedule>(plan_broadcast(place, piece, 0));
    return run(*group, "broadcast", std::move(broadcast), tensor, expected_sum);
  }

 private:
  // Sums of eight are exact.
  static float value(int64_t i, int rank) {
    return static_cast<float>((static_cast<uint64_t>(i + rank * 977) * 0x9e3779b97f4a7c15) >> 44);
  }

  template <typename Expected>
  std::string run(Group& group, const char* name, OperationSpec&& spec, const float* tensor,
                  const Expected& expected) const {
    const auto schedule = spec.schedule;
    spec.drive = Drive::kCaller;
    const auto started = std::chrono::steady_clock::now();
    const auto operation = group.submit(std::move(spec));
    group.wait(*operation);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
    if (operation->failure()) return operation->failure()->message;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) wrong += tensor[i] != expected(i) ? 1 : 0;
    if (prints && group.config().rank == 0) {
      std::printf(
          "%s of %lld float32 on %d ranks: %lld wrong elements, %.2f s, %u messages between "
          "two ranks, %zu steps, %lld bytes of scratch memory\n",
          name, static_cast<long long>(count), size, static_cast<long long>(wrong), took.count(),
          schedule->most_messages, schedule->steps.size(),
          static_cast<long long>(schedule->scratch_bytes));
    }
    if (wrong == 0) return "";
    return std::string(name) + ": " + std::to_string(wrong) + " of " + std::to_string(count) +
           " elements are wrong on rank " + std::to_string(group.config().rank) + "; ";
  }
};

}  // namespace meshrun::ucx
