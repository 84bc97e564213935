#include "coordinator/state_machine/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One rank on each host, or several; all take their steps together unless a test says otherwise.
class StragglersTest : public ::testing::Test {
 protected:
  struct Ran {
    int64_t step = 0;
    double at = 0;
    double waited = 0;
  };

  void Run(int hosts, int ranks_of_a_host = 1) {
    h.record = false;
    for (int i = 0; i < hosts; ++i) {
      workers_.push_back(&h.AddWorker("node" + std::to_string(i), ranks_of_a_host));
      // Hosts count their time from different beginnings.
      for (int r = 0; r < ranks_of_a_host; ++r) ranks_.push_back({0, 1000.0 * (i + 1), 0});
    }
    of_a_host_ = ranks_of_a_host;
    id_ = h.Submit(MakeSpec(hosts, ranks_of_a_host));
    ASSERT_EQ(h.state(id_), v1::JOB_STATE_RUNNING);
  }

  // One step, in which each rank computes for so many seconds and then waits for the slowest.
  void StepTogether(const std::vector<double>& computes) {
    const double longest = *std::max_element(computes.begin(), computes.end());
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ++ranks_[i].step;
      ranks_[i].at += longest;
      ranks_[i].waited += longest - computes[i];
    }
  }
  void Report(bool with_wait = true) {
    for (size_t host = 0; host < workers_.size(); ++host) {
      v1::OpenSessionRequest message = workers_[host]->Message({id_, h.job(id_).generation()});
      for (int local = 0; local < of_a_host_; ++local) {
        const int rank = static_cast<int>(host) * of_a_host_ + local;
        v1::Progress& progress = (*message.mutable_progress_report()->mutable_progress())[rank];
        progress.set_step(ranks_[rank].step);
        progress.set_step_at_nanos(static_cast<int64_t>(ranks_[rank].at * 1e9));
        if (with_wait) progress.set_waited_seconds(ranks_[rank].waited);
      }
      h.Say(*workers_[host], {message});
    }
  }
  // So many windows in which each rank computes so long a step.
  void Windows(int count, const std::vector<double>& computes, bool with_wait = true) {
    for (int window = 0; window < count; ++window) {
      for (int64_t step = 0; step < Stragglers::kSteps; ++step) StepTogether(computes);
      h.Advance(seconds(1));
      Report(with_wait);
    }
  }
  std::vector<int> Named() {
    std::vector<int> out;
    for (const v1::Straggler& slow : h.job(id_).stragglers()) out.push_back(slow.rank());
    return out;
  }
  int Events(const std::string& kind) {
    v1::StateEvent event;
    event.mutable_list_events()->set_job_id(id_);
    int count = 0;
    const auto& answer = h.answer(h.Call(event)).As<v1::ListEventsResponse>();
    for (const auto& e : answer.events()) {
      if (e.kind() != kind) continue;
      ++count;
      message_ = e.message();
    }
    return count;
  }

  Harness h;
  std::vector<FakeWorker*> workers_;
  std::vector<Ran> ranks_;
  int of_a_host_ = 1;
  std::string id_;
  std::string message_;
};

TEST_F(StragglersTest, TheRankThatTheOthersWaitForIsNamedWithItsTimes) {
  Run(4);
  Report();
  Windows(2, {1, 1, 3, 1});
  EXPECT_THAT(Named(), IsEmpty());
  Windows(1, {1, 1, 3, 1});
  EXPECT_THAT(Named(), ElementsAre(2));
  const v1::Straggler& slow = h.job(id_).stragglers(0);
  EXPECT_EQ(slow.node_name(), "node2");
  EXPECT_NEAR(slow.computes_seconds(), 3, 1e-6);
  EXPECT_NEAR(slow.median_seconds(), 1, 1e-6);
  EXPECT_NEAR(slow.step_seconds(), 3, 1e-6);
  EXPECT_EQ(Events("StragglerFound"), 1);
  EXPECT_EQ(message_,
            "rank 2 on node2 computes 3 s of each step, the median of all ranks is 1 s: a step "
            "takes 3 s, in which the others wait for it");
  Windows(10, {1, 1, 3, 1});
  EXPECT_EQ(Events("StragglerFound"), 1) << "once";
}

