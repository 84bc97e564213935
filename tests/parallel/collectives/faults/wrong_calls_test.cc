// Wrong calls: the same error on every rank that called, soon, and the process goes on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "parallel/collectives/collectives.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/collectives/faults/raised.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Counts = std::vector<int64_t>;
using std::chrono::seconds;

constexpr int kRanks = 3;
// The one that does it wrong, where only one does.
constexpr int kWrong = 1;

struct WrongCall {
  std::string name;
  std::string kind;
  // What the sentence has to name.
  std::vector<std::string> words;
  std::function<void(bool is_wrong, int rank)> call;
};

Tensor rows(int64_t count) { return at::ones({count, 4}); }
const Counts kTwoEach = {2, 2, 2};
const std::vector<Counts> kTable = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};

void exchange_rows(const std::vector<Counts>& table, int64_t index = 0, int64_t count = 1) {
  Tensors indices(kRanks, at::zeros({1}, at::kLong));
  indices[2] = at::full({count}, index, at::kLong);
  indexed_all_to_all_v(rows(2), indices, table);
}

// In all of them no data moves: the ranks' headers tell.
const std::vector<WrongCall>& wrong_calls() {
  static const auto& calls = *new std::vector<WrongCall>{
      {"sizes disagree between ranks",
       "mismatch",
       {"rank 0", "rank 1", "[2, 2, 2]", "[2, 2, 3]"},
       [](bool is_wrong, int) {
         all_gather_v(rows(2), is_wrong ? Counts{2, 2, 3} : kTwoEach);
       }},
      {"wrong dtype on one rank",
       "mismatch",
       {"rank 0", "rank 1", "float32", "float64"},
       [](bool is_wrong, int) {
         all_gather_v(is_wrong ? rows(2).to(at::kDouble) : rows(2), kTwoEach);
       }},
      {"dim out of range on one rank",
       "argument",
       {"rank 1", "2"},
       [](bool is_wrong, int) { all_gather_v(rows(2), kTwoEach, is_wrong ? 2 : 0); }},
      {"dim out of range on all",
       "argument",
       {"-3"},
       [](bool, int) { gather_v(rows(2), kTwoEach, -3); }},
      {"sizes that do not sum up",
       "argument",
       {"rank 0", "7", "[2, 2, 2]"},
       [](bool, int rank) { scatter_v(rows(rank == 0 ? 7 : 0), kTwoEach); }},
      {"sizes that do not sum up, to be reduced",
       "argument",
       {"7", "[2, 2, 2]"},
       [](bool, int) { reduce_scatter_v(rows(7), kTwoEach); }},
      {"dst outside the group",
       "argument",
       {"7", "3"},
       [](bool, int) { gather_v(rows(2), kTwoEach, 0, 7); }},
      {"src outside the group on one rank",
       "argument",
       {"rank 1", "-1"},
       [](bool is_wrong, int) { scatter_v(rows(6), kTwoEach, 0, is_wrong ? -1 : 0); }},
      {"the backward pass of another function",
       "mismatch",
       {"rank 0", "rank 1", "backward of all_gather_v", "backward of gather_v"},
       [](bool is_wrong, int) {
         const Tensor x = rows(2).requires_grad_();
         const Tensor all = all_gather_v(x, kTwoEach), one = gather_v(x, kTwoEach);
         (is_wrong ? one : all).sum().backward();
       }},
      {"an index out of range",
       "argument",
       {"rank 1", "5", "2", "indexed_all_to_all_v"},
       [](bool is_wrong, int) { exchange_rows(kTable, is_wrong ? 5 : 0); }},
      {"a rank expects more of another one than that sends",
       "mismatch",
       {"all_to_all_v", "rank 2 sends 1 to rank 1, which expects 2",
        "rank 1 expects [1, 1, 2] of them"},
       [](bool is_wrong, int) {
         all_to_all_v(rows(3), Counts{1, 1, 1}, is_wrong ? Counts{1, 1, 2} : Counts{1, 1, 1});
       }},
      {"a rank sends more to another one than that expects",
       "mismatch",
       {"all_to_all_v", "rank 1 sends 2 to rank 2, which expects 1",
        "rank 1 sends [1, 1, 2] to the ranks"},
       [](bool is_wrong, int) {
         all_to_all_v(rows(is_wrong ? 4 : 3), is_wrong ? Counts{1, 1, 2} : Counts{1, 1, 1},
                      Counts{1, 1, 1});
       }},
      {"a rank's sizes do not sum up, from rank to rank",
       "argument",
       {"all_to_all_v", "rank 1", "5", "[1, 1, 1]"},
       [](bool is_wrong, int) {
         all_to_all_v(rows(is_wrong ? 5 : 3), Counts{1, 1, 1}, Counts{1, 1, 1});
       }},
      {"requires_grad on one rank only",
       "mismatch",
       {"rank 0", "rank 1", "grad"},
       [](bool is_wrong, int) { all_gather_v(rows(2).set_requires_grad(is_wrong), kTwoEach); }},
      {"one rank skips the call and goes on to another collective",
       "mismatch",
       {"rank 0", "rank 1", "all_gather_v", "reduce_scatter_v"},
       [](bool is_wrong, int) {
         if (is_wrong) {
           reduce_scatter_v(rows(6), kTwoEach);
         } else {
           all_gather_v(rows(2), kTwoEach);
         }
       }},
      {"wrong ndim",
       "mismatch",
       {"rank 0", "rank 1"},
       [](bool is_wrong, int) {
         all_gather_v(is_wrong ? rows(2).view({2, 2, 2}) : rows(2), kTwoEach);
       }},
      {"different dims",
       "mismatch",
       {"rank 0", "rank 1", "dim"},
       [](bool is_wrong, int) {
         all_gather_v(at::ones({2, 2}), kTwoEach, is_wrong ? 1 : 0);
       }},
      {"other extents beside dim",
       "mismatch",
       {"rank 0", "rank 1", "4", "5"},
       [](bool is_wrong, int) {
         all_gather_v(is_wrong ? at::ones({2, 5}) : rows(2), kTwoEach);
       }},
      {"the root differs",
       "mismatch",
       {"rank 0", "rank 1", "root 0", "root 2"},
       [](bool is_wrong, int) { gather_v(rows(2), kTwoEach, 0, is_wrong ? 2 : 0); }},
      {"use_fp32 differs",
       "mismatch",
       {"rank 0", "rank 1", "float32"},
       [](bool is_wrong, int) { reduce_scatter_v(rows(6).to(at::kHalf), kTwoEach, 0, !is_wrong); }},
      {"use_fp32 of the backward pass differs",
       "mismatch",
       {"rank 0", "rank 1", "use_fp32 false"},
       [](bool is_wrong, int) { all_gather_v(rows(2).to(at::kHalf), kTwoEach, 0, !is_wrong); }},
      {"wrong op",
       "mismatch",
       {"rank 0", "rank 1", "sum", "max"},
       [](bool is_wrong, int) {
         Tensors tensors = {rows(2)};
         c10d::AllreduceOptions options;
         if (is_wrong) options.reduceOp = c10d::ReduceOp::MAX;
         DistributedManager::get().world()->allreduce(tensors, options)->wait();
       }},
      {"a ragged table",
       "argument",
       {"rank 1"},
       [](bool is_wrong, int) {
         exchange_rows(is_wrong ? std::vector<Counts>{{1, 1, 1}, {1, 1, 1}, {1}} : kTable);
       }},
      {"tables that differ",
       "mismatch",
       {"rank 0", "rank 1"},
       [](bool is_wrong, int) {
         exchange_rows(is_wrong ? std::vector<Counts>{{1, 1, 4}, {1, 1, 1}, {1, 1, 1}} : kTable);
       }},
      {"fewer indices than the table says",
       "argument",
       {"rank 1", "1", "0"},
       [](bool is_wrong, int) { exchange_rows(kTable, 0, is_wrong ? 0 : 1); }},
      {"wrong number of sizes",
       "argument",
       {"rank 1", "2", "3"},
       [](bool is_wrong, int) {
         all_gather_v(rows(2), is_wrong ? Counts{2, 2} : kTwoEach);
       }},
      {"own extent against sizes",
       "argument",
       {"rank 1", "3", "2"},
       [](bool is_wrong, int) { all_gather_v(rows(is_wrong ? 3 : 2), kTwoEach); }},
      {"unequal pieces without sizes",
       "mismatch",
       {"rank 0", "rank 1"},
       [](bool is_wrong, int) { all_gather_v(rows(is_wrong ? 3 : 2)); }},
      {"a negative size",
       "argument",
       {"rank 1", "-2"},
       [](bool is_wrong, int) {
         scatter_v(rows(6), is_wrong ? Counts{2, -2, 6} : kTwoEach);
       }},
      {"a full shape that is not the tensor's",
       "argument",
       {"rank 1"},
       [](bool is_wrong, int) {
         const std::vector<Counts> right = {{2, 4}, {2, 4}, {2, 4}},
                                   wrong = {{2, 4}, {2, 5}, {2, 4}};
         all_gather_v(rows(2), is_wrong ? wrong : right);
       }},
      {"a dtype that has no sum over ranks",
       "argument",
       {},
       [](bool is_wrong, int) {
         Tensors tensors = {rows(2)};
         c10d::AllreduceOptions options;
         options.reduceOp = is_wrong ? c10d::ReduceOp::BAND : c10d::ReduceOp::SUM;
         DistributedManager::get().world()->allreduce(tensors, options)->wait();
       }},
      {"an undefined tensor",
       "argument",
       {"rank 1", "undefined"},
       [](bool is_wrong, int) { all_gather_v(is_wrong ? Tensor() : rows(2), kTwoEach); }},
  };
  return calls;
}

