// Backward calls of different nodes never pair up: parallel/comm/interface/node_number.h.
#include "parallel/comm/interface/node_number.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_to_all_v.h"
#include "parallel/collectives/gather_v.h"
#include "parallel/collectives/halo_exchange.h"
#include "parallel/collectives/indexed_all_to_all_v.h"
#include "parallel/collectives/mappings.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/collectives/scatter_v.h"
#include "parallel/collectives/tie.h"
#include "parallel/collectives/transpose.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;

const char* const kWords = "not of one call's backward pass";

Tensor leaf(int64_t rows) { return at::ones({rows, 2}, at::kDouble).requires_grad_(); }

// Takes a tensor of as many rows as twice the ranks.
struct Call {
  std::string name;
  std::function<Tensor(const Tensor&)> make;
};

std::vector<Call> calls(int size) {
  const std::vector<int64_t> twos(static_cast<size_t>(size), 2);
  const std::vector<int64_t> own(static_cast<size_t>(size), int64_t{2} * size);
  std::vector<Tensor> indices(static_cast<size_t>(size), at::arange(2));
  const std::vector<std::vector<int64_t>> table(static_cast<size_t>(size), twos);
  return {
      {"all_gather_v", [own](const Tensor& x) { return all_gather_v(x, own); }},
      {"reduce_scatter_v", [twos](const Tensor& x) { return reduce_scatter_v(x, twos); }},
      {"gather_v", [own](const Tensor& x) { return gather_v(x, own, 0, 0); }},
      {"scatter_v", [twos](const Tensor& x) { return scatter_v(x, twos, 0, 0); }},
      {"all_to_all_v", [twos](const Tensor& x) { return all_to_all_v(x, twos, twos); }},
      {"indexed_all_to_all_v",
       [indices, table](const Tensor& x) { return indexed_all_to_all_v(x, indices, table); }},
      {"distributed_transpose",
       [](const Tensor& x) { return distributed_transpose(x, 0, 1).first; }},
      {"halo_exchange",
       [](const Tensor& x) {
         return halo_exchange(x, 0, {1, 1});
       }},
      {"copy_to_parallel_region", [](const Tensor& x) { return copy_to_parallel_region(x); }},
      {"scatter_to_parallel_region",
       [](const Tensor& x) { return scatter_to_parallel_region(x, 0); }},
  };
}

// The first backward call of rank 1 is that of `first`, of the others that of `second`.
const bool kUnreached = register_rank_function("unreached", [] {
  const JoinedWorld world;
  for (const Call& call : calls(world.size)) {
    SCOPED_TRACE(call.name);
    const Tensor x = leaf(2 * world.size), w = leaf(2 * world.size);
    const Tensor first = call.make(x), second = call.make(w);
    const Tensor loss = world.rank == 1 ? first.sum() : first.sum() + second.sum();
    expect_error_on_all_ranks([&] { loss.backward(); }, kWords);
    // As tie.h has it.
    const Tensor again = call.make(x), other = call.make(w);
    const Tensor tied = world.rank == 1 ? tie(again.sum(), other) : again.sum() + 0 * other.sum();
    tied.backward();
    EXPECT_TRUE(x.grad().defined());
  }
});

TEST(NodeNumberTest, ALossThatDoesNotReachANodeIsAnErrorOnAllRanks) {
  run_in_worlds("unreached", {2, 3}, {"ucx"});
}

// Maps without a forward call: nothing compares before the backward pass which rank wants what.
const bool kGradientOnOneRank = register_rank_function("gradient_on_one_rank", [] {
  const JoinedWorld world;
  const int64_t rows = 2 * world.size;
  for (const Call& call : calls(world.size)) {
    if (call.name.find("_parallel_region") == std::string::npos) continue;
    SCOPED_TRACE(call.name);
    const Tensor x = at::ones({rows, 2}, at::kDouble).requires_grad_(world.rank == 1);
    const Tensor w = leaf(rows);
    // w's call comes last and its gradient first, which is right on all ranks; x's meets the next
    // call. Then x's gradient comes first.
    for (const bool x_first : {true, false}) {
      Tensor loss;
      if (x_first) {
        loss = call.make(x).sum();
        loss = loss + call.make(w).sum();
      } else {
        loss = call.make(w).sum();
        loss = loss + call.make(x).sum();
      }
      const auto train = [&] {
        loss.backward();
        all_gather_v(at::ones({2, 2}, at::kDouble));
      };
      if (!x_first) {
        expect_error_on_all_ranks([&] { loss.backward(); }, kWords);
      } else {
        expect_error_on_all_ranks(train, "");
      }
    }
  }
});

