#include "parallel/manager/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace meshrun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Ranks as threads of this process.
class Threads {
 public:
  explicit Threads(int size) : size_(size), barrier_(size) {}

  template <typename Call>
  void run(const Call& call) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank, &call] { call(bootstrap(rank)); });
    }
  }

 private:
  Bootstrap bootstrap(int rank) {
    Bootstrap own{.rank = rank, .world_size = size_, .local_rank = rank, .local_world_size = size_};
    own.all_gather = [this, rank](const void* mine, void* all, size_t bytes) {
      if (rank == 0) memory_.resize(bytes * static_cast<size_t>(size_));
      barrier_.arrive_and_wait();
      std::memcpy(memory_.data() + bytes * static_cast<size_t>(rank), mine, bytes);
      barrier_.arrive_and_wait();
      std::memcpy(all, memory_.data(), memory_.size());
      barrier_.arrive_and_wait();
    };
    own.broadcast = [own, this](void* data, size_t bytes) {
      std::vector<char> all(bytes * static_cast<size_t>(size_));
      own.all_gather(data, all.data(), bytes);
      std::memcpy(data, all.data(), bytes);
    };
    return own;
  }

  const int size_;
  std::barrier<> barrier_;
  std::vector<char> memory_;
};

TEST(BootstrapTest, EveryRankHearsEveryReport) {
  Threads(3).run([](const Bootstrap& bootstrap) {
    const int rank = bootstrap.rank;
    const BootstrapReport own{rank, 10 * rank, 2 * rank, rank - 1,
                              rank == 1 ? std::string(600, 'x') : ""};
    const std::vector<BootstrapReport> all = exchange_reports(bootstrap, own);
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[0], (BootstrapReport{0, 0, 0, -1, ""}));
    EXPECT_EQ(all[1].problem, std::string(503, 'x'));  // as much as there is room for
    EXPECT_EQ(all[2], (BootstrapReport{2, 20, 4, 1, ""}));
  });
}

TEST(BootstrapTest, EveryRankHearsWhereRankZeroListens) {
  Threads(2).run([](const Bootstrap& bootstrap) {
    const BootstrapMeeting zeros{"", 4711, "a token", {"10.0.0.1", "fd00::1"}};
    const BootstrapMeeting heard =
        exchange_meeting(bootstrap, bootstrap.rank == 0 ? zeros : BootstrapMeeting());
    EXPECT_EQ(heard, zeros);
  });
}

TEST(BootstrapTest, TheFirstAddressThatAllReachIsTaken) {
  Threads(3).run([](const Bootstrap& bootstrap) {
    const std::vector<std::string> addresses = {"10.0.0.1", "10.1.0.1", "10.2.0.1"};
    const auto agreed =
        agree_on_address(bootstrap, addresses, {bootstrap.rank != 1, true, bootstrap.rank == 0});
    ASSERT_TRUE(agreed.ok()) << agreed.status();
    EXPECT_EQ(*agreed, "10.1.0.1");
  });
}

TEST(BootstrapTest, WithoutACommonAddressAllNameTheRankThatReachedLeast) {
  Threads(3).run([](const Bootstrap& bootstrap) {
    const bool is_apart = bootstrap.rank == 1;
    const auto agreed = agree_on_address(bootstrap, {"10.0.0.1"}, {!is_apart});
    ASSERT_FALSE(agreed.ok());
    EXPECT_THAT(std::string(agreed.status().message()),
                AllOf(HasSubstr("rank 1 reached 0 of 1"), HasSubstr("10.0.0.1")));
  });
}

TEST(BootstrapTest, NumbersThatContradictEachOtherAreAProblem) {
  Bootstrap bootstrap;
  bootstrap.broadcast = [](void*, size_t) {};
  EXPECT_THAT(problem_of(bootstrap), HasSubstr("no function"));
  bootstrap.all_gather = [](const void*, void*, size_t) {};
  EXPECT_THAT(problem_of(bootstrap), IsEmpty());
  bootstrap.rank = 1;
  EXPECT_THAT(problem_of(bootstrap), HasSubstr("rank 1 of a world of 1"));
  bootstrap.rank = 0;
  bootstrap.local_world_size = 2;
  EXPECT_THAT(problem_of(bootstrap), HasSubstr("local rank 0 of 2 in a world of 1"));
  bootstrap.local_world_size = 1;
  bootstrap.node_rank = 3;
  EXPECT_THAT(problem_of(bootstrap), HasSubstr("node 3"));
}

}  // namespace
}  // namespace meshrun
