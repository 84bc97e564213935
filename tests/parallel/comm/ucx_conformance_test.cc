// Every collective of c10d on the ucx backend: real rank processes against a loop in one process.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/parallel/comm/ucx_world.h"
#include "third_party/libtorch/shims.h"
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
    Tensor expected = sum_in_rank_order(all, true, op.op_ == c10d::ReduceOp::AVG ? world_.size : 1);
    if (op.op_ == c10d::ReduceOp::MAX) {
      expected = all[0];
      for (const Tensor& tensor : all) expected = at::maximum(expected, tensor);
    }
    expect_same(tensors[0], expected, "all_reduce");
  }

  void all_reduce_coalesced() {
    Tensors tensors = {own(1, counts_[0]), own(2, total_)};
    world_.group->allreduce_coalesced(tensors)->wait();
    expect_same(tensors[0], sum_in_rank_order(of_ranks(1, counts_[0])),
                "allreduce_coalesced, first");
    expect_same(tensors[1], sum_in_rank_order(of_ranks(2, total_)), "allreduce_coalesced, second");
  }

  void reduce() {
    for (int root = 0; root < world_.size; ++root) {
      Tensors tensors = {own(3, total_)};
      c10d::ReduceOptions options;
      options.rootRank = root;
      world_.group->reduce(tensors, options)->wait();
      expect_same(tensors[0],
                  world_.rank == root ? sum_in_rank_order(of_ranks(3, total_)) : own(3, total_),
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
    libtorch::all_gather_single(*world_.group, output, input)->wait();
    expect_same(output, at::cat(of_ranks(5, count)), "_allgather_base");
    // In place.
    Tensor both = unwritten(count * world_.size, type_);
    Tensor mine = both.narrow(0, world_.rank * count, count);
    mine.copy_(own(6, count));
    libtorch::all_gather_single(*world_.group, both, mine)->wait();
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
    libtorch::all_gather_single_coalesced(*world_.group, into, from)->wait();
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
    expect_same(outputs[0], sum_in_rank_order(of_ranks(world_.rank, counts_[world_.rank])),
                "reduce_scatter");
  }

  void reduce_scatter_base() {
    const int64_t count = counts_[0];
    Tensor output = unwritten(count, type_), input = own(12, count * world_.size);
    const Tensor expected =
        sum_in_rank_order(of_ranks(12, count * world_.size)).narrow(0, world_.rank * count, count);
    libtorch::reduce_scatter_single(*world_.group, output, input)->wait();
    expect_same(output, expected, "_reduce_scatter_base");
    Tensors outputs = {unwritten(count, type_), unwritten(3, type_)};
    Tensors inputs = {input, own(13, 3 * world_.size)};
    libtorch::reduce_scatter_single_coalesced(*world_.group, outputs, inputs)->wait();
    expect_same(outputs[0], expected, "reduce_scatter_tensor_coalesced");
    expect_same(outputs[1],
                sum_in_rank_order(of_ranks(13, 3 * world_.size)).narrow(0, world_.rank * 3, 3),
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
    libtorch::all_to_all_single(*world_.group, output, input, from, to)->wait();
    expect_same(output, at::cat(expected), "alltoall_base");
    world_.group->alltoall(received, sent)->wait();
    for (int rank = 0; rank < world_.size; ++rank) {
      expect_same(received[rank], expected[rank], "alltoall");
    }
    // Equal shares.
    std::vector<int64_t> none;
    input = own(14, counts_[0] * world_.size);
    output = unwritten(counts_[0] * world_.size, type_);
    libtorch::all_to_all_single(*world_.group, output, input, none, none)->wait();
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

}  // namespace
}  // namespace meshrun
