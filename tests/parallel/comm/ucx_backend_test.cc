// The ucx backend as c10d's: views, groups, wrong calls, waiting, memory. Real rank processes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/shared_heap.h"
#include "parallel/collectives/call/output_memory.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/ucx/backend.h"
#include "tests/parallel/comm/ucx_world.h"
#include "tests/parallel/support/v_calls.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

MESHRUN_RANK_FUNCTION(ucx_adds_two_ranks) {
  const World world;
  Tensors tensors = {at::full({3, 4}, world.rank + 1.0, at::kFloat)};
  world.group->allreduce(tensors)->wait();
  EXPECT_TRUE(at::equal(tensors[0], at::full({3, 4}, 3.0, at::kFloat)));
  EXPECT_EQ(world.backend().getBackendName(), "ucx");
  EXPECT_EQ(world.backend().getSequenceNumberForGroup(), 1u);
}

TEST(UcxBackendTest, AllReduceAddsTwoRanks) {
  expect_success(run_ranks("ucx_adds_two_ranks", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_takes_views) {
  const World world;
  const auto rows = [&](int rank) { return content(rank, 0, 12, at::kFloat).view({3, 4}); };
  // A slice along dim 1, a transposed tensor, a conjugated one.
  const auto slice = [](const Tensor& value) {
    return at::zeros({3, 10}, at::kFloat).narrow(1, 2, 4).copy_(value);
  };
  const auto transposed = [](const Tensor& value) {
    return at::zeros({4, 3}, at::kFloat).t().copy_(value);
  };
  for (const auto& lay_out : {std::function<Tensor(const Tensor&)>(slice),
                              std::function<Tensor(const Tensor&)>(transposed)}) {
    Tensors tensors = {lay_out(rows(world.rank))};
    world.group->broadcast(tensors)->wait();
    EXPECT_TRUE(at::equal(tensors[0], rows(0)));

    tensors = {lay_out(rows(world.rank))};
    world.group->allreduce(tensors)->wait();
    EXPECT_TRUE(at::equal(tensors[0], rows(0) + rows(1)));

    std::vector<Tensors> outputs(1);
    for (int rank = 0; rank < world.size; ++rank) {
      outputs[0].push_back(lay_out(at::zeros({3, 4}, at::kFloat)));
    }
    tensors = {lay_out(rows(world.rank))};
    world.group->allgather(outputs, tensors)->wait();
    EXPECT_TRUE(at::equal(outputs[0][0], rows(0)));
    EXPECT_TRUE(at::equal(outputs[0][1], rows(1)));

    std::vector<Tensors> inputs = {{lay_out(rows(world.rank)), lay_out(rows(world.rank + 2))}};
    tensors = {lay_out(at::zeros({3, 4}, at::kFloat))};
    world.group->reduce_scatter(tensors, inputs)->wait();
    EXPECT_TRUE(at::equal(tensors[0], rows(2 * world.rank) + rows(2 * world.rank + 1)));

    tensors = {lay_out(rows(world.rank))};
    c10d::ReduceOptions reduce;
    reduce.rootRank = 1;
    world.group->reduce(tensors, reduce)->wait();
    EXPECT_TRUE(at::equal(tensors[0], world.rank == 1 ? rows(0) + rows(1) : rows(0)));

    tensors = {lay_out(rows(world.rank))};
    if (world.rank == 0) {
      world.group->send(tensors, 1, 0)->wait();
    } else {
      world.group->recv(tensors, 0, 0)->wait();
      EXPECT_TRUE(at::equal(tensors[0], rows(0)));
    }
  }
  Tensors conjugated = {at::complex(rows(world.rank), rows(world.rank)).conj()};
  // Not by the dispatcher, which copies the result of such a tensor when the call returns.
  world.backend().allreduce(conjugated, {})->wait();
  const Tensor sum = rows(0) + rows(1);
  EXPECT_TRUE(at::equal(conjugated[0].resolve_conj(), at::complex(sum, -sum)))
      << conjugated[0].resolve_conj() << at::complex(sum, -sum);

  Tensors kept = {rows(world.rank).requires_grad_(true)};
  {
    const c10::NoGradGuard no_grad;
    world.group->broadcast(kept)->wait();
  }
  EXPECT_TRUE(at::equal(kept[0], rows(0)));
  EXPECT_TRUE(kept[0].requires_grad());
}

TEST(UcxBackendTest, TensorsThatAreNotContiguousAreWorkedOnWhereTheyAre) {
  expect_success(run_ranks("ucx_takes_views", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_finds_wrong_calls) {
  const World world;
  const bool is_odd = world.rank == 1;
  Tensors fine = {at::ones({4}, at::kFloat)};
  const auto all_raise = [&](const std::function<void()>& call, const std::string& part) {
    expect_text(call, part);
    // The group goes on.
    Tensors tensors = {at::full({2}, 1.0, at::kFloat)};
    world.group->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0][0].item<float>(), static_cast<float>(world.size));
  };
  const auto reduce_with = [&](Tensor tensor, c10d::ReduceOp op) {
    Tensors tensors = {std::move(tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    world.backend().allreduce(tensors, options)->wait();
  };
  const auto floats = at::ones({4}, at::kFloat);

  all_raise([&] { reduce_with(is_odd ? at::ones({4}, at::kDouble) : floats, c10d::ReduceOp::SUM); },
            "float64");
  all_raise([&] { reduce_with(is_odd ? at::ones({5}, at::kFloat) : floats, c10d::ReduceOp::SUM); },
            "[5]");
  all_raise(
      [&] {
        reduce_with(is_odd ? floats.view({2, 2}) : floats, c10d::ReduceOp::SUM);
      },
      "[2, 2]");
  all_raise([&] { reduce_with(floats, is_odd ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM); },
            "max");
  all_raise([&] { reduce_with(is_odd ? at::ones({4}, at::kInt) : floats, c10d::ReduceOp::AVG); },
            "wrong arguments on rank 1: average of int32");
  all_raise([&] { reduce_with(floats, c10d::ReduceOp::BAND); }, "needs an integer type");
  all_raise([&] { reduce_with(is_odd ? Tensor() : floats, c10d::ReduceOp::SUM); },
            "wrong arguments on rank 1: the tensor is an undefined tensor");
  all_raise([&] { reduce_with(is_odd ? floats.to_sparse() : floats, c10d::ReduceOp::SUM); },
            "rank 1 called all_reduce of a sparse tensor");
  all_raise(
      [&] {
        reduce_with(is_odd ? at::_efficientzerotensor({4}, at::kFloat) : floats,
                    c10d::ReduceOp::SUM);
      },
      "wrong arguments on rank 1: the tensor is a tensor of zeros without memory");
  all_raise([&] { reduce_with(is_odd ? at::ones({1}).expand({4}) : floats, c10d::ReduceOp::SUM); },
            "is expanded");
  all_raise(
      [&] {
        c10d::BroadcastOptions options;
        options.rootRank = is_odd ? 1 : 0;
        world.group->broadcast(fine, options)->wait();
      },
      "root 1");
  all_raise(
      [&] {
        c10d::BroadcastOptions options;
        options.rootRank = is_odd ? 7 : 0;
        world.group->broadcast(fine, options)->wait();
      },
      "the root is 7 in a group of 2 ranks; 0 to 1 is expected");
  all_raise(
      [&] {
        if (is_odd) {
          world.group->barrier()->wait();
        } else {
          world.group->allreduce(fine)->wait();
        }
      },
      "rank 1 called barrier");
  all_raise(
      [&] {
        Tensors two = {floats, floats};
        world.group->allreduce(is_odd ? two : fine)->wait();
      },
      "2 tensors were passed");
  all_raise(
      [&] {
        std::vector<Tensors> outputs(1);
        for (int rank = 0; rank < (is_odd ? 3 : 2); ++rank) {
          outputs[0].push_back(at::zeros({4}, at::kFloat));
        }
        world.group->allgather(outputs, fine)->wait();
      },
      "the list of outputs has 3 tensors in a group of 2 ranks");
  all_raise(
      [&] {
        Tensor output = at::zeros({is_odd ? 7 : 8}, at::kFloat);
        libtorch::all_gather_single(*world.group, output, fine[0])->wait();
      },
      "the output has 7 elements");
  all_raise(
      [&] {
        Tensor input = at::zeros({4}), output = at::zeros({4});
        std::vector<int64_t> even = {2, 2}, wrong = {2, 3};
        libtorch::all_to_all_single(*world.group, output, input, even, is_odd ? wrong : even)
            ->wait();
      },
      "input_split_sizes is [2, 3], 5 together; the tensor has 4 along that dimension");

  // What a function calls on behalf of the program is told, and compared, under its name.
  all_raise(
      [&] {
        const CallScope save(is_odd ? "CheckpointDirectory::save" : "CheckpointDirectory::load");
        const CallScope within("something else");
        world.group->broadcast(fine)->wait();
      },
      "rank 1 called CheckpointDirectory::save (broadcast of float32 [4], root 0)");
  all_raise(
      [&] {
        std::optional<CallScope> save;
        if (is_odd) save.emplace("CheckpointDirectory::save");
        world.group->broadcast(fine)->wait();
      },
      "rank 0 called broadcast of float32 [4], root 0; rank 1 called CheckpointDirectory::save");
  all_raise(
      [&] {
        if (is_odd) {
          world.group->barrier()->wait();
        } else {
          world.backend().compare({})->wait();
        }
      },
      "rank 0 called comparison; rank 1 called barrier");

  // Names that are told and not compared.
  {
    const CallScope own(is_odd ? "reduce_inplace" : "reduce", CallScope::Comparison::kNone);
    Tensors sum = {at::ones({4})};
    world.group->allreduce(sum)->wait();
    EXPECT_TRUE(at::equal(sum[0], at::full({4}, 2.0)));
    all_raise(
        [&] {
          Tensors different = {at::ones({is_odd ? 3 : 4})};
          world.group->allreduce(different)->wait();
        },
        "rank 1 called reduce_inplace (all_reduce of float32 [3], sum)");
  }
  // Several at once have one name.
  all_raise(
      [&] {
        const CallScope own("fused_all_reduce");
        Tensors different = {at::ones({is_odd ? 3 : 4})};
        world.backend().startCoalescing();
        world.backend().compare({.what = "it", .digest = 1});
        world.backend().allreduce(different, {});
        world.backend().endCoalescing()->wait();
      },
      "rank 1 called fused_all_reduce (2 operations at once: comparison before it; all_reduce of "
      "float32 [3], sum)");

  EXPECT_THROW(world.group->send(fine, 9, 0)->wait(), CollectiveArgumentError);
  EXPECT_THROW(world.group->send(fine, 0, -1)->wait(), CollectiveArgumentError);
  EXPECT_THROW(reduce_with(is_odd ? at::ones({4}, at::kDouble) : floats, c10d::ReduceOp::SUM),
               CollectiveMismatchError);
  expect_text([&] { world.backend().allreduce_sparse(fine, {}); }, "not a sparse COO tensor");
}

TEST(UcxBackendTest, AWrongCallOnOneRankIsAnErrorOnAllAndTheGroupGoesOn) {
  expect_success(run_ranks("ucx_finds_wrong_calls", env_ranks(2)));
}

// Rank r has rows 0 to r - 1, so rank 0 has none. Every one twice.
MESHRUN_RANK_FUNCTION(ucx_sums_sparse_tensors) {
  const World world;
  const auto sparse = [&](at::ScalarType type, int64_t columns) {
    const Tensor rows = at::arange(world.rank, at::kLong).repeat({2}).view({1, -1});
    const Tensor values = at::full({2 * world.rank, columns}, world.rank + 1, type);
    return at::sparse_coo_tensor(rows, values, {world.size, columns});
  };
  Tensor expected = at::zeros({world.size, 2}, at::kDouble);
  for (int rank = 1; rank < world.size; ++rank) expected.narrow(0, 0, rank).add_(2 * (rank + 1));
  for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
    for (const bool async : {false, true}) {
      c10d::AllreduceOptions options;
      options.asyncOp = async;
      Tensors sum = {sparse(type, 2)};
      const auto work = world.group->allreduce(sum, options);
      const auto future = work->getFuture();
      work->wait();
      future->wait();
      EXPECT_TRUE(at::equal(sum[0].to_dense(), expected.to(type))) << sum[0];
      EXPECT_TRUE(at::equal(future->value().toTensorVector().at(0).to_dense(), expected.to(type)));
    }
  }
  // Other columns on the last rank, another operation, and a dense tensor there.
  const bool is_last = world.rank == world.size - 1;
  Tensors other = {sparse(at::kFloat, is_last ? 3 : 2)};
  EXPECT_THROW(world.backend().allreduce(other, {})->wait(), CollectiveMismatchError);
  c10d::AllreduceOptions options;
  options.reduceOp = is_last ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  Tensors one = {sparse(at::kFloat, 2)};
  EXPECT_THROW(world.backend().allreduce(one, options)->wait(), CollectiveArgumentError);
  Tensors some = {is_last ? at::ones({2}) : sparse(at::kFloat, 2)};
  EXPECT_THROW(world.backend().allreduce(some, {})->wait(), CollectiveMismatchError);
  Tensors last = {sparse(at::kFloat, 2)};
  world.backend().allreduce(last, {})->wait();
  EXPECT_TRUE(at::equal(last[0].to_dense(), expected.to(at::kFloat)));
}

TEST(UcxBackendTest, SparseTensorsAreSummed) {
  for (const int size : {2, 3}) {
    expect_success(run_ranks("ucx_sums_sparse_tensors", env_ranks(size)));
  }
}

// Rank 1 stays away, then comes too late.
MESHRUN_RANK_FUNCTION(ucx_monitors_a_barrier) {
  const World world;
  c10d::BarrierOptions options;
  options.timeout = milliseconds(30'000);
  for (int call = 0; call < 3; ++call) world.backend().monitoredBarrier(options, call == 1);
  Tensors sum = {at::ones({4})};
  const auto late = world.rank == 1 ? nullptr : world.group->allreduce(sum);
  options.timeout = milliseconds(world.rank == 0 ? 200 : 30'000);
  const auto stays_away = [&](bool wait_all_ranks, const std::string& who) {
    const std::string text = who + " failed to pass monitoredBarrier number " +
                             (wait_all_ranks ? "5" : "4") + " of group \"world\" within 200 ms";
    const auto call = [&] { world.backend().monitoredBarrier(options, wait_all_ranks); };
    if (world.rank != 1) expect_text(call, text);
    return call;
  };
  const auto first = stays_away(false, "Rank 1");
  const auto second = stays_away(true, "Ranks 1");
  // Rank 1 comes when rank 0 has given up twice.
  Tensors word = {at::zeros({1})};
  if (world.rank == 0) world.group->send(word, 1, /*tag=*/0)->wait();
  if (world.rank == 1) {
    world.group->recv(word, 0, /*tag=*/0)->wait();
    world.group->allreduce(sum)->wait();
    expect_text(first, "rank 0: Rank 1 failed to pass");
    expect_text(second, "rank 0: Ranks 1 failed to pass");
  } else {
    late->wait();
  }
  options.timeout = milliseconds(30'000);
  world.backend().monitoredBarrier(options, false);
  options.timeout = milliseconds(0);
  expect_text([&] { world.backend().monitoredBarrier(options, false); },
              "Rank 0 timed out in monitoredBarrier number 7");
}

TEST(UcxBackendTest, AMonitoredBarrierNamesTheRanksThatStayAway) {
  for (const int size : {2, 3}) {
    expect_success(run_ranks("ucx_monitors_a_barrier", env_ranks(size)));
  }
}

// What continues an operation may run on a thread that waits in a function's name; it is not of
// that function.
MESHRUN_RANK_FUNCTION(ucx_continues_outside_of_scopes) {
  const World world;
  for (int round = 0; round < 200; ++round) {
    Tensors sum = {at::ones({4})};
    const auto future = world.group->allreduce(sum)->getFuture();
    const auto followed = future->then(
        [&](c10::ivalue::Future&) -> c10::IValue { return CallScope::current() == nullptr; },
        c10::BoolType::get());
    {
      const CallScope save("CheckpointDirectory::save");
      world.group->barrier()->wait();
    }
    followed->wait();
    ASSERT_TRUE(followed->value().toBool()) << round;
  }
}

TEST(UcxBackendTest, WhatContinuesAnOperationIsNotOfTheFunctionThatWaits) {
  expect_success(run_ranks("ucx_continues_outside_of_scopes", env_ranks(2)));
}

// Rank 0's first call is followed by another, which it makes after its second call, and rank 1 may
// make them the other way round.
MESHRUN_RANK_FUNCTION(ucx_refuses_late_continuations) {
  World world;
  world.leaves_together = false;
  const auto all_reduce = [&] {
    Tensors sum = {at::ones({4})};
    return world.group->allreduce(sum);
  };
  Tensors message = {at::ones({1})};
  if (world.rank == 0) {
    std::promise<void> second;
    const auto followed = all_reduce()->getFuture()->then(
        [&](c10::ivalue::Future&) -> c10::IValue {
          second.get_future().get();
          return all_reduce()->wait();
        },
        c10::BoolType::get());
    world.group->send(message, 1, 0)->wait();
    const auto work = all_reduce();
    EXPECT_TRUE(work->wait());
    world.group->recv(message, 1, 0)->wait();
    // The second call's future comes after the first's, and a wait has a time of its own.
    const auto future = work->getFuture();
    EXPECT_FALSE(future->completed());
    const auto since = std::chrono::steady_clock::now();
    EXPECT_TRUE(work->wait(milliseconds(50)));
    EXPECT_LT(std::chrono::steady_clock::now() - since, std::chrono::seconds(9));
    second.set_value();
    future->wait();
    followed->wait();
    EXPECT_THAT(followed->tryRetrieveErrorMessage(),
                ::testing::HasSubstr("called in a continuation"));
  } else {
    world.group->recv(message, 0, 0)->wait();
    EXPECT_TRUE(all_reduce()->wait());
    EXPECT_TRUE(all_reduce()->wait());
    world.group->send(message, 0, 0)->wait();
    EXPECT_THAT([&] { all_reduce()->wait(); },
                ::testing::ThrowsMessage<CollectiveMismatchError>(
                    ::testing::HasSubstr("on rank 0 was called in a")));
  }
  EXPECT_THAT([&] { all_reduce()->wait(); }, ::testing::ThrowsMessage<CollectiveMismatchError>(
                                                 ::testing::HasSubstr("was not started")));
}

TEST(UcxBackendTest, AContinuationsCallAfterALaterOneEndsTheGroup) {
  expect_success(run_ranks("ucx_refuses_late_continuations", env_ranks(2)));
}

// Every form of c10d's all-to-all: rank 1's splits contradict those of rank 0. Small pieces and
// long ones, splits of 0 on one side alone, rows of another length, several calls in one operation.
MESHRUN_RANK_FUNCTION(ucx_compares_splits) {
  const World world;
  using Splits = std::vector<int64_t>;
  UcxBackend& backend = world.backend();
  const int rank = world.rank;
  // The outputs, one after the other.
  Tensor output;
  const auto base = [&](Splits to, Splits from, int64_t row) {
    Tensor input = at::full({to[0] + to[1], row}, rank + 1.0);
    output = at::full({from[0] + from[1], row}, -1.0);
    return backend.alltoall_base(output, input, from, to, {});
  };
  const auto lists = [&](Splits to, Splits from, int64_t row) {
    Tensors inputs, outputs;
    output = at::full({from[0] + from[1], row}, -1.0);
    for (size_t other = 0; other < 2; ++other) {
      inputs.push_back(at::full({to[other], row}, rank + 1.0));
      outputs.push_back(output.narrow(0, other == 0 ? 0 : from[0], from[other]));
    }
    return backend.alltoall(outputs, inputs, {});
  };
  const auto coalesced = [&](Splits to, Splits from, int64_t row) {
    backend.startCoalescing();
    base({1, 1}, {1, 1}, row);
    base(std::move(to), std::move(from), row);
    return backend.endCoalescing();
  };
  using Form = std::function<VCollectives::WorkPtr(Splits to, Splits from, int64_t row)>;
  const std::vector<std::pair<const char*, Form>> forms = {
      {"the sizes of all_to_all number", base},
      {"the sizes of all_to_all number", lists},
      {"the sizes of coalesced operations number", coalesced}};
  for (const auto& named : forms) {
    const char* const name = named.first;
    const Form& form = named.second;
    const auto differ = [&](Splits to, Splits from, int64_t row, const std::string& part) {
      const auto since = std::chrono::steady_clock::now();
      try {
        form(std::move(to), std::move(from), row)->wait();
        ADD_FAILURE() << "no error; expected: " << part;
      } catch (const CollectiveMismatchError& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - since, std::chrono::seconds(5));
      EXPECT_TRUE((output == -1).all().item<bool>()) << "nothing is written";
      // The group goes on.
      form({1, 1}, {1, 1}, 3)->wait();
      EXPECT_TRUE((output.narrow(0, 0, 1) == 1).all().item<bool>());
      EXPECT_TRUE((output.narrow(0, 1, 1) == 2).all().item<bool>());
    };
    for (const int64_t row : {int64_t{1}, int64_t{40000}}) {
      // Rank 0 sends 3 to rank 1, which expects 2.
      differ(rank == 0 ? Splits{1, 3} : Splits{2, 2}, rank == 0 ? Splits{1, 2} : Splits{2, 2}, row,
             "rank 0 sends");
      // Rank 0 sends something that rank 1 does not expect, and the other way round.
      differ({1, 1}, rank == 0 ? Splits{1, 1} : Splits{0, 1}, row, "rank 0 sends");
      differ(rank == 0 ? Splits{1, 0} : Splits{1, 1}, {1, 1}, row, "rank 0 sends");
      differ(rank == 0 ? Splits{1, 1} : Splits{0, 1}, {1, 1}, row, "rank 1 sends");
      // Rows of another length.
      differ({1, 1}, {1, 1}, row + rank, "rank 0 sends");
    }
  }
  // One rank has the list form of what the other has as one tensor.
  const Splits to = rank == 0 ? Splits{1, 3} : Splits{2, 2};
  const Splits from = rank == 0 ? Splits{1, 2} : Splits{3, 2};
  (rank == 0 ? base(to, from, 5) : lists(to, from, 5))->wait();
  EXPECT_TRUE((output.narrow(0, 0, from[0]) == 1).all().item<bool>());
  EXPECT_TRUE((output.narrow(0, from[0], from[1]) == 2).all().item<bool>());
}

TEST(UcxBackendTest, SplitsThatContradictEachOtherAreAnErrorOnAllAndTheGroupGoesOn) {
  expect_success(run_ranks("ucx_compares_splits", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_gives_futures) {
  const World world;
  Tensors tensors = {at::full({1000}, world.rank + 1.0, at::kFloat)};
  std::atomic<int> called{0};
  auto future = world.group->allreduce(tensors)->getFuture();  // the Work is dropped
  auto then = future->then(
      [&](c10::ivalue::Future& done) {
        ++called;
        return done.value().toTensorVector()[0].sum();
      },
      c10::TensorType::get());
  then->wait();
  EXPECT_EQ(called, 1);
  EXPECT_EQ(then->value().toTensor().item<float>(), 3000.0f);

  // A future of an operation that is done already, and an error.
  auto work = world.group->allreduce(tensors);
  work->wait();
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
  work->getFuture()->wait();
  EXPECT_EQ(work->result().size(), 1u);
  Tensors wrong = {at::ones({world.rank + 2}, at::kFloat)};
  work = world.group->allreduce(wrong);
  future = work->getFuture();
  future->wait();
  EXPECT_TRUE(future->hasError());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_THROW(std::rethrow_exception(work->exception()), CollectiveMismatchError);

  // Dropped, and written all the same, also where it had to be copied.
  Tensor whole = at::zeros({6, 4}, at::kFloat);
  Tensors dropped = {whole.t()};
  dropped[0].fill_(world.rank + 1.0);
  world.group->allreduce(dropped);
  while (dropped[0].use_count() > 1) std::this_thread::yield();
  EXPECT_TRUE(at::equal(whole, at::full({6, 4}, 3.0f)));
}

TEST(UcxBackendTest, FuturesEndThoughNobodyWaitsForTheWork) {
  expect_success(run_ranks("ucx_gives_futures", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_forks) {
  const World world;
  Tensors tensors = {at::full({1000}, world.rank + 1.0, at::kFloat)};
  if (world.rank == 1) world.store->wait({"forked"});
  const auto work = world.group->allreduce(tensors);
  if (world.rank == 0) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      int status = 0;
      const auto raises = [&](const std::function<void()>& call) {
        try {
          call();
          status = 1;
        } catch (const GroupAbortedError& error) {
          if (std::string(error.what()).find("was forked from that of rank 0") ==
              std::string::npos) {
            status = 2;
          }
        }
      };
      raises([&] { work->wait(); });
      raises([&] { work->wait(milliseconds(60000)); });
      raises([&] { world.group->allreduce(tensors)->wait(); });
      raises([&] { std::rethrow_exception(work->exception()); });
      if (!work->isCompleted() || work->isSuccess() || !work->getFuture()->hasError()) status = 3;
      if (world.backend().getError() == c10d::ErrorType::SUCCESS) status = 4;
      _exit(status);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << WEXITSTATUS(status);
    world.store->set("forked", "");
  }
  work->wait();
  EXPECT_TRUE(at::equal(tensors[0], at::full({1000}, 3.0f)));
}

TEST(UcxBackendTest, AForkedChildHasNoResultsAndItsParentGoesOn) {
  expect_success(run_ranks("ucx_forks", env_ranks(2), RankStart::kExec));
}

MESHRUN_RANK_FUNCTION(ucx_coalesces) {
  const World world;
  const int other = 1 - world.rank;
  UcxBackend& backend = world.backend();
  // Both send first, too much to be buffered: one after the other, neither would end.
  constexpr int64_t kLong = 1 << 20;
  Tensors sent = {at::full({kLong}, world.rank + 1.0)}, received = {at::zeros({kLong})};
  Tensors sum = {at::ones({5})}, gathered_from = {at::full({3}, world.rank, at::kLong)};
  Tensor gathered = at::zeros({6}, at::kLong);
  backend.startCoalescing();
  backend.send(sent, other, 1);
  const auto put_off = backend.allreduce(sum, {});
  expect_text([&] { put_off->wait(); }, "endCoalescing");
  backend._allgather_base(gathered, gathered_from[0], {});
  backend.recv(received, other, 1);
  expect_text([&] { backend.startCoalescing(); }, "twice");
  backend.endCoalescing()->wait();
  EXPECT_TRUE(at::equal(received[0], at::full({kLong}, other + 1.0)));
  EXPECT_TRUE(at::equal(sum[0], at::full({5}, 2.0)));
  EXPECT_TRUE(at::equal(gathered.slice(0, 3), at::ones({3}, at::kLong)));
  EXPECT_TRUE(put_off->isCompleted());
  EXPECT_EQ(backend.getSequenceNumberForGroup(), 1u);
  expect_text([&] { backend.endCoalescing(); }, "without startCoalescing");
  backend.startCoalescing();
  EXPECT_TRUE(backend.endCoalescing()->wait());
  // One part wrong on one rank: nothing of it happens, anywhere.
  backend.startCoalescing();
  Tensors untouched = {at::ones({5})}, wrong = {at::ones({world.rank + 1})};
  backend.allreduce(untouched, {});
  backend.allreduce(wrong, {});
  EXPECT_THROW(backend.endCoalescing()->wait(), CollectiveMismatchError);
  EXPECT_TRUE(at::equal(untouched[0], at::ones({5})));
}

TEST(UcxBackendTest, CoalescedCallsAreOneOperation) {
  expect_success(run_ranks("ucx_coalesces", env_ranks(2)));
}

// What is put together as it is sent, beside a call whose input lies in memory.
MESHRUN_RANK_FUNCTION(ucx_coalesces_what_is_put_together) {
  const World world;
  UcxBackend& backend = world.backend();
  const int64_t other = 1 - world.rank;
  constexpr int64_t kRows = 3000;
  const at::Tensor input = at::full({kRows}, world.rank + 1, at::kLong);
  const at::Tensor gathered = empty_output({2 * kRows}, at::TensorOptions(at::kLong));
  const at::Tensor exchanged = empty_output({kRows}, at::TensorOptions(at::kLong));
  std::vector<int64_t> sizes = {0, 0};
  sizes[static_cast<size_t>(other)] = kRows;
  CollectiveSpec call;
  call.fill = [own = world.rank](int32_t, int64_t offset, StridedSpan to, int64_t to_offset,
                                 int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 8) {
      const int64_t value = (offset + at) / 8 * 10 + own;
      std::memcpy(to.data + to.layout.position(to_offset + at), &value, 8);
    }
  };
  backend.startCoalescing();
  all_gather_v(backend, gathered, input, {kRows, kRows}, 0, {});
  all_to_all_v(backend, exchanged, sizes, 0, at::empty({kRows}, at::kLong), sizes, 0,
               std::move(call));
  backend.endCoalescing()->wait();
  EXPECT_TRUE(at::equal(gathered.slice(0, 0, kRows), at::ones({kRows}, at::kLong)));
  EXPECT_TRUE(at::equal(gathered.slice(0, kRows), at::full({kRows}, 2, at::kLong)));
  EXPECT_TRUE(at::equal(exchanged, at::arange(kRows) * 10 + other));
}

TEST(UcxBackendTest, WhatIsPutTogetherAsItIsSentCanBeCoalesced) {
  expect_success(run_ranks("ucx_coalesces_what_is_put_together", env_ranks(2)));
}

// Calls that differ on another rank alone: to a rank that is not the root its own piece looks
// alike.
MESHRUN_RANK_FUNCTION(ucx_gathers_other_sizes_each_time) {
  const World world;
  UcxBackend& backend = world.backend();
  const std::vector<std::vector<int64_t>> all = {{2, 3, 1}, {2, 1, 3}, {2, 0, 7}, {2, 3, 1}};
  for (int root = 0; root < world.size; ++root) {
    for (const std::vector<int64_t>& sizes : all) {
      const int64_t total = sizes[0] + sizes[1] + sizes[2];
      const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + world.rank, int64_t{0});
      const int64_t own = sizes[static_cast<size_t>(world.rank)];
      const at::Tensor whole = at::arange(total * 2).view({total, 2});
      const at::Tensor piece = whole.narrow(0, begin, own).contiguous();
      const bool is_root = world.rank == root;
      const at::Tensor gathered = is_root ? at::zeros_like(whole) : at::Tensor();
      gather_v(backend, gathered, piece, sizes, 0, root, {})->wait();
      EXPECT_TRUE(!is_root || at::equal(gathered, whole));
      const at::Tensor scattered = at::zeros_like(piece);
      scatter_v(backend, scattered, is_root ? whole : at::Tensor(), sizes, 0, root, {})->wait();
      EXPECT_TRUE(at::equal(scattered, piece));
    }
  }
}

TEST(UcxBackendTest, WhatOtherRanksSendIsPartOfTheCall) {
  expect_success(run_ranks("ucx_gathers_other_sizes_each_time", env_ranks(3)));
}

// With the header; one byte more is a message of its own.
MESHRUN_RANK_FUNCTION(ucx_sends_small_calls_with_their_headers) {
  const World world;
  UcxBackend& backend = world.backend();
  world.group->barrier()->wait();
  const auto messages_of = [&](auto call) {
    const int64_t before = backend.engine()->counters().messages;
    call();
    return backend.engine()->counters().messages - before;
  };
  const auto all_reduce = [&](int64_t bytes) {
    std::vector<at::Tensor> tensors = {at::ones({bytes}, at::kByte)};
    backend.allreduce(tensors, {})->wait();
    EXPECT_TRUE(tensors[0].eq(world.size).all().item<bool>());
  };
  EXPECT_EQ(messages_of([&] { all_reduce(1); }), 1);
  EXPECT_EQ(messages_of([&] { all_reduce(4096); }), 1);
  EXPECT_GT(messages_of([&] { all_reduce(4097); }), 1);
  const std::vector<int64_t> sizes = {3, 5};
  const at::Tensor whole = at::arange(8), sum = at::empty({sizes[world.rank]}, at::kLong);
  const at::Tensor own = whole.narrow(0, world.rank == 0 ? 0 : 3, sizes[world.rank]).clone();
  const at::Tensor gathered = at::empty({8}, at::kLong);
  const int64_t copied = backend.engine()->counters().copied_bytes;
  EXPECT_EQ(messages_of([&] { all_gather_v(backend, gathered, own, sizes, 0, {})->wait(); }), 1);
  EXPECT_EQ(backend.engine()->counters().copied_bytes - copied, own.nbytes());
  EXPECT_TRUE(at::equal(gathered, whole));
  EXPECT_EQ(messages_of([&] { reduce_scatter_v(backend, sum, whole, sizes, 0, {})->wait(); }), 1);
  EXPECT_TRUE(at::equal(sum, own * 2));
}

TEST(UcxBackendTest, SmallCallsTravelWithTheirHeaders) {
  expect_success(run_ranks("ucx_sends_small_calls_with_their_headers", env_ranks(2)));
}

// Into rows of the receiver, between which its own slices lie.
MESHRUN_RANK_FUNCTION(ucx_fills_rows_of_the_receiver) {
  const World world;
  UcxBackend& backend = world.backend();
  const int64_t own = world.rank, other = 1 - world.rank;
  constexpr int64_t kRows = 32, kSent = 200, kOwn = 100;
  std::vector<int64_t> sent(2, 0), received(2, kOwn);
  sent[static_cast<size_t>(other)] = received[static_cast<size_t>(other)] = kSent;
  const at::Tensor result = empty_output({kRows, kSent + kOwn}, at::TensorOptions(at::kLong));
  result.fill_(-1);
  CollectiveSpec call;
  call.fill = [own](int32_t, int64_t offset, StridedSpan to, int64_t to_offset, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 8) {
      const int64_t value = (offset + at) / 8 * 10 + own;
      std::memcpy(to.data + to.layout.position(to_offset + at), &value, 8);
    }
  };
  all_to_all_v(backend, result, received, 1, at::empty({kRows, kSent}, at::kLong), sent, 1,
               std::move(call))
      ->wait();
  const at::Tensor expected = (at::arange(kRows * kSent) * 10 + other).view({kRows, kSent});
  EXPECT_TRUE(at::equal(result.narrow(1, other == 0 ? 0 : kOwn, kSent), expected));
  EXPECT_TRUE(result.narrow(1, own == 0 ? 0 : kSent, kOwn).eq(-1).all().item<bool>());
  EXPECT_EQ(backend.engine()->counters().pushed_bytes, kRows * kSent * 8);
}

TEST(UcxBackendTest, WhatIsPutTogetherIsWrittenIntoRowsOfTheReceiver) {
  expect_success(run_ranks("ucx_fills_rows_of_the_receiver", env_ranks(2)));
}

// Sizes of an all-to-all are not compared: a receiver with different sizes reports them, and
// nothing is written where it does not belong.
MESHRUN_RANK_FUNCTION(ucx_expects_other_bytes) {
  const World world;
  int number = 0;
  for (const auto& [sent, expected] : {std::pair{8000, 1000}, {1000, 8000}, {8000, 7000}}) {
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(std::to_string(number++), world.store);
    const GroupPtr group = make_process_group(store, world.rank, world.size, "ucx", {});
    const at::Tensor memory = empty_output({16000}, at::TensorOptions(at::kFloat)).zero_();
    const bool receives = world.rank == 0;
    std::vector<int64_t> to = {receives ? 0 : sent, 0}, from = {0, receives ? expected : 0};
    at::Tensor output = receives ? memory.slice(0, 0, expected) : at::empty({0});
    at::Tensor input = at::ones({receives ? 0 : sent});
    const auto exchange = [&] {
      libtorch::all_to_all_single(*group, output, input, from, to)->wait();
    };
    if (receives) {
      EXPECT_THROW(exchange(), CollectiveMismatchError) << sent << " for " << expected;
      EXPECT_EQ(memory.slice(0, expected).sum().item<float>(), 0.0f);
    } else {
      try {
        exchange();  // a short message may have left before anybody knows
      } catch (const CollectiveMismatchError&) {
      }
    }
    world.group->barrier()->wait();
  }
}

TEST(UcxBackendTest, ExpectingOtherBytesThanComeIsAnErrorAndNothingIsOverwritten) {
  expect_success(run_ranks("ucx_expects_other_bytes", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_splits) {
  const World world;
  const std::vector<int> members = {0, 2};
  const auto part =
      world.group->splitGroup(members, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  EXPECT_EQ(part != nullptr, world.rank != 1);
  if (part != nullptr) {
    Tensors tensors = {at::full({2}, world.rank + 1.0)};
    part->allreduce(tensors)->wait();
    EXPECT_EQ(tensors[0][0].item<float>(), 4.0f);
    EXPECT_EQ(part->getRank(), world.rank / 2);
    const auto backend = part->getBackend(c10::DeviceType::CPU);
    EXPECT_EQ(dynamic_cast<UcxBackend&>(*backend).engine(), world.backend().engine());
    part->barrier()->wait();
  }
}

TEST(UcxBackendTest, AGroupThatIsSplitOffSharesTheEngine) {
  expect_success(run_ranks("ucx_splits", env_ranks(3)));
}

MESHRUN_RANK_FUNCTION(ucx_waits_for_a_while) {
  ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(60);
  World world(options);
  Tensors tensors = {at::ones({3})};
  if (world.rank == 0) {
    const auto work = world.group->allreduce(tensors);
    EXPECT_THROW(work->wait(milliseconds(20)), CollectiveTimeoutError);
    world.store->set("go on", "");
    EXPECT_TRUE(work->wait(std::chrono::seconds(60)));
  } else {
    world.store->wait({"go on"}, std::chrono::seconds(60));
    world.group->allreduce(tensors)->wait();
  }
  EXPECT_EQ(tensors[0][0].item<float>(), 2.0f);

  // Two groups over the same keys.
  EXPECT_THROW(make_process_group(c10::make_intrusive<c10d::PrefixStore>("world", world.store),
                                  world.rank, world.size, "ucx"),
               RendezvousError);

  world.group->barrier()->wait();
  world.leaves_together = false;
  if (world.rank == 0) world.group->abort();
  EXPECT_THROW(world.group->allreduce(tensors)->wait(), GroupAbortedError);
  EXPECT_EQ(world.backend().getError(), c10d::ErrorType::COMM_ERROR);
  expect_text([&] { world.group->barrier()->wait(); }, "abort() was called on rank 0");
}

TEST(UcxBackendTest, AWaitWithATimeoutOfItsOwnLeavesTheOperation) {
  expect_success(run_ranks("ucx_waits_for_a_while", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(ucx_gives_memory_for_buckets) {
  const World world;
  const SharedHeap& heap = *SharedHeap::of_process();
  const auto is_shared = [&](const Tensor& tensor) {
    return heap.offset_of(tensor.const_data_ptr(), tensor.nbytes()).has_value();
  };
  UcxBackend& backend = world.backend();
  EXPECT_TRUE(backend.supportsTensorAlloc(-1));
  EXPECT_FALSE(backend.supportsTensorAlloc(0)) << "a GPU's";
  const size_t before = heap.used_bytes();
  {
    const Tensor bucket = backend.allocateTensor(1000, at::kDouble);
    EXPECT_EQ(bucket.sizes(), at::IntArrayRef({1000}));
    EXPECT_EQ(bucket.scalar_type(), at::kDouble);
    EXPECT_TRUE(is_shared(bucket));
    // With the first one more than half of the heap.
    EXPECT_FALSE(is_shared(backend.allocateTensor(static_cast<long>(heap.size() / 2), at::kByte)));
    EXPECT_TRUE(is_shared(backend.allocateTensor(static_cast<long>(heap.size() / 4), at::kByte)));
  }
  EXPECT_EQ(heap.used_bytes(), before) << "given back";
}

TEST(UcxBackendTest, BucketsLieInTheHeapWhileHalfOfItIsUnused) {
  expect_success(run_ranks("ucx_gives_memory_for_buckets", env_ranks(1)));
}

TEST(ProcessGroupFactoryTest, ABackendIsNamedForEachDevice) {
  EXPECT_TRUE(has_backend("gloo"));
  EXPECT_TRUE(has_backend("ucx"));
  EXPECT_TRUE(has_backend("cpu:ucx"));
  EXPECT_FALSE(has_backend("cuda:ucx"));
  EXPECT_FALSE(has_backend("cpu:mpi"));
  EXPECT_FALSE(has_backend(""));
  EXPECT_FALSE(has_backend("gloo,"));
  ::setenv("MESHRUN_BACKEND", "ucx", 1);
  EXPECT_EQ(backend_of_environment(), "ucx");
  ::unsetenv("MESHRUN_BACKEND");
  EXPECT_EQ(backend_of_environment(), std::nullopt);
}

}  // namespace
}  // namespace meshrun