TEST(NodeNumberTest, AGradientThatOneRankWantsIsAnErrorOnAllRanks) {
  run_in_worlds("gradient_on_one_rank", {2, 3}, {"ucx"});
}

// Each rank wants the gradient of another input of one of two calls.
const bool kGradientsOfOtherInputs = register_rank_function("gradients_of_other_inputs", [] {
  const JoinedWorld world;
  for (const Call& call : calls(world.size)) {
    if (call.name.find("_parallel_region") == std::string::npos) continue;
    SCOPED_TRACE(call.name);
    Tensor loss = at::zeros({}, at::kDouble);
    for (const bool wants : {world.rank == 0, world.rank != 0}) {
      loss =
          loss + call.make(at::ones({2 * world.size, 2}, at::kDouble).requires_grad_(wants)).sum();
    }
    expect_error_on_all_ranks([&] { loss.backward(); }, kWords);
  }
});

TEST(NodeNumberTest, GradientsOfOtherInputsAreAnErrorOnAllRanks) {
  run_in_worlds("gradients_of_other_inputs", {2, 3}, {"ucx"});
}

// One rank is in a backward pass, and the others call the same thing outside of one.
const bool kBackwardBesideForward = register_rank_function("backward_beside_forward", [] {
  const JoinedWorld world;
  const int64_t rows = 2 * world.size;
  const auto beside = [&](const Tensor& result, const std::function<void()>& forward) {
    const Tensor loss = result.sum();
    expect_error_on_all_ranks([&] { world.rank == 0 ? loss.backward() : forward(); }, kWords);
  };
  beside(copy_to_parallel_region(leaf(rows)), [&] {
    reduce_from_parallel_region(at::ones({rows, 2}, at::kDouble));
  });
  beside(scatter_to_parallel_region(leaf(rows), 0), [&] {
    gather_from_parallel_region(at::ones({2, 2}, at::kDouble), 0);
  });
});

TEST(NodeNumberTest, ABackwardPassBesideACallOutsideOfOneIsAnErrorOnAllRanks) {
  run_in_worlds("backward_beside_forward", {2, 3}, {"ucx"});
}

const bool kRightPrograms = register_rank_function("right_programs", [] {
  const JoinedWorld world;
  const int64_t rows = 2 * world.size;
  const Tensor w = leaf(rows);
  const auto train = [&](double expected) {
    w.mutable_grad().reset();
    copy_to_parallel_region(w).sum().backward();
    EXPECT_TRUE(at::equal(w.grad(), at::full_like(w, expected)));
  };
  // One rank looks at its model without gradients: nothing is counted.
  if (world.rank == 0) {
    const at::NoGradGuard no_grad;
    copy_to_parallel_region(w);
    scatter_to_parallel_region(w, 0);
  }
  train(world.size);
  // With them: ranks agree again after the group's next operation.
  if (world.rank == 0) scatter_to_parallel_region(w, 0);
  all_gather_v(at::ones({1}));
  train(world.size);
  // A graph that is kept through other calls, and taken twice.
  const Tensor kept = scatter_to_parallel_region(w, 0).sum();
  all_gather_v(at::ones({1}));
  train(world.size);
  w.mutable_grad().reset();
  kept.backward({}, /*retain_graph=*/true);
  kept.backward();
  EXPECT_TRUE(at::equal(w.grad(), at::full_like(w, 2)));
});

TEST(NodeNumberTest, ProgramsThatAreRightStayRight) {
  run_in_worlds("right_programs", {1, 2, 3}, {"ucx", "gloo"});
}

}  // namespace
}  // namespace meshrun
