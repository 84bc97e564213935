// The ucx backend as c10d's: real rank processes, every collective against a loop in one process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/base/shared_heap.h"
#include "parallel/base/tensor_layout.h"
#include "parallel/collectives/output_memory.h"
#include "parallel/comm/process_group_factory.h"
#include "parallel/comm/store/agent_store.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/comm/ucx/store_address_book.h"
#include "tests/parallel/comm/ucx_world.h"
#include "tests/parallel/support/fake_agent.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

Tensor unwritten(int64_t count, at::ScalarType type) {
  return at::full({count}, type == at::kBool ? 1 : 77, type);
}

class Conformance {
 public:
  Conformance(const World& world, at::ScalarType type, std::vector<int64_t> counts)
      : world_(world), type_(type), counts_(std::move(counts)) {
    for (const int64_t count : counts_) total_ += count;
  }

  void run() {
    broadcast();
    all_reduce(c10d::ReduceOp::SUM);
    if (at::isFloatingType(type_) || at::isComplexType(type_)) all_reduce(c10d::ReduceOp::AVG);
    if (!at::isComplexType(type_)) all_reduce(c10d::ReduceOp::MAX);
    all_reduce_coalesced();
    reduce();
    all_gather_list();
    all_gather_base();
    all_gather_coalesced();
    gather_and_scatter();
    reduce_scatter_list();
    reduce_scatter_base();
    all_to_all();
    send_and_receive();
    world_.group->barrier()->wait();
  }

 private:
  void expect_same(const Tensor& actual, const Tensor& expected, const char* what) {
    EXPECT_TRUE(at::equal(actual, expected))
        << what << " of " << c10::toString(type_) << ", counts " << c10::IntArrayRef(counts_)
        << ", rank " << world_.rank << ":\n"
        << actual << "\ninstead of\n"
        << expected;
  }
  Tensor own(int piece, int64_t count) const { return content(world_.rank, piece, count, type_); }
  Tensors of_ranks(int piece, int64_t count) const {
    Tensors all;
    for (int rank = 0; rank < world_.size; ++rank) {
      all.push_back(content(rank, piece, count, type_));
    }
    return all;
  }

