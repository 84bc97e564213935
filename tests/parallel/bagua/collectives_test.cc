// Bagua's collectives in real rank processes, against loops in one process.
#include <ATen/ATen.h>

#include <chrono>
#include <thread>

#include "parallel/base/collective_errors.h"
#include "parallel/base/no_collectives.h"
#include "tests/parallel/bagua/support.h"
#include "tests/parallel/support/tensor_oracle.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::bagua {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr at::ScalarType kTypes[] = {
    at::kFloat, at::kDouble, at::kHalf,  at::kBFloat16, at::kInt,          at::kLong,
    at::kByte,  at::kBool,   at::kShort, at::kChar,     at::kComplexFloat, at::kComplexDouble};

// What `rank` has; sums of floats depend on the order.
Tensor content(int rank, int64_t count, at::ScalarType type) {
  const Tensor numbers = (at::arange(count, at::kDouble) * 7 + rank * 13).remainder(23) - 11;
  if (type == at::kBool) return numbers.remainder(3) == 0;
  if (type == at::kByte) return (numbers + 11).to(type);
  const Tensor real = at::isIntegralType(type, false) ? numbers : numbers * 0.3711 + rank * 1.123;
  if (at::isComplexType(type)) return at::complex(real, -real * 0.77).to(type);
  return real.to(type);
}

class Conformance {
 public:
  Conformance(const Job& job, at::ScalarType type, int64_t count)
      : size_(job.size), rank_(job.rank), type_(type), count_(count) {
    for (int rank = 0; rank < size_; ++rank) {
      all_.push_back(content(rank, count, type));
      wide_.push_back(content(rank, count * size_, type));
    }
  }

  void reductions() {
    Tensor recv = unwritten(count_);
    allreduce(own(), recv);
    expect_same(recv, sum_in_rank_order(all_), "allreduce");
    Tensor tensor = own();
    allreduce_inplace(tensor);
    expect_same(tensor, sum_in_rank_order(all_), "allreduce_inplace");
    tensor = at::conj_physical(own()).conj();
    allreduce(tensor, tensor);
    expect_same(tensor, sum_in_rank_order(all_), "allreduce of a conjugate view to itself");
    tensor = at::stack({own(), own()}, 1).select(1, 0);
    allreduce(tensor, tensor);
    expect_same(tensor, sum_in_rank_order(all_), "allreduce of a strided view to itself");
    Tensors tensors = {own(), own_wide()};
    allreduce_coalesced_inplace(tensors);
    expect_same(tensors[0], sum_in_rank_order(all_), "allreduce_coalesced_inplace, first");
    expect_same(tensors[1], sum_in_rank_order(wide_), "allreduce_coalesced_inplace, second");

    for (int dst = 0; dst < size_; ++dst) {
      recv = unwritten(count_);
      reduce(own(), recv, dst);
      expect_same(recv, rank_ == dst ? sum_in_rank_order(all_) : unwritten(count_), "reduce");
      tensor = own();
      reduce_inplace(tensor, dst);
      expect_same(tensor, rank_ == dst ? sum_in_rank_order(all_) : own(), "reduce_inplace");
    }

    recv = unwritten(count_);
    reduce_scatter(own_wide(), recv);
    expect_same(recv, block(sum_in_rank_order(wide_), rank_), "reduce_scatter");
    tensor = own_wide();
    reduce_scatter_inplace(tensor);
    Tensor expected = own_wide();
    block(expected, rank_).copy_(block(sum_in_rank_order(wide_), rank_));
    expect_same(tensor, expected, "reduce_scatter_inplace");
  }