void expect_that_the_group_goes_on(const RankWorld::Group& group, const std::string& after) {
  const int rank = group->getRank();
  Tensors expected;
  Counts sizes;
  for (int r = 0; r < group->getSize(); ++r) {
    sizes.push_back(r + 1);
    expected.push_back(at::full({r + 1, 4}, r));
  }
  const Tensor gathered = all_gather_v(expected[rank], sizes, 0, true, group);
  EXPECT_TRUE(at::equal(gathered, at::cat(expected))) << "after " << after;
}

void make_wrong_calls() {
  const RankWorld world;
  for (const WrongCall& wrong : wrong_calls()) {
    note_raised(wrong.name, [&] { wrong.call(world.rank() == kWrong, world.rank()); });
    expect_that_the_group_goes_on(world.group(), wrong.name);
  }
  // One that has called once more: what the others call next disagrees too, then all are even.
  const auto gather = [&](int64_t count) {
    note_raised("another sequence of calls", [&] { all_gather_v(rows(count)); });
  };
  for (const int64_t count : {1, 2}) gather(world.rank() == kWrong ? count + 6 : count);
  expect_that_the_group_goes_on(world.group(), "another sequence of calls");
}

// Rank 0 and the others wait for each other in two groups of the same ranks.
void wait_in_opposite_order() {
  const RankWorld world;
  std::vector<RankWorld::Group> groups = {world.make_group({0, 1, 2}), world.make_group({0, 1, 2})};
  for (const auto& group : groups) expect_that_the_group_goes_on(group, "nothing yet");
  note_raised("groups used in opposite order", [&] {
    for (const size_t index : {0, 1}) {
      all_gather_v(rows(2), {}, 0, true, groups[world.rank() == 0 ? index : 1 - index]);
    }
  });
  for (const auto& group : groups) expect_that_the_group_goes_on(group, "a deadlock");
  expect_that_the_group_goes_on(world.group(), "a deadlock");
}