  void broadcast() {
    for (int root = 0; root < world_.size; ++root) {
      Tensors tensors = {own(root, total_)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      world_.group->broadcast(tensors, options)->wait();
      expect_same(tensors[0], content(root, root, total_, type_), "broadcast");
    }
  }

  void all_reduce(c10d::ReduceOp op) {
    Tensors tensors = {own(0, total_)};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    world_.group->allreduce(tensors, options)->wait();
    const Tensors all = of_ranks(0, total_);
    Tensor expected = sum_of(all, op.op_ == c10d::ReduceOp::AVG ? world_.size : 1);
    if (op.op_ == c10d::ReduceOp::MAX) {
      expected = all[0];
      for (const Tensor& tensor : all) expected = at::maximum(expected, tensor);
    }
    expect_same(tensors[0], expected, "all_reduce");
  }

  void all_reduce_coalesced() {
    Tensors tensors = {own(1, counts_[0]), own(2, total_)};
    world_.group->allreduce_coalesced(tensors)->wait();
    expect_same(tensors[0], sum_of(of_ranks(1, counts_[0])), "allreduce_coalesced, first");
    expect_same(tensors[1], sum_of(of_ranks(2, total_)), "allreduce_coalesced, second");
  }

  void reduce() {
    for (int root = 0; root < world_.size; ++root) {
      Tensors tensors = {own(3, total_)};
      c10d::ReduceOptions options;
      options.rootRank = root;
      world_.group->reduce(tensors, options)->wait();
      expect_same(tensors[0], world_.rank == root ? sum_of(of_ranks(3, total_)) : own(3, total_),
                  "reduce");
    }
  }

  void all_gather_list() {
    std::vector<Tensors> outputs(1);
    for (const int64_t count : counts_) outputs[0].push_back(unwritten(count, type_));
    Tensors inputs = {own(4, counts_[world_.rank])};
    world_.group->allgather(outputs, inputs)->wait();
    for (int rank = 0; rank < world_.size; ++rank) {
      expect_same(outputs[0][rank], content(rank, 4, counts_[rank], type_), "all_gather");
    }
  }

  void all_gather_base() {
    const int64_t count = counts_[0];
    Tensor output = unwritten(count * world_.size, type_), input = own(5, count);
    world_.group->_allgather_base(output, input)->wait();
    expect_same(output, at::cat(of_ranks(5, count)), "_allgather_base");
    // In place.
    Tensor both = unwritten(count * world_.size, type_);
    Tensor mine = both.narrow(0, world_.rank * count, count);
    mine.copy_(own(6, count));
    world_.group->_allgather_base(both, mine)->wait();
    expect_same(both, at::cat(of_ranks(6, count)), "_allgather_base in place");
  }

  void all_gather_coalesced() {
    Tensors inputs = {own(7, counts_[world_.rank]), own(8, total_)};
    std::vector<Tensors> outputs;
    for (const int64_t count : counts_) {
      outputs.push_back({unwritten(count, type_), unwritten(total_, type_)});
    }
    world_.group->allgather_coalesced(outputs, inputs)->wait();
    Tensors into = {unwritten(total_ * world_.size, type_), unwritten(2 * world_.size, type_)};
    Tensors from = {own(9, total_), own(10, 2)};
    world_.group->allgather_into_tensor_coalesced(into, from)->wait();
    expect_same(into[0], at::cat(of_ranks(9, total_)), "allgather_into_tensor_coalesced");
    expect_same(into[1], at::cat(of_ranks(10, 2)), "allgather_into_tensor_coalesced");
    for (int rank = 0; rank < world_.size; ++rank) {
      expect_same(outputs[rank][0], content(rank, 7, counts_[rank], type_), "allgather_coalesced");
      expect_same(outputs[rank][1], content(rank, 8, total_, type_), "allgather_coalesced");
    }
  }

  void gather_and_scatter() {
    const int64_t count = counts_[0];
    for (int root = 0; root < world_.size; ++root) {
      std::vector<Tensors> lists;
      if (world_.rank == root) {
        lists.emplace_back();
        for (int rank = 0; rank < world_.size; ++rank) {
          lists[0].push_back(unwritten(count, type_));
        }
      }
      Tensors one = {own(11, count)};
      c10d::GatherOptions gather;
      gather.rootRank = root;
      world_.group->gather(lists, one, gather)->wait();
      for (int rank = 0; world_.rank == root && rank < world_.size; ++rank) {
        expect_same(lists[0][rank], content(rank, 11, count, type_), "gather");
        lists[0][rank] = own(rank, count);
      }
      one = {unwritten(count, type_)};
      c10d::ScatterOptions scatter;
      scatter.rootRank = root;
      world_.group->scatter(one, lists, scatter)->wait();
      expect_same(one[0], content(root, world_.rank, count, type_), "scatter");
    }
  }

  void reduce_scatter_list() {
    std::vector<Tensors> inputs(1);
    for (int rank = 0; rank < world_.size; ++rank) {
      inputs[0].push_back(own(rank, counts_[rank]));
    }
    Tensors outputs = {unwritten(counts_[world_.rank], type_)};
    world_.group->reduce_scatter(outputs, inputs)->wait();
    expect_same(outputs[0], sum_of(of_ranks(world_.rank, counts_[world_.rank])), "reduce_scatter");
  }

  void reduce_scatter_base() {
    const int64_t count = counts_[0];
    Tensor output = unwritten(count, type_), input = own(12, count * world_.size);
    const Tensor expected =
        sum_of(of_ranks(12, count * world_.size)).narrow(0, world_.rank * count, count);
    world_.group->_reduce_scatter_base(output, input)->wait();
    expect_same(output, expected, "_reduce_scatter_base");
    Tensors outputs = {unwritten(count, type_), unwritten(3, type_)};
    Tensors inputs = {input, own(13, 3 * world_.size)};
    world_.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
    expect_same(outputs[0], expected, "reduce_scatter_tensor_coalesced");
    expect_same(outputs[1], sum_of(of_ranks(13, 3 * world_.size)).narrow(0, world_.rank * 3, 3),
                "reduce_scatter_tensor_coalesced");
  }

  // From each rank to each other, two elements a row.
  int64_t between(int from, int to) const { return counts_[(from + 2 * to) % world_.size]; }
  Tensor message(int from, int to) const {
    return content(from, 20 + to, between(from, to) * 2, type_).view({-1, 2});
  }

  void all_to_all() {
    std::vector<int64_t> to, from;
    Tensors sent, expected, received;
    for (int rank = 0; rank < world_.size; ++rank) {
      to.push_back(between(world_.rank, rank));
      from.push_back(between(rank, world_.rank));
      sent.push_back(message(world_.rank, rank));
      expected.push_back(message(rank, world_.rank));
      received.push_back(unwritten(2 * from.back(), type_).view({-1, 2}));
    }
    Tensor input = at::cat(sent), output = at::cat(received);
    world_.group->alltoall_base(output, input, from, to)->wait();
    expect_same(output, at::cat(expected), "alltoall_base");
    world_.group->alltoall(received, sent)->wait();
    for (int rank = 0; rank < world_.size; ++rank) {
      expect_same(received[rank], expected[rank], "alltoall");
    }
    // Equal shares.
    std::vector<int64_t> none;
    input = own(14, counts_[0] * world_.size);
    output = unwritten(counts_[0] * world_.size, type_);
    world_.group->alltoall_base(output, input, none, none)->wait();
    Tensors shares;
    for (const Tensor& of_rank : of_ranks(14, counts_[0] * world_.size)) {
      shares.push_back(of_rank.narrow(0, world_.rank * counts_[0], counts_[0]));
    }
    expect_same(output, at::cat(shares), "alltoall_base without sizes");
  }

  void send_and_receive() {
    const int above = (world_.rank + 1) % world_.size;
    const int below = (world_.rank + world_.size - 1) % world_.size;
    for (const bool from_any : {false, true}) {
      Tensors sent = {own(15, counts_[world_.rank])};
      Tensors received = {unwritten(counts_[below], type_)};
      const auto sending = world_.group->send(sent, above, 5 + from_any);
      const auto receiving = from_any ? world_.group->recvAnysource(received, 5 + from_any)
                                      : world_.group->recv(received, below, 5 + from_any);
      receiving->wait();
      sending->wait();
      EXPECT_EQ(receiving->sourceRank(), below);
      expect_same(received[0], content(below, 15, counts_[below], type_), "recv");
    }
  }

  const World& world_;
  const at::ScalarType type_;
  const std::vector<int64_t> counts_;
  int64_t total_ = 0;
};

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

MESHRUN_RANK_FUNCTION(ucx_conforms) {
  const World world;
  const auto patterns = [&](int64_t unit) {
    std::vector<std::vector<int64_t>> counts(5);
    for (int rank = 0; rank < world.size; ++rank) {
      counts[0].push_back(5 * unit);
      counts[1].push_back((3 * rank + 1) * unit);
      counts[2].push_back(rank % 2 == 0 ? 0 : 4 * unit);
      counts[3].push_back(rank == world.size / 2 ? 9 * unit : 0);
      counts[4].push_back(0);
    }
    return counts;
  };
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
                                    at::kComplexFloat, at::kLong, at::kBool}) {
    for (const auto& counts : patterns(1)) Conformance(world, type, counts).run();
  }
  // Long enough for the algorithms and protocols of long messages.
  for (const auto& counts : patterns(20011)) Conformance(world, at::kFloat, counts).run();
}