  void moves() {
    const Tensor joined = at::cat(all_);
    Tensor recv = unwritten(count_ * size_);
    allgather(own(), recv);
    expect_same(recv, joined, "allgather");
    Tensor tensor = unwritten(count_ * size_);
    block(tensor, rank_).copy_(own());
    allgather_inplace(tensor);
    expect_same(tensor, joined, "allgather_inplace");

    recv = unwritten(count_ * size_);
    alltoall(own_wide(), recv);
    Tensors from_ranks;
    for (const Tensor& theirs : wide_) from_ranks.push_back(block(theirs, rank_));
    expect_same(recv, at::cat(from_ranks), "alltoall");
    tensor = own_wide();
    alltoall_inplace(tensor);
    expect_same(tensor, at::cat(from_ranks), "alltoall_inplace");

    for (int root = 0; root < size_; ++root) {
      tensor = own();
      broadcast(tensor, root);
      expect_same(tensor, all_[root], "broadcast");
      Tensors tensors = {own(), own_wide()};
      broadcast_coalesced(tensors, root);
      expect_same(tensors[0], all_[root], "broadcast_coalesced, first");
      expect_same(tensors[1], wide_[root], "broadcast_coalesced, second");

      recv = unwritten(count_ * size_);
      gather(own(), recv, root);
      expect_same(recv, rank_ == root ? joined : unwritten(count_ * size_), "gather");
      tensor = own();
      if (rank_ == root) {
        tensor = unwritten(count_ * size_);
        block(tensor, rank_).copy_(own());
      }
      gather_inplace(tensor, count_, root);
      expect_same(tensor, rank_ == root ? joined : own(), "gather_inplace");

      recv = unwritten(count_);
      scatter(own_wide(), recv, root);
      expect_same(recv, block(wide_[root], rank_), "scatter");
      tensor = rank_ == root ? own_wide() : unwritten(count_);
      scatter_inplace(tensor, count_, root);
      expect_same(tensor, rank_ == root ? own_wide() : block(wide_[root], rank_),
                  "scatter_inplace");
    }
  }

  // Rank r sends r + j elements to rank j, with a hole of one before each; they arrive in reverse
  // order of ranks, with holes of two.
  void uneven_exchange() {
    std::vector<int64_t> send_counts, send_displs, recv_counts, recv_displs;
    int64_t sent = 0, received = 0;
    for (int peer = 0; peer < size_; ++peer) {
      send_counts.push_back(rank_ + peer);
      send_displs.push_back(sent + 1);
      sent += 1 + rank_ + peer;
      recv_counts.push_back(rank_ + peer);
    }
    recv_displs.resize(size_);
    for (int peer = size_ - 1; peer >= 0; --peer) {
      recv_displs[peer] = received + 2;
      received += 2 + rank_ + peer;
    }
    const Tensor send = content(rank_, sent, type_);
    const Tensor recv = unwritten(received);
    alltoall_v(send, send_counts, send_displs, recv, recv_counts, recv_displs);
    Tensor expected = unwritten(received);
    for (int peer = 0; peer < size_; ++peer) {
      int64_t at = 1;
      for (int before = 0; before < rank_; ++before) at += 1 + peer + before;
      int64_t total = 0;
      for (int other = 0; other < size_; ++other) total += 1 + peer + other;
      expected.narrow(0, recv_displs[peer], recv_counts[peer])
          .copy_(content(peer, total, type_).narrow(0, at, recv_counts[peer]));
    }
    expect_same(recv, expected, "alltoall_v");

    const Tensor both = unwritten(std::max(sent, received));
    both.narrow(0, 0, sent).copy_(send);
    Tensor both_expected = both.clone();
    for (int peer = 0; peer < size_; ++peer) {
      both_expected.narrow(0, recv_displs[peer], recv_counts[peer])
          .copy_(expected.narrow(0, recv_displs[peer], recv_counts[peer]));
    }
    alltoall_v_inplace(both, send_counts, send_displs, recv_counts, recv_displs);
    expect_same(both, both_expected, "alltoall_v_inplace");
  }