// Ranks 0 and 1 wait in the world for rank 2, which waits for rank 1 in a pair.
void wait_in_another_group() {
  const RankWorld world;
  const auto pair = world.make_group({1, 2});
  if (pair) expect_that_the_group_goes_on(pair, "nothing yet");
  note_raised("one rank waits in another group", [&] {
    all_gather_v(rows(2), {}, 0, true, world.rank() == 2 ? pair : world.group());
  });
  if (pair) expect_that_the_group_goes_on(pair, "a deadlock");
  expect_that_the_group_goes_on(world.group(), "a deadlock");
}

void leave_without_calling() {
  RankWorld world;
  world.leave_alone();
  expect_that_the_group_goes_on(world.group(), "nothing yet");
  if (world.rank() == kWrong) return;
  note_raised("one rank exits", [&] { all_gather_v(rows(2), kTwoEach); });
}

void exit_without_a_word() {
  RankWorld world;
  world.leave_alone();
  expect_that_the_group_goes_on(world.group(), "nothing yet");
  if (world.rank() == kWrong) _exit(0);
  note_raised("one rank exits without a word", [&] { all_gather_v(rows(2), kTwoEach); });
}

void wait_for_a_rank_that_does_not_come() {
  RankWorld world;
  world.leave_alone();
  expect_that_the_group_goes_on(world.group(), "nothing yet");
  RankWorld::set_timeout(world.group(), seconds(3));
  const auto store = DistributedManager::get().store();
  if (world.rank() == kWrong) {
    // Alive, and in no collective.
    store->wait({"raised by 0", "raised by 2"}, seconds(60));
  } else {
    note_raised("one rank sleeps", [&] { all_gather_v(rows(2), kTwoEach); });
    note_raised("after the timeout", [&] { all_gather_v(rows(2), kTwoEach); });
    store->set("raised by " + std::to_string(world.rank()), "");
  }
  // Rank 0 hosts the store.
  if (world.rank() == 0) store->wait({"raised by 2", "raised by 0"}, seconds(60));
}