TEST_F(StragglersTest, OfTwoRanksTheFasterOneIsTheMeasure) {
  Run(2);
  Report();
  Windows(3, {2.5, 1});
  EXPECT_THAT(Named(), ElementsAre(0));
}

TEST_F(StragglersTest, TheSlowRanksOfAHostAreNamedTogether) {
  Run(4, 2);
  Report();
  Windows(3, {1, 1, 1, 1, 2, 2, 1, 1});
  EXPECT_THAT(Named(), ElementsAre(4, 5));
  EXPECT_EQ(Events("StragglerFound"), 2);
}

TEST_F(StragglersTest, ARankThatKeepsPaceAgainIsCleared) {
  Run(3);
  Report();
  Windows(3, {1, 3, 1});
  ASSERT_THAT(Named(), ElementsAre(1));
  Windows(2, {1, 1, 1});
  EXPECT_THAT(Named(), ElementsAre(1));
  Windows(1, {1, 1, 1});
  EXPECT_THAT(Named(), IsEmpty());
  EXPECT_EQ(Events("StragglerRecovered"), 1);
  EXPECT_EQ(message_, "rank 1 on node1 keeps pace with the others again");
}

TEST_F(StragglersTest, NamesOutliveTheCoordinatorAndAreClearedByTheNext) {
  Run(3);
  Report();
  Windows(3, {1, 3, 1});
  h.StartCoordinator();
  for (FakeWorker* const worker : workers_) h.Connect(*worker);
  EXPECT_THAT(Named(), ElementsAre(1));
  Report();
  Windows(3, {1, 3, 1});
  EXPECT_EQ(Events("StragglerFound"), 1) << "it is known";
  Windows(3, {1, 1, 1});
  EXPECT_THAT(Named(), IsEmpty());
}

// A rank that waits for a slow one takes as long for a step as the slow one.
TEST_F(StragglersTest, WithoutAWordOnWaitingStepsOfOneLengthAccuseNobody) {
  Run(4);
  Report(/*with_wait=*/false);
  Windows(10, {1, 1, 3, 1}, /*with_wait=*/false);
  EXPECT_THAT(Named(), IsEmpty());
  EXPECT_EQ(Events("StragglerFound"), 0);
}

TEST_F(StragglersTest, NoiseAccusesNobody) {
  Run(16);
  Report();
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0.02, 0.004);
  std::uniform_int_distribution<int> another(1, 15);
  int slow = 0;
  for (int window = 0; window < 2'000; ++window) {
    // In each window another rank is twice as slow for ten steps.
    slow = (slow + another(random)) % 16;
    for (int step = 0; step < 10; ++step) {
      std::vector<double> computes;
      for (int rank = 0; rank < 16; ++rank) {
        computes.push_back(std::max(0.001, noise(random)) + (rank == slow ? 0.02 : 0));
      }
      StepTogether(computes);
    }
    h.Advance(seconds(1));
    Report();
    ASSERT_THAT(Named(), IsEmpty()) << "window " << window;
  }
}

TEST_F(StragglersTest, RanksThatDifferAllTheTimeAreNoStragglers) {
  Run(8);
  Report();
  std::mt19937 random(7);
  std::uniform_real_distribution<double> factor(0.7, 1.3);
  std::vector<double> own;
  for (int rank = 0; rank < 8; ++rank) own.push_back(0.1 * factor(random));
  Windows(100, own);
  EXPECT_THAT(Named(), IsEmpty());
}