  void messages() {
    for (int from = 0; from + 1 < size_; ++from) {
      if (rank_ == from) send(own(), from + 1);
      if (rank_ != from + 1) continue;
      const Tensor tensor = unwritten(count_);
      recv(tensor, from);
      expect_same(tensor, all_[from], "recv");
    }
    barrier();
  }

 private:
  Tensor own() const { return all_[rank_].clone(); }
  Tensor own_wide() const { return wide_[rank_].clone(); }
  Tensor unwritten(int64_t count) const { return at::full({count}, 1, type_); }
  Tensor block(const Tensor& tensor, int rank) const {
    return tensor.narrow(0, rank * count_, count_);
  }
  void expect_same(const Tensor& actual, const Tensor& expected, const char* what) const {
    EXPECT_TRUE(at::equal(actual, expected))
        << what << " of " << c10::toString(type_) << " [" << count_ << "], rank " << rank_ << ":\n"
        << actual << "\ninstead of\n"
        << expected;
  }

  const int size_, rank_;
  const at::ScalarType type_;
  const int64_t count_;
  Tensors all_, wide_;  // by rank: `count_` elements, and as many for each rank
};

// ---- every function

MESHRUN_RANK_FUNCTION(conformance) {
  const Job job;
  for (const at::ScalarType type : kTypes) {
    for (const int64_t count : {0, 1, 5, 3000}) {
      Conformance suite(job, type, count);
      suite.reductions();
      suite.moves();
      if (count > 0) suite.messages();
    }
    Conformance(job, type, 1).uneven_exchange();
  }
}

class EveryWorld : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EveryWorld, ::testing::Range(1, 5));

TEST_P(EveryWorld, GivesTheBitsOfALoopInOneProcess) {
  expect_success(run_ranks("conformance", env_ranks(GetParam())));
}

// What Gloo has of it: no bool reductions, no list all-to-all, sums in another order.
MESHRUN_RANK_FUNCTION(conformance_on_gloo) {
  const Job job;
  for (const at::ScalarType type : {at::kInt, at::kLong}) {
    Conformance suite(job, type, 6);
    suite.reductions();
    suite.moves();
    suite.messages();
  }
  // It has neither dtype: what only moves goes as bytes, what is summed as int32 and as pairs.
  for (const at::ScalarType type : {at::kShort, at::kComplexFloat}) {
    Conformance suite(job, type, 6);
    suite.reductions();
    suite.moves();
    suite.messages();
  }
  Tensor wraps = at::full({2, 3}, 30000, at::kShort).t();
  allreduce_inplace(wraps);
  EXPECT_TRUE(at::equal(wraps, at::full({3, 2}, -5536, at::kShort)))
      << "not contiguous, and past 32767";
  const std::string text = text_of<CollectiveArgumentError>(
      [] { allreduce_inplace(at::ones({3}, at::kComplexFloat), ReduceOp::PRODUCT); });
  expect_contains(text, "PRODUCT of ComplexFloat");
}

TEST(CommunicationOnGlooTest, GivesTheSame) {
  expect_success(run_ranks("conformance_on_gloo", with(env_ranks(2), "TEST_BACKEND", "gloo")));
}

// ---- Bagua's own examples and tests

// The examples that Bagua's documentation prints.
MESHRUN_RANK_FUNCTION(printed_examples) {
  const Job job;
  Tensor send_tensor = at::arange(2, at::kLong) + 1 + 2 * job.rank;
  Tensor recv_tensor = at::zeros({2}, at::kLong);
  allreduce(send_tensor, recv_tensor);
  EXPECT_TRUE(at::equal(recv_tensor, at::tensor({4, 6}, at::kLong)));

  using Complex = c10::complex<float>;
  send_tensor = at::tensor({Complex(1, 1), Complex(2, 2)}) + Complex(1, 1) * (2.0F * job.rank);
  recv_tensor = at::zeros({2}, at::kComplexFloat);
  allreduce(send_tensor, recv_tensor);
  EXPECT_TRUE(at::equal(recv_tensor, at::tensor({Complex(4, 4), Complex(6, 6)})));
}

