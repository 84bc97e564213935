// Which of NCCL's calls the collectives make, with which dtypes, and what they cost beside them.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/v_collectives_of.h"
#include "tests/parallel/support/nccl_stand_in.h"
#include "tests/parallel/support/v_calls.h"

namespace meshrun {
namespace {

using at::Tensor;
using c10d::ReduceOp;
using Calls = std::vector<std::string>;
using Extents = std::vector<int64_t>;

int64_t sum(const Extents& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// The operators of ATen's that this thread calls while it lives.
class OperatorCounter {
 public:
  OperatorCounter() {
    count_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&OperatorCounter::start).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCounter() { at::removeCallback(handle_); }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  int64_t count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) {
    ++count_;
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
  inline static thread_local int64_t count_ = 0;
};

class CallsOfNcclTest : public ::testing::Test {
 protected:
  // Rank 1's piece of [2, 3, 4] with `sizes` along dim, in memory of each layout, gathered.
  Calls gather(const Extents& sizes, int64_t dim, bool is_strided, bool async = false) {
    Extents shape = {2, 3, 4};
    shape[static_cast<size_t>(dim)] = sum(sizes);
    const auto laid = [&](const Tensor& tensor) {
      return is_strided ? at::stack({tensor, tensor}, -1).select(-1, 0) : tensor;
    };
    const int64_t count = at::zeros(shape).numel();
    const Tensor all = at::arange(1, count + 1, at::kShort).view(shape);
    const Tensor own = all.narrow(dim, sizes[0], sizes[1]);
    const Tensor output = laid(at::full_like(all, -1));
    CollectiveSpec call;
    call.async = async;
    VCollectivesOf collectives(group(sizes.size()), c10::DeviceType::CPU);
    const auto work = all_gather_v(*collectives, output, laid(own.contiguous()), sizes, dim, call);
    work->wait();
    // Its own piece, and zeros of the others.
    Tensor expected = at::zeros_like(all);
    expected.narrow(dim, sizes[0], sizes[1]).copy_(own);
    EXPECT_TRUE(at::equal(output, expected)) << output;
    return NcclStandIn::of(group_).calls();
  }
  Calls reduce_scatter(const Extents& sizes, at::ScalarType type, bool use_fp32 = true,
                       int64_t dim = 0) {
    Extents shape = {2, 2};
    shape[static_cast<size_t>(dim)] = sum(sizes);
    const Tensor all = at::arange(at::zeros(shape).numel()).view(shape).to(type);
    const Tensor own = all.narrow(dim, sizes[0], sizes[1]);
    const Tensor output = at::empty(own.sizes(), own.options());
    CollectiveSpec call;
    call.use_fp32 = use_fp32;
    VCollectivesOf collectives(group(sizes.size()), c10::DeviceType::CPU);
    reduce_scatter_v(*collectives, output, all, sizes, dim, call)->wait();
    EXPECT_TRUE(at::equal(output, own)) << c10::toString(type) << output;
    return NcclStandIn::of(group_).calls();
  }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group(size_t size) {
    group_ = NcclStandIn::make_group(1, static_cast<int>(size));
    NcclStandIn::of(group_).take_stream_calls(takes_stream_calls_);
    return group_;
  }
  // Rank 1 of 2 sends its first slices to rank 0 and keeps the others.
  Calls all_to_all(const Tensor& input, const Extents& sizes, int64_t dim) {
    const Tensor output = at::empty_like(input);
    VCollectivesOf collectives(group(2), c10::DeviceType::CPU);
    all_to_all_v(*collectives, output, sizes, dim, input, sizes, dim, {})->wait();
    EXPECT_TRUE(
        at::equal(output.narrow(dim, sizes[0], sizes[1]), input.narrow(dim, sizes[0], sizes[1])));
    EXPECT_EQ(output.narrow(dim, 0, sizes[0]).abs().sum().item<double>(), 0);
    return NcclStandIn::of(group_).calls();
  }

  bool takes_stream_calls_ = false;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

// Layouts are a rank's own matter: one that called something else would wait for ever.
TEST_F(CallsOfNcclTest, EqualPiecesAreOneAllGatherWhateverTheirLayout) {
  for (const bool async : {false, true}) {
    for (const bool is_strided : {false, true}) {
      EXPECT_EQ(gather({2, 2, 2}, 0, is_strided, async), Calls{"all_gather Byte 48 of 144"});
      EXPECT_EQ(gather({2, 2, 2}, 1, is_strided, async), Calls{"all_gather Byte 32 of 96"});
      EXPECT_EQ(gather({1, 1, 1}, 2, is_strided, async), Calls{"all_gather Byte 12 of 36"});
    }
  }
}

TEST_F(CallsOfNcclTest, VeryUnevenPiecesAreOneBroadcastEach) {
  for (const bool async : {false, true}) {
    for (const bool is_strided : {false, true}) {
      for (int64_t dim = 0; dim < 3; ++dim) {
        const int64_t bytes = 2 * 24 / Extents{2, 3, 4}[static_cast<size_t>(dim)];
        EXPECT_EQ(gather({1, 2, 0, 6}, dim, is_strided, async),
                  (Calls{"broadcast Byte " + std::to_string(bytes) + " from 0",
                         "broadcast Byte " + std::to_string(2 * bytes) + " from 1",
                         "broadcast Byte " + std::to_string(6 * bytes) + " from 3"}));
      }
    }
  }
}

TEST_F(CallsOfNcclTest, NearlyEqualOnesAreSent) {
  for (const bool is_strided : {false, true}) {
    EXPECT_EQ(gather({4, 4, 3}, 0, is_strided),
              (Calls{"recv Byte 96 from 0", "send Byte 96 to 2", "recv Byte 72 from 2",
                     "send Byte 96 to 0"}));
  }
}

TEST_F(CallsOfNcclTest, NothingIsCalledWhereNothingTravels) {
  EXPECT_EQ(gather({0, 0, 0}, 0, false), Calls{});
  EXPECT_EQ(reduce_scatter({0, 0, 0}, at::kFloat), Calls{});
}

TEST_F(CallsOfNcclTest, EqualPiecesAreOneReduceScatterWhereTheBackendAddsThem) {
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kFloat), Calls{"reduce_scatter Float 4 of 12"});
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kLong, true, 1), Calls{"reduce_scatter Long 4 of 12"});
  // Complex numbers are pairs.
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kComplexFloat), Calls{"reduce_scatter Float 8 of 24"});
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kComplexDouble, true, 1),
            Calls{"reduce_scatter Double 8 of 24"});
  // Added in float32, or by the backend as they are.
  EXPECT_EQ(reduce_scatter({2, 2}, at::kBFloat16),
            (Calls{"recv Byte 8 from 0", "send Byte 8 to 0"}));
  EXPECT_EQ(reduce_scatter({2, 2}, at::kBFloat16, false), Calls{"reduce_scatter BFloat16 4 of 8"});
  // NCCL has no int16, and its sum of bools is this library's.
  EXPECT_EQ(reduce_scatter({2, 2}, at::kShort), (Calls{"recv Byte 8 from 0", "send Byte 8 to 0"}));
  EXPECT_EQ(reduce_scatter({1, 2}, at::kFloat), (Calls{"recv Byte 16 from 0", "send Byte 8 to 0"}));
}