class UcxConformanceTest : public ::testing::TestWithParam<int> {};
TEST_P(UcxConformanceTest, EveryCollectiveGivesWhatOneProcessComputes) {
  // Ranks that are executed have addresses of their own, forks equal ones.
  const RankStart start = GetParam() == 2 ? RankStart::kExec : RankStart::kForkAtMain;
  expect_success(run_ranks("ucx_conforms", env_ranks(GetParam()), start));
}
INSTANTIATE_TEST_SUITE_P(Worlds, UcxConformanceTest, ::testing::Values(1, 2, 3, 4));

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
            "wrong arguments on rank 1");
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
      "the root is rank 7 in a group of 2");
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
        world.group->_allgather_base(output, fine[0])->wait();
      },
      "the output has 7 elements");
  all_raise(
      [&] {
        Tensor input = at::zeros({4}), output = at::zeros({4});
        std::vector<int64_t> even = {2, 2}, wrong = {2, 3};
        world.group->alltoall_base(output, input, even, is_odd ? wrong : even)->wait();
      },
      "input sizes [2, 3] do not share out dim 0, 4");

  EXPECT_THROW(world.group->send(fine, 9, 0)->wait(), CollectiveArgumentError);
  EXPECT_THROW(world.group->send(fine, 0, -1)->wait(), CollectiveArgumentError);
  EXPECT_THROW(reduce_with(is_odd ? at::ones({4}, at::kDouble) : floats, c10d::ReduceOp::SUM),
               CollectiveMismatchError);
  expect_text([&] { world.backend().monitoredBarrier({}, false); }, "barrier() that times out");
  expect_text([&] { world.backend().allreduce_sparse(fine, {}); }, "to_dense()");
}