TEST(BaguaTest, ItsPrintedExamplesHold) {
  expect_success(run_ranks("printed_examples", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(average) {
  const Job job;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kComplexFloat}) {
    Tensor sum = content(job.rank, 1000, type), mean = sum.clone();
    allreduce_inplace(sum, ReduceOp::SUM);
    allreduce_inplace(mean, ReduceOp::AVG);
    (sum.is_complex() ? at::view_as_real(sum) : sum).div_(job.size);
    EXPECT_TRUE(at::equal(mean, sum)) << c10::toString(type);
  }
  Tensor mean = at::full({3}, 65000, at::kHalf);
  allreduce_inplace(mean, ReduceOp::AVG);
  EXPECT_TRUE(at::equal(mean, at::full({3}, 65000, at::kHalf))) << "the sum overflows, not this";
  const std::string text = text_of<CollectiveArgumentError>(
      [] { allreduce_inplace(at::ones({3}, at::kInt), ReduceOp::AVG); });
  expect_contains(text, "rank 0");
}

TEST(BaguaTest, AverageIsTheSumDividedByTheNumberOfRanks) {
  expect_success(run_ranks("average", env_ranks(3)));
}

MESHRUN_RANK_FUNCTION(every_reduction) {
  const Job job;
  const Tensor own = at::tensor({1, 6, 12}, at::kInt) + job.rank;
  const auto reduced = [&](ReduceOp op) {
    Tensor result = at::zeros({3}, at::kInt);
    allreduce(own, result, op);
    return result;
  };
  // Operands: 1 and 2, 6 and 7, 12 and 13.
  EXPECT_TRUE(at::equal(reduced(ReduceOp::SUM), at::tensor({3, 13, 25}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::PRODUCT), at::tensor({2, 42, 156}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::MIN), at::tensor({1, 6, 12}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::MAX), at::tensor({2, 7, 13}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::BAND), at::tensor({0, 6, 12}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::BOR), at::tensor({3, 7, 13}, at::kInt)));
  EXPECT_TRUE(at::equal(reduced(ReduceOp::BXOR), at::tensor({3, 1, 1}, at::kInt)));
}

TEST(BaguaTest, EveryReductionIsTaken) {
  expect_success(run_ranks("every_reduction", env_ranks(2)));
}

TEST(BaguaTest, ReductionsHaveItsNumbers) {
  const std::vector<ReduceOp> all = {ReduceOp::SUM,  ReduceOp::PRODUCT, ReduceOp::MIN,
                                     ReduceOp::MAX,  ReduceOp::BOR,     ReduceOp::BAND,
                                     ReduceOp::BXOR, ReduceOp::AVG};
  std::vector<int> numbers;
  for (const ReduceOp op : all) {
    numbers.push_back(static_cast<int>(op));
    ASSERT_TRUE(to_c10d(op).has_value());
  }
  EXPECT_EQ(numbers, (std::vector<int>{0, 1, 2, 3, 7, 8, 9, 10}));
  EXPECT_EQ(to_c10d(ReduceOp::AVG)->op_, c10d::ReduceOp::AVG);
  EXPECT_EQ(to_c10d(ReduceOp::BOR)->op_, c10d::ReduceOp::BOR);
  EXPECT_FALSE(to_c10d(static_cast<ReduceOp>(4)).has_value());
}

MESHRUN_RANK_FUNCTION(aborted) {
  const Job job;
  const Communicator comm = new_group().get_global_communicator();
  allreduce_inplace(at::ones({4}), ReduceOp::SUM, comm);
  EXPECT_FALSE(comm.check_abort());
  barrier();  // else the abort may meet a rank that is still in the call above
  if (job.rank == 0) {
    comm.abort();
  } else if (job.rank == job.size - 1) {  // calls nothing that reads messages
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!comm.check_abort() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  } else {
    text_of<GroupAbortedError>([&] { allreduce_inplace(at::ones({4}), ReduceOp::SUM, comm); });
  }
  EXPECT_TRUE(comm.check_abort());
  text_of<GroupAbortedError>([&] { barrier(comm); });
  Tensor tensor = at::ones({4});
  allreduce_inplace(tensor);
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(job.size)) << "another communicator";
}