[[maybe_unused]] const bool kRegistered[] = {
    register_rank_function("wrong calls", make_wrong_calls),
    register_rank_function("opposite order", wait_in_opposite_order),
    register_rank_function("another group", wait_in_another_group),
    register_rank_function("exits", leave_without_calling),
    register_rank_function("exits without a word", exit_without_a_word),
    register_rank_function("sleeps", wait_for_a_rank_that_does_not_come)};

// What each rank raised, by the name of the case; a case that a rank raised twice is in twice.
std::vector<std::multimap<std::string, Raised>> raised_by(const std::string& function) {
  const auto results =
      run_ranks(function, env_ranks(kRanks), std::chrono::minutes(3), RankStart::kFork);
  expect_success(results);
  std::vector<std::multimap<std::string, Raised>> all;
  for (const RankResult& result : results) {
    auto& of_rank = all.emplace_back();
    for (const Raised& raised : raised_in(result.output)) of_rank.emplace(raised.name, raised);
  }
  return all;
}

// On all those ranks, the same text, within 5 s.
void expect_the_same(const std::vector<std::multimap<std::string, Raised>>& all,
                     const std::vector<int>& ranks, const std::string& name,
                     const std::string& kind, const std::vector<std::string>& words,
                     size_t times = 1) {
  SCOPED_TRACE(name);
  for (const int rank : ranks) {
    ASSERT_EQ(all[rank].count(name), times) << "rank " << rank;
    auto first = all[ranks[0]].lower_bound(name);
    for (auto found = all[rank].lower_bound(name); found != all[rank].upper_bound(name); ++found) {
      EXPECT_EQ(found->second.kind, kind) << "rank " << rank << ": " << found->second.text;
      EXPECT_EQ(found->second.text, (first++)->second.text) << "rank " << rank;
      EXPECT_LE(found->second.took, seconds(5)) << "rank " << rank;
    }
  }
  const std::string& text = all[ranks[0]].lower_bound(name)->second.text;
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
  }
  std::printf("  %s: %s\n", name.c_str(), text.c_str());
}

TEST(WrongCallsTest, AreTheSameErrorOnEveryRankAndTheGroupGoesOn) {
  const auto all = raised_by("wrong calls");
  for (const WrongCall& wrong : wrong_calls()) {
    expect_the_same(all, {0, 1, 2}, wrong.name, wrong.kind, wrong.words);
  }
  expect_the_same(all, {0, 1, 2}, "another sequence of calls", "mismatch", {"rank 0", "rank 1"}, 2);
}

TEST(WrongCallsTest, GroupsUsedInOppositeOrderAreADeadlockOnAllTheirRanks) {
  expect_the_same(raised_by("opposite order"), {0, 1, 2}, "groups used in opposite order",
                  "deadlock", {"rank 0", "\"group 0\"", "\"group 1\""});
}

TEST(WrongCallsTest, ARankThatWaitsInAnotherGroupIsADeadlock) {
  expect_the_same(raised_by("another group"), {0, 1, 2}, "one rank waits in another group",
                  "deadlock", {"rank 2", "rank 1"});
}

TEST(WrongCallsTest, ARankThatLeavesIsNamedToThoseWhoCalled) {
  expect_the_same(raised_by("exits"), {0, 2}, "one rank exits", "peer left", {"rank 1"});
}

TEST(WrongCallsTest, ARankThatExitsWithoutAWordIsNamedToThoseWhoCalled) {
  expect_the_same(raised_by("exits without a word"), {0, 2}, "one rank exits without a word",
                  "peer lost", {"rank 1"});
}

TEST(WrongCallsTest, ARankThatSleepsIsNamedWhenTheTimeoutHasPassed) {
  const auto all = raised_by("sleeps");
  expect_the_same(all, {0, 2}, "one rank sleeps", "timeout", {"rank 1", "3 s", "all_gather_v"});
  for (const int rank : {0, 2}) {
    EXPECT_GE(all[rank].find("one rank sleeps")->second.took, seconds(2)) << "rank " << rank;
    EXPECT_EQ(all[rank].find("after the timeout")->second.kind, "aborted");
  }
}

}  // namespace
}  // namespace meshrun