TEST_F(CallsOfNcclTest, InRankOrderOnlyExactSumsAreTheBackends) {
  setenv("MESHRUN_REDUCTION_ORDER", "rank", 1);
  EXPECT_EQ(reduce_scatter({2, 2}, at::kFloat),
            (Calls{"recv Byte 16 from 0", "send Byte 16 to 0"}));
  EXPECT_EQ(reduce_scatter({2, 2}, at::kInt), Calls{"reduce_scatter Int 4 of 8"});
  setenv("MESHRUN_REDUCTION_ORDER", "ring", 1);
  EXPECT_THROW(reduce_scatter({2, 2}, at::kFloat), BackendError);
  unsetenv("MESHRUN_REDUCTION_ORDER");
}

// The same functions of NCCL, without c10d's part.
TEST_F(CallsOfNcclTest, WhatIsWaitedForAtOnceIsOnlyQueued) {
  takes_stream_calls_ = true;
  for (const bool is_strided : {false, true}) {
    EXPECT_EQ(gather({2, 2, 2}, 0, is_strided), Calls{"queued all_gather 48 of 144"});
    EXPECT_EQ(gather({2, 2, 2}, 1, is_strided), Calls{"queued all_gather 32 of 96"});
    EXPECT_EQ(gather({1, 2, 0, 6}, 0, is_strided),
              (Calls{"queued broadcast 24 from 0", "queued broadcast 48 from 1",
                     "queued broadcast 144 from 3"}));
    EXPECT_EQ(gather({4, 4, 3}, 0, is_strided),
              Calls{"queued 96 to 0 96 from 0 96 to 1 96 from 1 96 to 2 72 from 2"});
    EXPECT_EQ(gather({2, 2, 2}, 0, is_strided, /*async=*/true), Calls{"all_gather Byte 48 of 144"});
  }
  EXPECT_EQ(gather({0, 0, 0}, 0, false), Calls{});
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kFloat), Calls{"queued reduce_scatter Float 4"});
  EXPECT_EQ(reduce_scatter({2, 2, 2}, at::kComplexFloat), Calls{"queued reduce_scatter Float 8"});
  EXPECT_EQ(reduce_scatter({2, 2}, at::kBFloat16), Calls{"queued 8 to 0 8 from 0"});
}