TEST(BaguaTest, AbortEndsACommunicatorOnEveryRankAndNoOther) {
  expect_success(run_ranks("aborted", env_ranks(3)));
}

// ---- tensors that are not plain

MESHRUN_RANK_FUNCTION(views) {
  const Job job;
  const int n = job.size;
  // Columns: not contiguous.
  Tensor matrix = at::full({4, 6}, -1.0F);
  Tensor columns = matrix.narrow(1, 1, 2);
  columns.copy_(at::arange(8).view({4, 2}) + job.rank);
  allreduce_inplace(columns);
  EXPECT_TRUE(
      at::equal(columns, (at::arange(8).view({4, 2}) * n + n * (n - 1) / 2).to(at::kFloat)));
  EXPECT_TRUE(at::equal(matrix.narrow(1, 3, 3), at::full({4, 3}, -1.0F)));
  Tensor gathered = at::zeros({2, 2 * n}).t();
  allgather(at::full({4}, static_cast<float>(job.rank)), gathered);
  EXPECT_TRUE(
      at::equal(gathered.contiguous().view(-1), at::arange(n).to(at::kFloat).repeat_interleave(4)));

  // The same memory, at other places.
  Tensor both = at::arange(2 * n).to(at::kFloat) + 100.0F * static_cast<float>(job.rank);
  allgather(both.narrow(0, 2 * (n - 1), 2), both);
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(both[2 * rank].item<float>(), static_cast<float>(2 * (n - 1) + 100 * rank));
  }
  Tensor tensor = at::full({2}, static_cast<float>(job.rank)).set_requires_grad(true);
  allreduce_inplace(tensor);
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(n * (n - 1) / 2));
  EXPECT_TRUE(tensor.is_leaf() && tensor.requires_grad());
}

TEST(CommunicationTest, TakesViewsAndParameters) {
  expect_success(run_ranks("views", env_ranks(3)));
}

// Rank 0 of two, of which rank 1 sends zeros. It reads as late and writes as early as a backend
// may, which with real ranks is a matter of luck.
class HastyBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  HastyBackend() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "hasty"; }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions&) override {
    outputs[0][1].zero_();
    outputs[0][0].copy_(inputs[0]);
    return {};
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions&) override {
    outputs[0].copy_(inputs[0][0]);
    sent = inputs[0][1].clone();
    return {};
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    output.zero_();
    output.add_(input.narrow(0, 0, output.numel()));
    sent = input.narrow(0, output.numel(), output.numel()).clone();
    return {};
  }

  Tensor sent;  // to rank 1
};

TEST(CommunicationTest, AnOutputMayBePartOfTheInputsMemory) {
  const auto backend = c10::make_intrusive<HastyBackend>();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM, backend);
  const Communicator comm("hasty", {0, 1}, group, std::nullopt);
  const auto floats = [](at::ArrayRef<float> values) { return at::tensor(values); };
  for (const int64_t place : {0, 2}) {
    Tensor all = floats({10, 11, 12, 13});
    const Tensor own = all.narrow(0, place, 2).clone();
    gather(all.narrow(0, place, 2), all, 0, comm);
    EXPECT_TRUE(at::equal(all, at::cat({own, floats({0, 0})}))) << "gather " << place << all;

    all = floats({10, 11, 12, 13});
    scatter(all, all.narrow(0, place, 2), 0, comm);
    EXPECT_TRUE(at::equal(all.narrow(0, place, 2), floats({10, 11}))) << "scatter " << place << all;
    const Tensor scattered = backend->sent.view(at::kFloat);  // it went as bytes
    EXPECT_TRUE(at::equal(scattered, floats({12, 13}))) << "scatter " << place << scattered;

    all = floats({10, 11, 12, 13});
    reduce_scatter(all, all.narrow(0, place, 2), ReduceOp::SUM, comm);
    EXPECT_TRUE(at::equal(all.narrow(0, place, 2), floats({10, 11})))
        << "reduce_scatter " << place << all;
    EXPECT_TRUE(at::equal(backend->sent, floats({12, 13})))
        << "reduce_scatter " << place << backend->sent;
  }
}

