// Ranks of one host on their way into a barrier: which of them share a call, and what each is told.
#include "worker/agent_server/barrier_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "core/proto_time.h"
#include "tests/worker/support/processes.h"

namespace meshrun::worker {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class BarrierCallsTest : public ::testing::Test {
 protected:
  struct Started {
    v1::EnterBarrierRequest request;
    v1::EnterBarrierResponse* response = nullptr;
    std::function<void(grpc::Status)> answer;
    std::vector<int> ranks() const {
      std::vector<int> out{request.rank()};
      for (const v1::BarrierEntry& other : request.others()) out.push_back(other.rank());
      return out;
    }
  };

  ~BarrierCallsTest() override {
    loop_.Stop();
    thread_.join();
  }

  void OnLoop(const std::function<void()>& run) {
    std::promise<void> done;
    loop_.Post([&] {
      run();
      done.set_value();
    });
    done.get_future().get();
  }
  static BarrierCalls::Entry EntryOf(int rank, size_t local, seconds timeout) {
    BarrierCalls::Entry entry;
    entry.request.mutable_fence()->set_job_id("j");
    entry.request.mutable_fence()->set_generation(1);
    entry.request.set_name("b");
    entry.request.set_rank(rank);
    entry.request.set_request_id("id" + std::to_string(rank));
    *entry.request.mutable_timeout() = ToProtoDuration(timeout);
    entry.deadline = std::chrono::system_clock::now() + timeout;
    entry.local = local;
    return entry;
  }
  // `local`: ranks of the host. Returns the entry's id.
  uint64_t Enter(int rank, size_t local, seconds timeout = seconds(60)) {
    uint64_t id = 0;
    OnLoop([&] { id = EnterHere(rank, local, timeout); });
    return id;
  }
  // On the loop's thread. The ranks of one turn of the loop are gathered, however busy the host is.
  uint64_t EnterHere(int rank, size_t local, seconds timeout = seconds(60)) {
    const uint64_t id = calls_.NewId();
    BarrierCalls::Entry entry = EntryOf(rank, local, timeout);
    entry.done = [this, rank](const grpc::Status& status) { told_[rank] = status.error_code(); };
    calls_.Enter(id, std::move(entry));
    return id;
  }
  // Returns the last one's id.
  uint64_t EnterTogether(const std::vector<int>& ranks, size_t local) {
    uint64_t id = 0;
    OnLoop([&] {
      for (const int rank : ranks) id = EnterHere(rank, local);
    });
    return id;
  }
  void Leave(uint64_t id) {
    OnLoop([&] { calls_.Leave(id); });
  }
  void Answer(const Started& call, const grpc::Status& status = grpc::Status::OK) {
    call.answer(status);
    OnLoop([] {});
  }
  size_t started() {
    MutexLock lock(mu_);
    return started_.size();
  }
  Started Await(size_t number) {
    EXPECT_TRUE(testing::Eventually([&] { return started() > number; }));
    MutexLock lock(mu_);
    return started_.at(number);
  }

  EventLoop loop_;
  BarrierCalls calls_{
      loop_, [this](grpc::ClientContext*, const v1::EnterBarrierRequest* request,
                    v1::EnterBarrierResponse* response, std::function<void(grpc::Status)> answer) {
        MutexLock lock(mu_);
        started_.push_back({*request, response, std::move(answer)});
      }};
  // On the loop's thread.
  std::map<int, grpc::StatusCode> told_;
  Mutex mu_;
  std::vector<Started> started_ MESHRUN_GUARDED_BY(mu_);
  std::thread thread_{[this] { loop_.Run(); }};
};

TEST_F(BarrierCallsTest, AllRanksOfAHostMakeOneCallAtOnce) {
  EnterTogether({4, 5, 6}, 3);
  ASSERT_EQ(started(), 1u) << "the last rank does not wait";
  const Started call = Await(0);
  EXPECT_THAT(call.ranks(), ElementsAre(4, 5, 6));
  EXPECT_EQ(call.request.request_id(), "id4");
  EXPECT_EQ(call.request.others(1).request_id(), "id6");
  EXPECT_TRUE(told_.empty());
  Answer(call);
  EXPECT_THAT(told_, ElementsAre(Pair(4, grpc::OK), Pair(5, grpc::OK), Pair(6, grpc::OK)));
}

TEST_F(BarrierCallsTest, AnErrorIsToldToEachOfThem) {
  EnterTogether({0, 1}, 2);
  Answer(Await(0), grpc::Status(grpc::StatusCode::ABORTED, "rank 7 has exited"));
  EXPECT_THAT(told_, ElementsAre(Pair(0, grpc::ABORTED), Pair(1, grpc::ABORTED)));
}

TEST_F(BarrierCallsTest, TheCoordinatorHearsOfEarlyRanksWithoutTheLateOne) {
  EnterTogether({0, 1}, 3);
  EXPECT_THAT(Await(0).ranks(), ElementsAre(0, 1));
  // The others of its host wait already.
  Enter(2, 3);
  ASSERT_EQ(started(), 2u);
  EXPECT_THAT(Await(1).ranks(), ElementsAre(2));
}

TEST_F(BarrierCallsTest, ARankThatGoesAwayBeforeTheCallIsNotInIt) {
  uint64_t gone = 0;
  OnLoop([&] {
    gone = EnterHere(0, 2);
    calls_.Leave(gone);
  });
  EXPECT_THAT(told_, ElementsAre(Pair(0, grpc::CANCELLED)));
  EnterTogether({0, 1}, 2);
  EXPECT_THAT(Await(0).ranks(), ElementsAre(0, 1));
  Leave(gone);
}

TEST_F(BarrierCallsTest, ARankThatGoesAwayLaterDoesNotTakeTheOthersWithIt) {
  const uint64_t gone = EnterTogether({0, 1, 2}, 3);
  Leave(gone);
  EXPECT_TRUE(told_.empty()) << "the coordinator counts it yet";
  Answer(Await(0), grpc::Status::CANCELLED);
  EXPECT_THAT(told_, ElementsAre(Pair(2, grpc::CANCELLED)));
  const Started again = Await(1);
  EXPECT_THAT(again.ranks(), ElementsAre(0, 1));
  EXPECT_EQ(again.request.request_id(), "id0");
  EXPECT_LE(FromProto(again.request.timeout()), seconds(60));
  Answer(again);
  EXPECT_EQ(told_[0], grpc::OK);
  EXPECT_EQ(told_[1], grpc::OK);
}

TEST_F(BarrierCallsTest, RanksOfWhichSomeHavePassedEnterOneByOne) {
  EnterTogether({0, 1}, 2);
  const Started together = Await(0);
  together.response->set_one_by_one(true);
  Answer(together);
  EXPECT_TRUE(told_.empty());
  EXPECT_THAT(Await(1).ranks(), ElementsAre(0));
  EXPECT_THAT(Await(2).ranks(), ElementsAre(1));
  Answer(Await(1));
  EXPECT_THAT(told_, ElementsAre(Pair(0, grpc::OK)));
}

TEST_F(BarrierCallsTest, RanksWithOtherTimeoutsDoNotShareACall) {
  OnLoop([&] {
    EnterHere(0, 3, seconds(60));
    EnterHere(1, 3, seconds(5));
    EnterHere(2, 3, seconds(58));
  });
  const auto first = Await(0).ranks(), second = Await(1).ranks();
  EXPECT_THAT((std::vector<std::vector<int>>{first, second}),
              UnorderedElementsAre(ElementsAre(1), ElementsAre(0, 2)));
}

}  // namespace
}  // namespace meshrun::worker