TEST(UcxBackendTest, AWrongCallOnOneRankIsAnErrorOnAllAndTheGroupGoesOn) {
  expect_success(run_ranks("ucx_finds_wrong_calls", env_ranks(2)));
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
  EXPECT_TRUE(work->getFuture()->completed());
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
  VCall call;
  call.fill = [own = world.rank](int32_t, int64_t offset, StridedSpan to, int64_t to_offset,
                                 int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 8) {
      const int64_t value = (offset + at) / 8 * 10 + own;
      std::memcpy(to.data + to.layout.position(to_offset + at), &value, 8);
    }
  };
  backend.startCoalescing();
  backend.all_gather_v(gathered, input, {kRows, kRows}, 0, {});
  backend.all_to_all_v(exchanged, sizes, 0, at::empty({kRows}, at::kLong), sizes, 0,
                       std::move(call));
  backend.endCoalescing()->wait();
  EXPECT_TRUE(at::equal(gathered.slice(0, 0, kRows), at::ones({kRows}, at::kLong)));
  EXPECT_TRUE(at::equal(gathered.slice(0, kRows), at::full({kRows}, 2, at::kLong)));
  EXPECT_TRUE(at::equal(exchanged, at::arange(kRows) * 10 + other));
}

TEST(UcxBackendTest, WhatIsPutTogetherAsItIsSentCanBeCoalesced) {
  expect_success(run_ranks("ucx_coalesces_what_is_put_together", env_ranks(2)));
}

// Calls that differ on another rank alone: to a rank that is not the root its own piece looks alike.
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
      backend.gather_v(gathered, piece, sizes, 0, root, {})->wait();
      EXPECT_TRUE(!is_root || at::equal(gathered, whole));
      const at::Tensor scattered = at::zeros_like(piece);
      backend.scatter_v(scattered, is_root ? whole : at::Tensor(), sizes, 0, root, {})->wait();
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
  EXPECT_EQ(messages_of([&] { backend.all_gather_v(gathered, own, sizes, 0, {})->wait(); }), 1);
  EXPECT_EQ(backend.engine()->counters().copied_bytes - copied, own.nbytes());
  EXPECT_TRUE(at::equal(gathered, whole));
  EXPECT_EQ(messages_of([&] { backend.reduce_scatter_v(sum, whole, sizes, 0, {})->wait(); }), 1);
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
  VCall call;
  call.fill = [own](int32_t, int64_t offset, StridedSpan to, int64_t to_offset, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 8) {
      const int64_t value = (offset + at) / 8 * 10 + own;
      std::memcpy(to.data + to.layout.position(to_offset + at), &value, 8);
    }
  };
  backend
      .all_to_all_v(result, received, 1, at::empty({kRows, kSent}, at::kLong), sent, 1,
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

// Sizes of an all-to-all are not compared: who expects other bytes than come says so, and nothing
// is written where it does not belong.
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
    const auto exchange = [&] { group->alltoall_base(output, input, from, to)->wait(); };
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

TEST(TensorLayoutTest, SlicesAlongOneDimensionAreRows) {
  const Tensor tensor = at::zeros({4, 6, 5}, at::kFloat);
  const auto layout_of = [](const Tensor& view) {
    const auto span = span_of(view);
    return span
               ? std::vector<int64_t>{span->layout.rows, span->layout.row_bytes, span->layout.pitch}
               : std::vector<int64_t>{};
  };
  using Layout = std::vector<int64_t>;
  EXPECT_EQ(layout_of(tensor), (Layout{1, 480, 480}));
  EXPECT_EQ(layout_of(tensor.narrow(0, 1, 2)), (Layout{1, 240, 240}));
  EXPECT_EQ(layout_of(tensor.narrow(1, 1, 2)), (Layout{4, 40, 120}));
  EXPECT_EQ(layout_of(tensor.narrow(2, 1, 2)), (Layout{24, 8, 20}));
  EXPECT_EQ(layout_of(tensor.select(1, 2)), (Layout{4, 20, 120}));
  EXPECT_EQ(layout_of(tensor.narrow(1, 1, 2).narrow(2, 0, 3)), Layout{});
  EXPECT_EQ(layout_of(tensor.transpose(0, 1)), Layout{});
  EXPECT_EQ(layout_of(at::zeros({1}).expand({4})), Layout{});
  EXPECT_EQ(span_of(at::zeros({3, 0}))->data, nullptr);
  EXPECT_EQ(slice_layout(tensor.sizes(), 1, 2, 4).pitch, 120);
  EXPECT_EQ(span_of(tensor.narrow(2, 1, 2))->data,
            static_cast<std::byte*>(tensor.data_ptr()) + sizeof(float));
}

TEST(StoreAddressBookTest, FindsARecordThatIsPublishedLaterAndSaysWhichIsMissing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StoreAddressBook first(store, std::chrono::seconds(60)), hasty(store, milliseconds(1));
  ucx::AddressRecord record;
  record.transport_address = std::string("a\0b", 3);
  EXPECT_EQ(first.publish(0, record), std::nullopt);
  record.process = 2;
  EXPECT_NE(first.publish(0, record), std::nullopt);

  std::promise<std::string> address, reason;
  first.look_up({1}, [&](int rank, std::optional<ucx::AddressRecord> found, const std::string&) {
    EXPECT_EQ(rank, 1);
    address.set_value(found->transport_address);
  });
  hasty.look_up({2}, [&](int, std::optional<ucx::AddressRecord> found, const std::string& why) {
    EXPECT_FALSE(found);
    reason.set_value(why);
  });
  EXPECT_NE(reason.get_future().get().find("no address within"), std::string::npos);
  EXPECT_EQ(StoreAddressBook(store, milliseconds(1)).publish(1, record), std::nullopt);
  EXPECT_EQ(address.get_future().get(), record.transport_address);
  // Of several those that are there are found, though one never comes.
  std::promise<int> there;
  first.look_up({1, 7}, [&](int rank, auto found, const std::string&) {
    EXPECT_TRUE(found);
    there.set_value(rank);
  });
  EXPECT_EQ(there.get_future().get(), 1);
  // Nobody is called after stop().
  first.look_up({5}, [](int, auto, const std::string&) { ADD_FAILURE(); });
  first.stop();
}

TEST(StoreAddressBookTest, AsksOnceForAllRanks) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::seconds(60)),
                        std::chrono::seconds(60));
  ucx::AddressRecord record;
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const int rank : ranks) EXPECT_EQ(book.publish(rank, record), std::nullopt);
  const int64_t before = agent->store_calls();
  std::atomic<size_t> found = 0;
  std::promise<void> all;
  book.look_up(ranks, [&](int, std::optional<ucx::AddressRecord> at, const std::string& why) {
    EXPECT_TRUE(at) << why;
    if (++found == ranks.size()) all.set_value();
  });
  all.get_future().wait();
  EXPECT_EQ(agent->store_calls() - before, 1);
}