// ---- errors

// Every rank raises the same sentence, and the communicator lives.
template <typename ErrorType>
void expect_everywhere(const Job& job, const std::function<void(bool is_wrong)>& call,
                       const std::string& part) {
  const std::string text = text_of<ErrorType>([&] { call(job.rank == 1); });
  expect_contains(text, part);
  const Tensor hash = at::tensor({static_cast<int64_t>(std::hash<std::string>()(text))}, at::kLong);
  Tensor all = at::zeros({job.size}, at::kLong);
  allgather(hash, all);
  EXPECT_TRUE(at::equal(all, hash.expand({job.size}))) << "another sentence: " << text;
}

MESHRUN_RANK_FUNCTION(wrong_calls) {
  const Job job;
  const int64_t n = job.size;
  const auto floats = [](int64_t count) { return at::ones({count}); };
  const auto wrong = [&](const std::string& part, std::function<void(bool)> call) {
    expect_everywhere<CollectiveArgumentError>(job, call, part);
  };
  const auto differ = [&](const std::string& part, std::function<void(bool)> call) {
    expect_everywhere<CollectiveMismatchError>(job, call, part);
  };
  wrong("recv_tensor has 4 elements and must have 5",
        [&](bool is_wrong) { allreduce(floats(5), floats(is_wrong ? 4 : 5)); });
  wrong("send_tensor is Float and recv_tensor Double", [&](bool is_wrong) {
    allreduce(floats(5), at::ones({5}, is_wrong ? at::kDouble : at::kFloat));
  });
  wrong("ReduceOp(4) is not a reduction", [&](bool is_wrong) {
    allreduce_inplace(floats(5), is_wrong ? static_cast<ReduceOp>(4) : ReduceOp::SUM);
  });
  wrong("undefined tensor",
        [&](bool is_wrong) { allreduce_inplace(is_wrong ? Tensor() : floats(5)); });
  wrong("is expanded", [&](bool is_wrong) {
    allreduce_inplace(is_wrong ? at::ones({1}).expand({5}) : floats(5));
  });
  wrong("not a dense tensor", [&](bool is_wrong) {
    allreduce_inplace(is_wrong ? at::ones({5}).to_sparse() : floats(5));
  });
  wrong("has no backend for", [&](bool is_wrong) {
    allreduce_inplace(is_wrong ? at::ones({5}, at::device(at::kMeta)) : floats(5));
  });
  wrong("the list of tensors is empty", [&](bool is_wrong) {
    allreduce_coalesced_inplace(is_wrong ? Tensors() : Tensors{floats(5)});
  });
  wrong("recv_tensor has 7 elements",
        [&](bool is_wrong) { allgather(floats(2), floats(is_wrong ? 7 : 2 * n)); });
  wrong("cannot share equally",
        [&](bool is_wrong) { allgather_inplace(floats(is_wrong ? 2 * n + 1 : 2 * n)); });
  wrong("send_tensor has 7 elements",
        [&](bool is_wrong) { reduce_scatter(floats(is_wrong ? 7 : 2 * n), floats(2)); });
  wrong("cannot share equally",
        [&](bool is_wrong) { reduce_scatter_inplace(floats(is_wrong ? 2 * n + 1 : 2 * n)); });
  wrong("cannot share equally",
        [&](bool is_wrong) { alltoall_inplace(floats(is_wrong ? 2 * n + 1 : 2 * n)); });
  wrong("dst is 9", [&](bool is_wrong) { reduce_inplace(floats(2), is_wrong ? 9 : 0); });
  wrong("src is -1", [&](bool is_wrong) { broadcast(floats(2), is_wrong ? -1 : 0); });
  wrong("tensor has 2 elements and must have 3", [&](bool is_wrong) {
    gather_inplace(floats(job.rank == 0 ? 2 * n : 2), is_wrong ? 3 : 2, 0);
  });
  // The root alone sees this one.
  wrong("recv_tensor has 2 elements",
        [&](bool is_wrong) { gather(floats(2), floats(is_wrong ? 2 : 2 * n), 1); });
  wrong("send_tensor has 2 elements",
        [&](bool is_wrong) { scatter(floats(is_wrong ? 2 : 2 * n), floats(2), 1); });
  wrong("tensor has 2 elements and must have 3", [&](bool is_wrong) {
    scatter_inplace(floats(job.rank == 0 ? 2 * n : 2), is_wrong ? 3 : 2, 0);
  });
  const std::vector<int64_t> ones(n, 1), twos(n, 2);
  std::vector<int64_t> displs(n);
  for (int64_t rank = 0; rank < n; ++rank) displs[rank] = rank;
  wrong("send_counts has 1 entries", [&](bool is_wrong) {
    alltoall_v(floats(n), is_wrong ? std::vector<int64_t>{1} : ones, displs, floats(n), ones,
               displs);
  });
  wrong("are not in the tensor", [&](bool is_wrong) {
    alltoall_v(floats(is_wrong ? n - 1 : n), ones, displs, floats(n), ones, displs);
  });
  wrong("overlap", [&](bool is_wrong) {
    alltoall_v(floats(n), ones, displs, floats(2 * n), is_wrong ? twos : ones, displs);
  });

  differ("rank 1 called allreduce_inplace (all_reduce of float32 [6], sum)",
         [&](bool is_wrong) { allreduce_inplace(floats(is_wrong ? 6 : 5)); });
  // Names of the operation's own are not repeated.
  differ("rank 1 called broadcast of float32 [6], root 0",
         [&](bool is_wrong) { broadcast(floats(is_wrong ? 6 : 5)); });
  differ("rank 1 called broadcast_object (broadcast of int64 [2], root 0)", [&](bool is_wrong) {
    if (is_wrong) {
      broadcast_object(c10::IValue(1));
    } else {
      broadcast(floats(2));
    }
  });
  {
    // One rank's call may be the form in place.
    const Tensor sum = floats(5);
    if (job.rank == 1) {
      allreduce_inplace(sum);
    } else {
      allreduce(floats(5), sum);
    }
    EXPECT_TRUE(at::equal(sum, at::full({5}, static_cast<double>(n))));
  }
  differ("float64", [&](bool is_wrong) {
    allreduce_inplace(at::ones({5}, is_wrong ? at::kDouble : at::kFloat));
  });
  differ("max", [&](bool is_wrong) {
    allreduce_inplace(floats(5), is_wrong ? ReduceOp::MAX : ReduceOp::SUM);
  });
  differ("rank 1", [&](bool is_wrong) {
    allgather(floats(is_wrong ? 3 : 2), floats(is_wrong ? 3 * n : 2 * n));
  });
  differ("root 1", [&](bool is_wrong) { broadcast(floats(2), is_wrong ? 1 : 0); });
  // Rank 1 expects two elements, or none, of every other rank, which sends one; then it sends so.
  for (const int64_t other : {2, 0}) {
    std::vector<int64_t> counts(n, other);
    if (job.rank == 1) counts[1] = 1;
    std::vector<int64_t> places(n);
    for (int64_t rank = 0; rank < n; ++rank) places[rank] = 2 * rank;
    differ("rank 0 sends 1 to rank 1, which expects " + std::to_string(other), [&](bool is_wrong) {
      alltoall_v(floats(2 * n), ones, places, floats(2 * n), is_wrong ? counts : ones, places);
    });
    differ("rank 1 sends " + std::to_string(other) + " to rank 0, which expects 1",
           [&](bool is_wrong) {
             alltoall_v(floats(2 * n), is_wrong ? counts : ones, places, floats(2 * n), ones,
                        places);
           });
  }
  differ("rank 0 sends 1 to rank 1, which expects 2",
         [&](bool is_wrong) { alltoall_inplace(floats(is_wrong ? 2 * n : n)); });
  differ("broadcast", [&](bool is_wrong) {
    if (is_wrong) {
      broadcast(floats(2));
    } else {
      allreduce_inplace(floats(2));
    }
  });
}