// A longer one's copy is a launch of its own.
TEST_F(CallsOfNcclTest, ASmallOwnSliceTravelsWithTheOthers) {
  const Tensor input = at::rand({5, 4});
  EXPECT_EQ(all_to_all(input, {2, 3}, 0), (Calls{"recv Byte 32 from 0", "send Byte 32 to 0"}));
  takes_stream_calls_ = true;
  EXPECT_EQ(all_to_all(input, {2, 3}, 0), Calls{"queued 32 to 0 32 from 0 48 to 1 48 from 1"});
  EXPECT_EQ(all_to_all(input, {1, 3}, 1), Calls{"queued 20 to 0 20 from 0 60 to 1 60 from 1"});
  EXPECT_EQ(all_to_all(input, {5, 0}, 0), Calls{"queued 80 to 0 80 from 0"});
  constexpr int64_t kMany = 64 << 10;  // float32: 256 KiB
  EXPECT_EQ(all_to_all(at::rand({kMany + 1}), {1, kMany}, 0),
            Calls{"queued 4 to 0 4 from 0 262144 to 1 262144 from 1"});
  EXPECT_EQ(all_to_all(at::rand({kMany + 2}), {1, kMany + 1}, 0), Calls{"queued 4 to 0 4 from 0"});
}

struct Padding {
  virtual ~Padding() = default;
  char bytes[64] = {};
};
// Its StreamCalls lie elsewhere in the object.
struct OtherStandIn : Padding, NcclStandIn {
  using NcclStandIn::NcclStandIn;
};

TEST_F(CallsOfNcclTest, BackendsOfOneThreadMayBeOfSeveralTypes) {
  auto other = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
  const auto backend = c10::make_intrusive<OtherStandIn>(0, 2);
  backend->take_stream_calls(true);
  other->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  other->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM, backend);
  takes_stream_calls_ = true;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(gather({2, 2}, 0, false), Calls{"queued all_gather 48 of 96"});
    const Tensor own = at::ones({2, 3}), all = at::empty({4, 3});
    all_gather_v(*VCollectivesOf(other, c10::DeviceType::CPU), all, own, {2, 2}, 0, {})->wait();
    EXPECT_EQ(backend->calls(), Calls{"queued all_gather 24 of 48"});
  }
}

