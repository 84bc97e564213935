// Answers of many ranks as one: how large it becomes, and what is said of the rest.
#include "coordinator/api/whole_answers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {
namespace {

using nlohmann::json;

// Writes an answer of each rank, until its reader leaves.
template <typename Response>
class Ranks : public grpc::ServerWriteReactor<Response> {
 public:
  using Fill = std::function<void(int rank, Response* answer)>;
  Ranks(int world_size, std::atomic<int>* written, Fill fill)
      : world_size_(world_size), written_(written), fill_(std::move(fill)) {
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    ++*written_;
    Next();
  }
  void OnCancel() override {}
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (next_ == world_size_) return this->Finish(grpc::Status::OK);
    answer_.Clear();
    fill_(next_++, &answer_);
    this->StartWrite(&answer_);
  }

  const int world_size_;
  std::atomic<int>* const written_;
  const Fill fill_;
  int next_ = 0;
  Response answer_;
};

class WholeAnswersTest : public ::testing::Test {
 protected:
  static constexpr int kWorldSize = 4096;

  template <typename Response>
  std::shared_ptr<LocalStream> Stream(int world_size, typename Ranks<Response>::Fill fill) {
    return LocalStreamOf<Response>::Begin(
        new Ranks<Response>(world_size, &written_, std::move(fill)));
  }
  json Stacks(int world_size, const std::string& text) {
    return Read(AllStacks(Stream<v1::GetStacksResponse>(world_size,
                                                        [text](int rank, auto* answer) {
                                                          answer->set_generation(2);
                                                          answer->mutable_stack()->set_rank(rank);
                                                          answer->mutable_stack()->set_text(text);
                                                        }),
                          Soon()));
  }
  json Records(int world_size, const std::string& text) {
    return Read(AllFlightRecords(
        Stream<v1::GetFlightRecordsResponse>(world_size,
                                             [text](int rank, auto* answer) {
                                               answer->set_generation(2);
                                               answer->mutable_record()->set_rank(rank);
                                               answer->mutable_record()->set_json(text);
                                             }),
        Soon()));
  }
  static Patience Soon() {
    return {.until = std::chrono::steady_clock::now() + std::chrono::seconds(60)};
  }
  static json Read(const absl::StatusOr<std::string>& answer) {
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? json::parse(*answer) : json::object();
  }

  std::atomic<int> written_{0};
};

TEST_F(WholeAnswersTest, StacksOfAllRanksThatFit) {
  const json answer = Stacks(3, "main");
  EXPECT_EQ(answer["stacks"].size(), 3u);
  EXPECT_EQ(answer["stacks"][2]["rank"], 2);
  EXPECT_EQ(answer["generation"], 2);
  EXPECT_EQ(answer["more"], false);
}

TEST_F(WholeAnswersTest, LargeStacksAreNotAllKept) {
  const std::string text(1 << 20, 'x');
  const json answer = Stacks(kWorldSize, text);
  EXPECT_EQ(answer["more"], true);
  EXPECT_EQ(answer["stacks"].size(), kMostAnswerBytes / text.size() - 1);
  // The rest was not asked for.
  EXPECT_LT(written_, 10);
}

TEST_F(WholeAnswersTest, LargeRecordsAreNotAllKept) {
  const json answer = Records(kWorldSize, std::string(500'000, ' '));
  EXPECT_EQ(answer["more"], true);
  EXPECT_EQ(answer["records"].size(), 8u);
  EXPECT_LT(written_, 20);
}

TEST_F(WholeAnswersTest, ARecordThatIsTooLargeLeavesRoomForTheOthers) {
  const json answer = Read(AllFlightRecords(
      Stream<v1::GetFlightRecordsResponse>(2,
                                           [](int rank, auto* answer) {
                                             answer->mutable_record()->set_rank(rank);
                                             answer->mutable_record()->set_json(
                                                 rank == 0 ? std::string(32 << 20, '[') : "{}");
                                           }),
      Soon()));
  EXPECT_EQ(answer["more"], false);
  ASSERT_EQ(answer["records"].size(), 2u);
  EXPECT_EQ(answer["records"][0]["json"], "");
  EXPECT_TRUE(
      answer["records"][0]["error"].get<std::string>().starts_with("its record has 335544"));
  EXPECT_EQ(answer["records"][1]["json"], "{}");
  EXPECT_EQ(answer["records"][1]["error"], "");
}

// Never writes.
class Silent : public grpc::ServerWriteReactor<v1::GetStacksResponse> {
 public:
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

TEST_F(WholeAnswersTest, RanksThatAreSilentAreNotAwaitedWhereTheAnswerHasNowhereToGo) {
  Patience patience = Soon();
  patience.gone = [] { return true; };
  const auto answer = AllStacks(LocalStreamOf<v1::GetStacksResponse>::Begin(new Silent), patience);
  EXPECT_TRUE(absl::IsUnavailable(answer.status())) << answer.status();
  EXPECT_LT(std::chrono::steady_clock::now(), patience.until);
}

TEST_F(WholeAnswersTest, RanksThatAreSilentHaveTheirTime) {
  const auto answer = AllStacks(LocalStreamOf<v1::GetStacksResponse>::Begin(new Silent),
                                {.until = std::chrono::steady_clock::now()});
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status())) << answer.status();
}

}  // namespace
}  // namespace meshrun::coordinator