// As on a busy host: a question for each that is missing, again and again, would be P * P calls.
TEST(StoreAddressBookTest, RanksThatComeOneAfterTheOtherCostFewCalls) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::seconds(60)),
                        std::chrono::seconds(60));
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  std::atomic<size_t> found = 0;
  std::promise<void> all;
  book.look_up(ranks, [&](int, std::optional<ucx::AddressRecord> at, const std::string& why) {
    EXPECT_TRUE(at) << why;
    if (++found == ranks.size()) all.set_value();
  });
  for (const int rank : ranks) {
    std::this_thread::sleep_for(milliseconds(80));
    EXPECT_EQ(book.publish(rank, ucx::AddressRecord()), std::nullopt);
  }
  all.get_future().wait();
  // Theirs, the wait, and once those that were there.
  EXPECT_LE(agent->store_calls(), 8 + 1 + 10);
}

// Far within the time of a call that nobody ends.
constexpr std::chrono::seconds kSoon(8);

TEST(StoreAddressBookTest, AQuestionThatIsLateWaitsForNoOther) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::minutes(10)),
                        std::chrono::minutes(10));
  EXPECT_EQ(book.publish(0, ucx::AddressRecord()), std::nullopt);
  for (int rank = 1; rank <= 4; ++rank) {
    book.look_up({rank}, [](int, auto, const std::string&) { ADD_FAILURE(); });
    while (agent->store_calls() < 1 + rank) std::this_thread::yield();
  }
  std::promise<void> answered;
  book.look_up({0}, [&](int, auto found, const std::string& why) {
    EXPECT_TRUE(found) << why;
    answered.set_value();
  });
  EXPECT_EQ(answered.get_future().wait_for(kSoon), std::future_status::ready);
  std::future<void> stopped = std::async([&] { book.stop(); });
  EXPECT_EQ(stopped.wait_for(kSoon), std::future_status::ready);
}

}  // namespace
}  // namespace meshrun