// The views of what travels are made without operators, whose number does not grow with the ranks'.
TEST_F(CallsOfNcclTest, ManyRanksCostNoMoreOperatorsThanTwo) {
  const auto operators = [&](int64_t size, const auto& call) {
    const auto made = NcclStandIn::make_group(1, static_cast<int>(size));
    VCollectivesOf collectives(made, c10::DeviceType::CPU);
    const OperatorCounter counter;
    call(*collectives, size);
    return counter.count();
  };
  const auto repeated = [](int64_t size, int64_t value) {
    return Extents(static_cast<size_t>(size), value);
  };
  const auto all_to_all = [&](VCollectives& collectives, int64_t size) {
    const Tensor input = at::ones({2 * size, 3}), output = at::empty({2 * size, 3});
    all_to_all_v(collectives, output, repeated(size, 2), 0, input, repeated(size, 2), 0, {})
        ->wait();
  };
  const auto scatter = [&](VCollectives& collectives, int64_t size) {
    const Tensor input = at::ones({2 * size, 3}), output = at::empty({2, 3});
    scatter_v(collectives, output, input, repeated(size, 2), 0, 1, {})->wait();
  };
  const auto gather_equal = [&](VCollectives& collectives, int64_t size) {
    const Tensor input = at::ones({2, 3}), output = at::empty({2 * size, 3});
    all_gather_v(collectives, output, input, repeated(size, 2), 0, {})->wait();
  };
  EXPECT_EQ(operators(8, all_to_all), operators(2, all_to_all));
  EXPECT_EQ(operators(8, scatter), operators(2, scatter));
  EXPECT_EQ(operators(8, gather_equal), operators(2, gather_equal));
}

class AllReduceOnNcclTest : public ::testing::TestWithParam<bool> {
 protected:
  // In a world of two; the other rank has zeros.
  Tensor reduce(const Tensor& tensor, ReduceOp::RedOpType op, const std::string& expected_call) {
    const auto group = NcclStandIn::make_group(0, 2);
    CollectiveSpec call;
    call.async = GetParam();
    const Tensor reduced = detail::all_reduce(group, tensor, op, call).wait();
    EXPECT_TRUE(reduced.is_same(tensor));
    EXPECT_EQ(NcclStandIn::of(group).calls(), Calls{expected_call});
    return reduced;
  }
};

TEST_P(AllReduceOnNcclTest, AveragesAndWideSumsComeBackWithOrWithoutAWork) {
  EXPECT_TRUE(at::equal(reduce(at::full({3}, 4.0f), ReduceOp::AVG, "all_reduce Float 3"),
                        at::full({3}, 2.0f)));
  EXPECT_TRUE(at::equal(reduce(at::full({3}, 6.0, at::kHalf), ReduceOp::AVG, "all_reduce Float 3"),
                        at::full({3}, 3.0, at::kHalf)));
  const Tensor columns = at::ones({2, 3}).t();
  EXPECT_TRUE(
      at::equal(reduce(columns, ReduceOp::AVG, "all_reduce Float 6"), at::full({3, 2}, 0.5f)));
}

TEST_P(AllReduceOnNcclTest, Int16AndComplexNumbersTravelAsWhatNcclHas) {
  const Tensor shorts = at::tensor({-32768, -1, 5}, at::kShort);
  EXPECT_TRUE(at::equal(reduce(shorts.clone(), ReduceOp::SUM, "all_reduce Int 3"), shorts));
  EXPECT_TRUE(at::equal(reduce(shorts.clone(), ReduceOp::MIN, "all_reduce Int 3"), shorts));
  const Tensor numbers = at::complex(at::tensor({1.0, 2.0}), at::tensor({3.0, -4.0}));
  EXPECT_TRUE(at::equal(reduce(numbers.clone(), ReduceOp::SUM, "all_reduce Double 4"), numbers));
  EXPECT_TRUE(
      at::equal(reduce(numbers.clone(), ReduceOp::AVG, "all_reduce Double 4"), numbers / 2));
  // In memory they are the conjugates.
  EXPECT_TRUE(at::equal(reduce(numbers.clone().conj(), ReduceOp::SUM, "all_reduce Double 4"),
                        numbers.conj().resolve_conj()));
  // As pairs they have neither a product nor an order.
  const auto group = NcclStandIn::make_group(0, 2);
  EXPECT_THROW(detail::all_reduce(group, numbers.clone(), ReduceOp::PRODUCT),
               CollectiveArgumentError);
}

INSTANTIATE_TEST_SUITE_P(SynchronousAndNot, AllReduceOnNcclTest, ::testing::Bool());

}  // namespace
}  // namespace meshrun
