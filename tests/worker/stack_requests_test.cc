// Which requests share a look at a rank, which wait, and which are refused. The looks are this
// test's own.
#include "worker/dumps/stack_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "tests/worker/support/processes.h"

namespace meshrun::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using Answer = StackRequests::Answer;
using Request = StackRequests::Request;

constexpr StackRequests::Bounds kBounds;

class StackRequestsTest : public ::testing::Test {
 protected:
  ~StackRequestsTest() override {
    Release();
    EXPECT_TRUE(files_.Drain(testing::kPatience));
    loop_.Stop();
    thread_.join();
  }
  static Request Of(const std::string& job, pid_t rank, bool native = false) {
    Request request;
    request.job_id = job;
    request.rank = rank;
    request.native = native;
    request.limit = std::chrono::seconds(10);
    return request;
  }
  // Returns when it has been taken.
  void Ask(const Request& request) {
    std::promise<void> taken;
    loop_.Post([&] {
      requests_.Ask(request, [this](const Answer& answer) {
        MutexLock lock(mu_);
        answers_.push_back(answer);
      });
      taken.set_value();
    });
    taken.get_future().wait();
  }
  // A look holds until then.
  void Release() {
    MutexLock lock(mu_);
    released_ = true;
    changed_.NotifyAll();
  }
  Answer LookAt(const Request& request) {
    MutexLock lock(mu_);
    EXPECT_TRUE(at_.insert(request.rank).second) << "two debuggers at " << request.rank;
    ++of_job_[request.job_id];
    most_ = std::max(most_, at_.size());
    most_of_a_job_ = std::max(most_of_a_job_, of_job_[request.job_id]);
    looks_.push_back(request);
    while (!released_) changed_.Wait(mu_);
    at_.erase(request.rank);
    --of_job_[request.job_id];
    Answer answer;
    answer.stack.place = "step (train.cc:12)";
    if (request.native) answer.native = "poll";
    return answer;
  }
  size_t Looks() {
    MutexLock lock(mu_);
    return looks_.size();
  }
  std::vector<Answer> AwaitAnswers(size_t count) {
    EXPECT_TRUE(testing::Eventually([&] {
      MutexLock lock(mu_);
      return answers_.size() >= count;
    }));
    MutexLock lock(mu_);
    return answers_;
  }

  Mutex mu_;
  CondVar changed_;
  bool released_ MESHRUN_GUARDED_BY(mu_) = false;
  std::set<pid_t> at_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, size_t> of_job_ MESHRUN_GUARDED_BY(mu_);
  size_t most_ MESHRUN_GUARDED_BY(mu_) = 0;
  size_t most_of_a_job_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::vector<Request> looks_ MESHRUN_GUARDED_BY(mu_);
  std::vector<Answer> answers_ MESHRUN_GUARDED_BY(mu_);

  EventLoop loop_;
  FileTasks files_{loop_};
  StackRequests requests_{files_, kBounds,
                          [this](const Request& request) { return LookAt(request); }};
  std::thread thread_{[this] { loop_.Run(); }};
};

TEST_F(StackRequestsTest, RequestsThatComeMeanwhileShareTheAnswer) {
  for (int i = 0; i < 3; ++i) Ask(Of("job", 7));
  Release();
  for (const Answer& answer : AwaitAnswers(3)) EXPECT_EQ(answer.stack.place, "step (train.cc:12)");
  EXPECT_EQ(Looks(), 1u);
}

TEST_F(StackRequestsTest, RequestsForMoreShareTheNextLook) {
  Ask(Of("job", 7));
  Ask(Of("job", 7, /*native=*/true));
  Ask(Of("job", 7, /*native=*/true));
  Request only_native = Of("job", 7, /*native=*/true);
  only_native.frames = false;
  Ask(only_native);
  Release();
  const std::vector<Answer> answers = AwaitAnswers(4);
  EXPECT_EQ(answers[0].native, "");
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(answers[i].native, "poll");
  EXPECT_EQ(Looks(), 2u);
}