TEST(CommunicationTest, AWrongCallOnOneRankIsTheSameErrorOnAll) {
  expect_success(run_ranks("wrong_calls", env_ranks(3)));
}

MESHRUN_RANK_FUNCTION(wrong_messages) {
  const Job job;
  expect_contains(text_of<CollectiveArgumentError>([&] { send(at::ones({2}), 5); }), "dst is 5");
  expect_contains(text_of<CollectiveArgumentError>([&] { recv(at::ones({2}), job.rank); }),
                  "src is this rank itself");
  if (job.rank == 0) send(at::ones({2}), 1);
  if (job.rank == 1) {
    EXPECT_THROW(recv(at::ones({3}), 0), c10::Error) << "the message is shorter";
  }
  barrier();
}

TEST(CommunicationTest, AWrongMessageIsAnErrorOfTheRankThatPassedIt) {
  expect_success(run_ranks("wrong_messages", env_ranks(2)));
}

// Gloo compares nothing: the rank that is wrong learns of it, before anything is sent. An alltoall
// is compared all the same.
MESHRUN_RANK_FUNCTION(wrong_on_gloo) {
  const Job job;
  expect_everywhere<CollectiveMismatchError>(
      job, [](bool is_wrong) { alltoall_inplace(at::ones({is_wrong ? 4 : 2})); },
      "rank 0 sends 1 to rank 1, which expects 2");
  expect_everywhere<CollectiveMismatchError>(
      job,
      [](bool is_wrong) { alltoall_inplace(at::ones({2}, is_wrong ? at::kDouble : at::kFloat)); },
      "rank 1 called alltoall of Double");
  expect_everywhere<CollectiveArgumentError>(
      job, [](bool is_wrong) { alltoall_inplace(at::ones({is_wrong ? 3 : 2})); },
      "cannot share equally");
  Tensor tensor = at::arange(2) + 10 * job.rank;
  alltoall_inplace(tensor);
  EXPECT_TRUE(at::equal(tensor, at::tensor({job.rank, 10 + job.rank}, at::kLong)));
  expect_contains(text_of<CollectiveArgumentError>([] { allgather(at::ones({2}), at::ones({3})); }),
                  "recv_tensor has 3 elements and must have 4");
  {
    const NoCollectives none("update()");
    expect_contains(text_of<CollectiveForbiddenError>([] { barrier(); }),
                    "barrier inside update()");
    expect_contains(text_of<CollectiveForbiddenError>([] { broadcast_object(c10::IValue(1)); }),
                    "broadcast_object inside update()");
    expect_contains(text_of<CollectiveForbiddenError>([] { new_group(); }),
                    "new_group inside update()");
  }
  barrier();
}

TEST(CommunicationOnGlooTest, AWrongArgumentIsTypedToo) {
  expect_success(run_ranks("wrong_on_gloo", with(env_ranks(2), "TEST_BACKEND", "gloo")));
}

}  // namespace
}  // namespace meshrun::bagua
