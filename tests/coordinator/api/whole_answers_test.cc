// Answers of many ranks as one: how large it becomes, and what is said of the rest.
#include "coordinator/api/whole_answers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/api/log_cursor.h"
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

// Files of ranks, as the services send them: in chunks, streams by turns, from the positions on.
class Files : public grpc::ServerWriteReactor<v1::ReadLogsResponse> {
 public:
  using Texts = std::map<std::pair<int, v1::LogStream>, std::string>;
  Files(const Texts& texts, const v1::ReadLogsRequest& request) {
    for (const auto& [file, text] : texts) rest_[file] = {0, text};
    for (const v1::LogPosition& from : request.positions()) {
      Rest& rest = rest_[{from.rank(), from.stream()}];
      rest = {from.offset(), rest.text.substr(from.offset())};
    }
    Next();
  }
  void OnWriteDone(bool ok) override { ok ? Next() : Finish(grpc::Status::CANCELLED); }
  void OnCancel() override {}
  void OnDone() override { delete this; }

 private:
  static constexpr size_t kChunk = 10'000;
  struct Rest {
    uint64_t offset = 0;
    std::string text;
  };

  void Next() {
    std::erase_if(rest_, [](const auto& file) { return file.second.text.empty(); });
    if (rest_.empty()) return Finish(grpc::Status::OK);
    auto turn = rest_.upper_bound(last_);
    if (turn == rest_.end()) turn = rest_.begin();
    last_ = turn->first;
    Rest& rest = turn->second;
    answer_.Clear();
    answer_.set_generation(2);
    answer_.set_rank(last_.first);
    answer_.set_stream(last_.second);
    answer_.set_offset(rest.offset);
    answer_.set_data(rest.text.substr(0, kChunk));
    rest = {rest.offset + answer_.data().size(), rest.text.substr(answer_.data().size())};
    StartWrite(&answer_);
  }

  std::map<std::pair<int, v1::LogStream>, Rest> rest_;
  std::pair<int, v1::LogStream> last_;
  v1::ReadLogsResponse answer_;
};

class LogPagesTest : public WholeAnswersTest {
 protected:
  json Page(const v1::ReadLogsRequest& request) {
    return Read(AllLogs(LocalStreamOf<v1::ReadLogsResponse>::Begin(new Files(texts_, request)),
                        request, Soon()));
  }
  // Adds a page to `found`.
  static void Add(const json& page, Files::Texts* found) {
    for (const json& piece : page["pieces"]) {
      std::string& text =
          (*found)[{piece["rank"].get<int>(),
                    piece["stream"] == "stderr" ? v1::LOG_STREAM_STDERR : v1::LOG_STREAM_STDOUT}];
      EXPECT_EQ(piece["offset"], text.size());
      text += piece["text"].get<std::string>();
    }
  }
  static v1::ReadLogsRequest After(const json& page) {
    v1::ReadLogsRequest request;
    EXPECT_TRUE(page.contains("next")) << page.dump().substr(0, 200);
    if (page.contains("next")) {
      EXPECT_TRUE(ReadLogCursor(page["next"].get<std::string>(), &request).ok());
    }
    return request;
  }
  // `bytes` long, and chunks and pages end within its characters.
  static std::string Text(size_t bytes) {
    std::string out = "a";
    while (out.size() + 3 <= bytes) out += "\u20ac";
    return out + std::string(bytes - out.size(), '.');
  }

  Files::Texts texts_;
};

TEST_F(LogPagesTest, TheWholeTextIsFoundByFollowingNext) {
  texts_[{0, v1::LOG_STREAM_STDOUT}] = Text(3'000'000);
  texts_[{0, v1::LOG_STREAM_STDERR}] = Text(17);
  texts_[{11, v1::LOG_STREAM_STDOUT}] = Text(1'500'001);
  Files::Texts found;
  v1::ReadLogsRequest request;
  int pages = 0;
  while (true) {
    const json page = Page(request);
    ASSERT_LT(++pages, 10);
    Add(page, &found);
    request = After(page);
    EXPECT_EQ(request.generation(), 2u);
    if (page["more"] == false) break;
  }
  EXPECT_EQ(pages, 5);
  EXPECT_TRUE(found == texts_);
}

TEST_F(LogPagesTest, TheLastPageTellsWhereLaterOutputBegins) {
  texts_[{3, v1::LOG_STREAM_STDERR}] = "step 1\n";
  const json first = Page({});
  EXPECT_EQ(first["more"], false);
  EXPECT_EQ(first["next"], "2.3e7");
  // A stream without news keeps its place.
  EXPECT_EQ(Page(After(first))["next"], "2.3e7");
  EXPECT_TRUE(Page(After(first))["pieces"].empty());
  texts_[{3, v1::LOG_STREAM_STDERR}] += "step 2\n";
  const json later = Page(After(first));
  ASSERT_EQ(later["pieces"].size(), 1u);
  EXPECT_EQ(later["pieces"][0]["text"], "step 2\n");
  EXPECT_EQ(later["next"], "2.3e14");
}

TEST_F(LogPagesTest, BeforeThereIsOutputThereIsNoPlace) {
  const json page = Page({});
  EXPECT_EQ(page["more"], false);
  EXPECT_FALSE(page.contains("next"));
}

TEST_F(LogPagesTest, TooManyRanksForOneAddressAreToldToBeFewer) {
  for (int rank = 0; rank < 2000; ++rank) texts_[{rank, v1::LOG_STREAM_STDOUT}] = Text(1000);
  const json page = Page({});
  EXPECT_EQ(page["more"], true);
  EXPECT_FALSE(page.contains("next"));
  EXPECT_NE(page["problem"].get<std::string>().find("ask for fewer ranks"), std::string::npos);
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
