// Reactors without gRPC: what gRPC promises a reactor holds here too.
#include "coordinator/api/local_call.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::seconds;

Deadline Soon() { return std::chrono::steady_clock::now() + seconds(60); }
Deadline Now() { return std::chrono::steady_clock::now(); }

struct Seen {
  std::atomic<int> cancelled{0};
  std::atomic<int> done{0};
  std::atomic<int> written{0};
  std::atomic<int> failed{0};
};

class Unary : public grpc::ServerUnaryReactor {
 public:
  explicit Unary(Seen* seen) : seen_(seen) {}
  void OnCancel() override {
    ++seen_->cancelled;
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "gone"));
  }
  void OnDone() override {
    ++seen_->done;
    delete this;
  }

 private:
  Seen* const seen_;
};

// Writes `left` answers, one after another.
class Writer : public grpc::ServerWriteReactor<v1::ReadLogsResponse> {
 public:
  Writer(Seen* seen, int left) : seen_(seen), left_(left) { Next(); }
  void OnWriteDone(bool ok) override {
    ++(ok ? seen_->written : seen_->failed);
    Next();
  }
  void OnCancel() override { ++seen_->cancelled; }
  void OnDone() override {
    ++seen_->done;
    delete this;
  }

 private:
  void Next() {
    if (left_-- > 0) {
      answer_.set_rank(left_);
      StartWrite(&answer_);
    } else {
      Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no more"));
    }
  }
  Seen* const seen_;
  int left_;
  v1::ReadLogsResponse answer_;
};

TEST(LocalUnaryTest, AnAnswerBeforeTheCallIsBoundIsNotLost) {
  Seen seen;
  auto* const reactor = new Unary(&seen);
  reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job"));
  const auto call = std::make_shared<LocalUnary>();
  call->Begin(reactor, nullptr);
  const auto status = call->Wait(Soon());
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status->message(), "no such job");
  EXPECT_EQ(seen.done, 1);
}

TEST(LocalUnaryTest, ACallThatIsNotWaitedForKeepsItsMessagesUntilItsEnd) {
  Seen seen;
  auto* const reactor = new Unary(&seen);
  std::weak_ptr<int> kept;
  {
    const auto messages = std::make_shared<int>(7);
    kept = messages;
    const auto call = std::make_shared<LocalUnary>();
    call->Begin(reactor, messages);
    EXPECT_FALSE(call->Wait(Now()).has_value());
  }
  EXPECT_FALSE(kept.expired());
  EXPECT_EQ(seen.done, 0);
  reactor->Finish(grpc::Status::OK);
  EXPECT_EQ(seen.done, 1);
  EXPECT_TRUE(kept.expired());
}

TEST(LocalUnaryTest, CancellingAnEndedCallDoesNothing) {
  Seen seen;
  const auto call = std::make_shared<LocalUnary>();
  call->Begin(new Unary(&seen), nullptr);
  call->Cancel();
  EXPECT_EQ(call->Wait(Soon())->code(), absl::StatusCode::kCancelled);
  call->Cancel();
  EXPECT_EQ(seen.cancelled, 1);
  EXPECT_EQ(seen.done, 1);
}

TEST(LocalUnaryTest, AnAnswerFromAnotherThreadWakesTheWaiter) {
  Seen seen;
  auto* const reactor = new Unary(&seen);
  const auto call = std::make_shared<LocalUnary>();
  call->Begin(reactor, nullptr);
  std::thread other([&] { reactor->Finish(grpc::Status::OK); });
  EXPECT_TRUE(call->Wait(Soon())->ok());
  other.join();
  EXPECT_EQ(seen.done, 1);
}

TEST(LocalStreamTest, AnswersComeInOrderThenTheStatus) {
  Seen seen;
  const auto stream = LocalStreamOf<v1::ReadLogsResponse>::Begin(new Writer(&seen, 3));
  std::vector<int> ranks;
  const auto take = [&](const google::protobuf::Message& answer) {
    ranks.push_back(dynamic_cast<const v1::ReadLogsResponse&>(answer).rank());
  };
  while (stream->Take(Soon(), take) == LocalStream::Taken::kMessage) {
  }
  EXPECT_EQ(ranks, (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(stream->status().message(), "no more");
  EXPECT_EQ(seen.written, 3);
  EXPECT_EQ(seen.done, 1);
  stream->Leave();
  EXPECT_EQ(seen.cancelled, 0);
}

TEST(LocalStreamTest, AReaderThatLeavesFailsAllWritesWithoutRecursion) {
  Seen seen;
  const auto stream = LocalStreamOf<v1::ReadLogsResponse>::Begin(new Writer(&seen, 300'000));
  stream->Leave();
  EXPECT_EQ(seen.cancelled, 1);
  EXPECT_EQ(seen.failed, 300'000);
  EXPECT_EQ(seen.done, 1);
}

class Silent : public grpc::ServerWriteReactor<v1::ReadLogsResponse> {
 public:
  explicit Silent(Seen* seen) : seen_(seen) {}
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    ++seen_->done;
    delete this;
  }

 private:
  Seen* const seen_;
};

// Writes on a thread of its own once it is told to, and ends when that fails.
class Late : public grpc::ServerWriteReactor<v1::ReadLogsResponse> {
 public:
  explicit Late(Seen* seen) : seen_(seen) {}
  void Begin() { StartWrite(&answer_); }
  void OnWriteDone(bool ok) override {
    ++(ok ? seen_->written : seen_->failed);
    Finish(grpc::Status::CANCELLED);
  }
  void OnCancel() override { ++seen_->cancelled; }
  void OnDone() override {
    ++seen_->done;
    delete this;
  }

 private:
  Seen* const seen_;
  v1::ReadLogsResponse answer_;
};

TEST(LocalStreamTest, AWriteAfterTheReaderHasGoneEndsTheCallWithinItself) {
  Seen seen;
  auto* const late = new Late(&seen);
  std::weak_ptr<LocalStream> kept;
  {
    const auto stream = LocalStreamOf<v1::ReadLogsResponse>::Begin(late);
    kept = stream;
    stream->Leave();
  }
  EXPECT_FALSE(kept.expired());
  // The sanitizer sees what the call reads of itself after its end.
  late->Begin();
  EXPECT_EQ(seen.failed, 1);
  EXPECT_EQ(seen.done, 1);
  EXPECT_TRUE(kept.expired());
}

TEST(LocalStreamTest, NothingIsTakenBeforeItIsWritten) {
  Seen seen;
  const auto stream = LocalStreamOf<v1::ReadLogsResponse>::Begin(new Silent(&seen));
  EXPECT_EQ(stream->Take(Now(), [](const auto&) {}), LocalStream::Taken::kNothing);
  stream->Leave();
  EXPECT_EQ(stream->Take(Soon(), [](const auto&) {}), LocalStream::Taken::kEnd);
  EXPECT_EQ(seen.done, 1);
}

}  // namespace
}  // namespace meshrun::coordinator