TEST_F(StackRequestsTest, ARequestWhoseTimeIsOverStartsNoDebugger) {
  Request request = Of("job", 7);
  request.give_up = std::chrono::steady_clock::now();
  Ask(request);
  EXPECT_THAT(AwaitAnswers(1)[0].stack.problem, HasSubstr("busy with other ranks"));
  EXPECT_EQ(Looks(), 0u);
}

TEST_F(StackRequestsTest, ALookEndsBeforeItsAnswerIsTooLate) {
  Request request = Of("job", 7);
  request.limit = std::chrono::hours(1);
  request.give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  Ask(request);
  Release();
  AwaitAnswers(1);
  MutexLock lock(mu_);
  EXPECT_LE(looks_[0].limit, std::chrono::seconds(58));
  EXPECT_GT(looks_[0].limit, std::chrono::seconds(0));
}

TEST_F(StackRequestsTest, ThreadsStayForOtherWork) {
  for (int rank = 0; rank < 60; ++rank) Ask(Of("job" + std::to_string(rank % 3), rank));
  std::promise<void> prepared;
  files_.Run("job3", [&] { prepared.set_value(); });
  EXPECT_EQ(prepared.get_future().wait_for(testing::kPatience), std::future_status::ready);
  EXPECT_TRUE(testing::Eventually([&] { return Looks() == kBounds.at_once; }));
  Release();
  EXPECT_THAT(AwaitAnswers(60), SizeIs(60));
  MutexLock lock(mu_);
  EXPECT_EQ(most_, kBounds.at_once);
  EXPECT_LE(most_of_a_job_, kBounds.of_a_job);
}

TEST_F(StackRequestsTest, AHostWithFewCoresLooksAtOneRankOfAJobAtATime) {
  EXPECT_EQ(StackRequests::BoundsFor(2).of_a_job, 1u);
  EXPECT_EQ(StackRequests::BoundsFor(0).of_a_job, 1u);
  EXPECT_EQ(StackRequests::BoundsFor(8).of_a_job, 4u);
  EXPECT_EQ(StackRequests::BoundsFor(128).of_a_job, kBounds.of_a_job);
  EXPECT_EQ(StackRequests::BoundsFor(128).at_once, kBounds.at_once);
}

TEST_F(StackRequestsTest, ALookLeavesTimeToTheRanksThatWait) {
  StackRequests requests(files_, {2, 1},
                         [this](const Request& request) { return LookAt(request); });
  std::promise<void> taken;
  loop_.Post([&] {
    for (pid_t rank = 1; rank <= 2; ++rank) {
      Request request = Of("job", rank);
      request.limit = std::chrono::seconds(20);
      requests.Ask(request, [this](const Answer& answer) {
        MutexLock lock(mu_);
        answers_.push_back(answer);
      });
    }
    // Asked again while it is looked at, with more that waits.
    requests.Ask(Of("job", 1, /*native=*/true), [this](const Answer& answer) {
      MutexLock lock(mu_);
      answers_.push_back(answer);
    });
    taken.set_value();
  });
  taken.get_future().wait();
  Release();
  AwaitAnswers(3);
  // Its last turn has ended.
  std::promise<void> idle;
  loop_.Post([&] { idle.set_value(); });
  idle.get_future().wait();
  MutexLock lock(mu_);
  ASSERT_EQ(looks_.size(), 3u);
  EXPECT_EQ(most_of_a_job_, 1u);
  EXPECT_EQ(looks_[1].limit, std::chrono::seconds(10)) << "one more waits";
}

TEST_F(StackRequestsTest, BeyondItsBoundARequestIsRefused) {
  for (size_t i = 0; i < StackRequests::kMostWaiting; ++i) Ask(Of("job", 7));
  Ask(Of("job", 7));
  EXPECT_THAT(AwaitAnswers(1)[0].stack.problem, HasSubstr("64 requests wait for it already"));
  Release();
  EXPECT_THAT(AwaitAnswers(StackRequests::kMostWaiting + 1),
              SizeIs(StackRequests::kMostWaiting + 1));
}

}  // namespace
}  // namespace meshrun::worker