TEST_F(StragglersTest, WhatHardlyCostsAnythingIsNotNamed) {
  Run(4);
  Report();
  // A tenth of each step: the rest is spent in what all do together.
  for (int window = 0; window < 10; ++window) {
    for (int64_t step = 0; step < Stragglers::kSteps; ++step) {
      StepTogether({0.05, 0.05, 0.15, 0.05});
      for (Ran& rank : ranks_) {
        rank.at += 0.9;
        rank.waited += 0.9;
      }
    }
    h.Advance(seconds(1));
    Report();
  }
  EXPECT_THAT(Named(), IsEmpty());
}

TEST_F(StragglersTest, StepsThatAreCountedAnewAndOddReportsAccuseNobody) {
  Run(3);
  for (int i = 0; i < 50; ++i) {
    for (Ran& rank : ranks_) rank.step = rank.step > 20 ? 0 : rank.step;
    StepTogether({1, 1, 1});
    if (i % 7 == 0) ranks_[1].waited = 0;
    if (i % 11 == 0) ranks_[2].waited = std::numeric_limits<double>::quiet_NaN();
    if (i % 11 == 5) ranks_[2].waited = 0;
    if (i % 13 == 0) ranks_[0].step = std::numeric_limits<int64_t>::min();
    if (i % 13 == 1) ranks_[0].step = std::numeric_limits<int64_t>::max() - 100;
    if (i % 13 == 2) ranks_[0].step = 1;
    h.Advance(seconds(1));
    Report();
  }
  EXPECT_THAT(Named(), IsEmpty());
}

// A rank that was started anew has waited for nothing yet: what it said before does not count.
TEST_F(StragglersTest, ARankWhoseWaitIsCountedAnewIsNotAccused) {
  Run(4);
  Report();
  Windows(1, {1, 1, 3, 1});
  for (int window = 0; window < Stragglers::kWindows; ++window) {
    for (int64_t step = 0; step < Stragglers::kSteps; ++step) StepTogether({1, 1, 3, 1});
    ranks_[1].waited = 0;
    Report();
    Windows(1, {1, 1, 3, 1});
  }
  EXPECT_THAT(Named(), ElementsAre(2)) << "the one that the others wait for";
}

// Rank 1 says that it has waited for 11.5 s in 9.7 s: what is left of its steps is not known.
TEST_F(StragglersTest, ARankThatWaitsForLongerThanItsStepsTakeIsNoMeasure) {
  Run(2);
  Report();
  for (int window = 0; window < 10; ++window) {
    for (int64_t step = 0; step < Stragglers::kSteps; ++step) {
      StepTogether({1, 1});
      ranks_[1].waited += 1.2;
    }
    h.Advance(seconds(1));
    Report();
  }
  EXPECT_THAT(Named(), IsEmpty());
}

TEST_F(StragglersTest, WhereMostRanksOnlyWaitThereIsNoPaceToKeep) {
  Run(3);
  Report();
  Windows(10, {1, 0, 0});
  EXPECT_THAT(Named(), IsEmpty());
  Windows(3, {3, 1, 1});
  EXPECT_THAT(Named(), ElementsAre(0));
}

TEST_F(StragglersTest, AnotherGenerationHasNoneYet) {
  v1::JobSpec spec = MakeSpec(3, 1);
  spec.set_max_restarts(1);
  for (int i = 0; i < 3; ++i) {
    workers_.push_back(&h.AddWorker("node" + std::to_string(i), 1));
    ranks_.push_back({0, 1.0, 0});
  }
  id_ = h.Submit(spec);
  Report();
  Windows(3, {1, 3, 1});
  ASSERT_THAT(Named(), ElementsAre(1));
  h.Say(*workers_[0], workers_[0]->Exit(id_, 0, 1));
  ASSERT_EQ(h.job(id_).generation(), 2u);
  EXPECT_THAT(Named(), IsEmpty());
}

}  // namespace
}  // namespace meshrun::coordinator::testing
