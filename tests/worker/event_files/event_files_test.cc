#include "worker/event_files/event_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "core/os/files.h"
#include "worker/event_files/event_record.h"

namespace meshrun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using Event = tensorboard::Event;

constexpr uid_t kNobody = 65534;
constexpr WallNanos kNow = std::chrono::seconds(1'700'000'000);

// Root of a user namespace, such as a sandbox's, is no other user's.
bool CanBecome(uid_t user) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setresuid(user, user, user) == 0 ? 0 : 1);
  int status = 1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

uint64_t Little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

uint32_t Unmasked(uint64_t masked) {
  const auto turned = static_cast<uint32_t>(masked) - 0xa282ead8;
  return (turned >> 17) | (turned << 15);
}

std::vector<Event> Parse(std::string_view file) {
  std::vector<Event> events;
  while (!file.empty()) {
    EXPECT_GE(file.size(), 16u);
    const uint64_t length = Little(file.substr(0, 8));
    EXPECT_EQ(Unmasked(Little(file.substr(8, 4))), Crc32c(file.substr(0, 8)));
    const std::string_view body = file.substr(12, length);
    EXPECT_EQ(Unmasked(Little(file.substr(12 + length, 4))), Crc32c(body));
    EXPECT_TRUE(events.emplace_back().ParseFromArray(body.data(), static_cast<int>(body.size())));
    file.remove_prefix(16 + length);
  }
  return events;
}

std::map<std::string, float> Values(const Event& event) {
  std::map<std::string, float> values;
  for (const auto& value : event.summary().value()) values[value.tag()] = value.simple_value();
  return values;
}

v1::Progress Report(int64_t step, double loss) {
  v1::Progress report;
  report.set_step(step);
  report.set_loss(loss);
  return report;
}

TEST(EventRecordTest, HasTheChecksumOfRfc3720) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
}

TEST(RankCurveTest, APointHasTheNumbersOfItsReportAlone) {
  RankCurve curve;
  v1::Progress report = Report(3, 0.5);
  (*report.mutable_metrics())["accuracy"] = 0.25;
  const std::vector<Event> first = Parse(curve.Add(report, kNow));
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(first[0].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(first[0].step(), 3);
  EXPECT_EQ(first[1].step(), 3);
  EXPECT_EQ(first[1].wall_time(), 1.7e9);
  EXPECT_THAT(Values(first[1]), ElementsAre(Pair("accuracy", 0.25f), Pair("loss", 0.5f)));

  const std::vector<Event> second = Parse(curve.Add(Report(4, 0.25), kNow));
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_THAT(Values(second[0]), ElementsAre(Pair("loss", 0.25f)));
}

TEST(RankCurveTest, AReportWithoutNumbersIsNoPoint) {
  RankCurve curve;
  v1::Progress note;
  note.set_note("evaluating");
  EXPECT_EQ(curve.Add(note, kNow), "");
  v1::Progress step;
  step.set_step(7);
  EXPECT_EQ(curve.Add(step, kNow), "");
  v1::Progress late;
  late.set_loss(2);
  EXPECT_EQ(Parse(curve.Add(late, kNow)).back().step(), 7);
}

TEST(RankCurveTest, ReportsWithoutAnyStepAreCounted) {
  RankCurve curve;
  v1::Progress report;
  report.set_loss(2);
  EXPECT_EQ(Parse(curve.Add(report, kNow)).back().step(), 1);
  EXPECT_EQ(Parse(curve.Add(report, kNow)).back().step(), 2);
}

TEST(RankCurveTest, ALaterStepTellsHowLongStepsTakeAndHowMuchIsWaited) {
  RankCurve curve;
  const auto at = [](int64_t step, int64_t seconds, double waited) {
    v1::Progress report;
    report.set_step(step);
    report.set_step_at_nanos(seconds * 1'000'000'000);
    report.set_waited_seconds(waited);
    return report;
  };
  EXPECT_EQ(curve.Add(at(10, 100, 1.0), kNow), "");
  const Event event = Parse(curve.Add(at(14, 108, 3.0), kNow)).back();
  EXPECT_THAT(Values(event),
              ElementsAre(Pair("meshrun/step_seconds", 2.0f), Pair("meshrun/waited_share", 0.25f)));
  // A second report of the same step measures nothing.
  EXPECT_EQ(curve.Add(at(14, 108, 3.0), kNow), "");
  // Steps that go back, after a restart in process, begin anew.
  EXPECT_EQ(curve.Add(at(2, 110, 3.0), kNow), "");
  EXPECT_EQ(Values(Parse(curve.Add(at(3, 111, 3.0), kNow)).back())["meshrun/step_seconds"], 1.0f);
}

TEST(RankCurveTest, ATotalOfWaitingThatBeginsAnewIsNoShare) {
  RankCurve curve;
  const auto at = [](int64_t step, double waited) {
    v1::Progress report;
    report.set_step(step);
    report.set_step_at_nanos(step * 1'000'000'000);
    report.set_waited_seconds(waited);
    return report;
  };
  curve.Add(at(1, 3.0), kNow);
  EXPECT_THAT(Values(Parse(curve.Add(at(2, 0.5), kNow)).back()),
              ElementsAre(Pair("meshrun/step_seconds", 1.0f)));
  EXPECT_EQ(Values(Parse(curve.Add(at(3, 0.75), kNow)).back())["meshrun/waited_share"], 0.25f);
}

TEST(RankCurveTest, AReportThatIsSentTwiceIsOnePoint) {
  RankCurve curve;
  EXPECT_NE(curve.Add(Report(40, 0.5), kNow), "");
  EXPECT_EQ(curve.Add(Report(40, 0.5), kNow), "");
  EXPECT_NE(curve.Add(Report(40, 0.25), kNow), "");
  EXPECT_NE(curve.Add(Report(41, 0.25), kNow), "");
}

// A program that makes a new name at each step.
TEST(RankCurveTest, NamesBeyondTheMostArePassedOver) {
  RankCurve curve;
  const auto report = [](const std::string& name, int64_t step) {
    v1::Progress out;
    out.set_step(step);
    (*out.mutable_metrics())[name] = 1;
    return out;
  };
  for (size_t i = 0; i < RankCurve::kMostTags; ++i) {
    EXPECT_NE(curve.Add(report("name" + std::to_string(i), 1), kNow), "");
  }
  EXPECT_EQ(curve.Add(report("another", 2), kNow), "");
  EXPECT_NE(curve.Add(report("name0", 2), kNow), "");
}

TEST(RankCurveTest, OtherNamesLeaveTheLossItsPlace) {
  RankCurve curve;
  v1::Progress names;
  names.set_step(1);
  for (int i = 0; i < 70; ++i) (*names.mutable_metrics())["name" + std::to_string(i)] = i;
  EXPECT_THAT(Values(Parse(curve.Add(names, kNow)).back()), SizeIs(RankCurve::kMostTags));
  EXPECT_THAT(Values(Parse(curve.Add(Report(2, 0.5), kNow)).back()),
              ElementsAre(Pair("loss", 0.5f)));
  // And the loss takes none of theirs.
  RankCurve other;
  EXPECT_NE(other.Add(Report(1, 0.5), kNow), "");
  EXPECT_THAT(Values(Parse(other.Add(names, kNow)).back()), SizeIs(RankCurve::kMostTags));
}

TEST(RankCurveTest, ZeroIsWritten) {
  RankCurve curve;
  const Event event = Parse(curve.Add(Report(0, 0), kNow)).back();
  EXPECT_TRUE(event.summary().value(0).has_simple_value());
}

TEST(RankCurveTest, NotANumberStaysOne) {
  RankCurve curve;
  const Event event =
      Parse(curve.Add(Report(1, std::numeric_limits<double>::quiet_NaN()), kNow)).back();
  EXPECT_TRUE(std::isnan(event.summary().value(0).simple_value()));
}

class EventFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/event_files_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<std::string> FilesBelow(const std::string& name) const {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + name, error)) {
      files.push_back(entry.path().string());
    }
    return files;
  }

  std::string directory_;
};

TEST_F(EventFilesTest, AFileBeginsWithTheFirstNumberAndHasAllPoints) {
  auto files = *EventFiles::Start(nullptr);
  v1::Progress note;
  note.set_note("starting");
  files->Add(0, directory_ + "/job/rank0", "host.1.1", note, kNow);
  // More than fits in the socket at once.
  constexpr int kReports = 20'000;
  for (int i = 0; i < kReports; ++i) {
    files->Add(0, directory_ + "/job/rank0", "host.1.1", Report(i, i), kNow);
  }
  files.reset();
  const std::vector<std::string> found = FilesBelow("/job/rank0");
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0], EndsWith("/events.out.tfevents.1700000000.host.1.1"));
  const std::vector<Event> events = Parse(*os::ReadFile(found[0]));
  ASSERT_THAT(events, SizeIs(kReports + 2));
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events.back().step(), kReports - 1);
}

TEST_F(EventFilesTest, EachProcessHasItsOwnFile) {
  auto files = *EventFiles::Start(nullptr);
  files->Add(0, directory_ + "/rank0", "host.1.1", Report(1, 1), kNow);
  files->Add(1, directory_ + "/rank1", "host.2.1", Report(1, 2), kNow);
  files->Add(2, directory_ + "/rank0", "host.3.2", Report(2, 3), kNow);
  files.reset();
  EXPECT_THAT(FilesBelow("/rank0"), SizeIs(2));
  EXPECT_THAT(FilesBelow("/rank1"), SizeIs(1));
}

TEST_F(EventFilesTest, APathThatCannotBeWrittenIsNamedOnceAndNothingBlocks) {
  ASSERT_TRUE(os::WriteFileAtomically(directory_ + "/file", "").ok());
  auto files = *EventFiles::Start(nullptr);
  for (int i = 0; i < 3; ++i) {
    files->Add(4, directory_ + "/file/rank0", "host.1.1", Report(i, i), kNow);
  }
  pollfd ready = {files->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 5000), 1);
  const auto problems = files->TakeProblems();
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].process, 4u);
  EXPECT_EQ(problems[0].error, ENOTDIR);
  EXPECT_THAT(problems[0].path, EndsWith("/file/rank0"));
}

// A pipe in place of the file stands for a file system that does not answer.
TEST_F(EventFilesTest, AFileSystemThatHangsHoldsNobodyUp) {
  const std::string path = directory_ + "/events.out.tfevents.1700000000.host.1.1";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  auto files = *EventFiles::Start(nullptr);
  const std::string much(60'000, 'x');
  for (int i = 0; i < 200; ++i) {
    v1::Progress report = Report(i, i);
    (*report.mutable_metrics())[much] = 1;
    files->Add(0, directory_, "host.1.1", report, kNow);
  }
  EXPECT_GT(files->lost(), 0u);
  const auto began = std::chrono::steady_clock::now();
  files.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 2 * EventFiles::kPatience);
}

TEST_F(EventFilesTest, FilesBelongToTheUserOfTheRanks) {
  if (!CanBecome(kNobody)) GTEST_SKIP() << "only root writes as another user";
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  v1::RankUser nobody;
  nobody.set_name("nobody");
  nobody.set_uid(kNobody);
  nobody.set_gid(kNobody);
  auto files = *EventFiles::Start(&nobody);
  files->Add(0, directory_ + "/rank0", "host.1.1", Report(1, 1), kNow);
  files.reset();
  const std::vector<std::string> found = FilesBelow("/rank0");
  ASSERT_THAT(found, SizeIs(1));
  struct stat info = {};
  ASSERT_EQ(::stat(found[0].c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kNobody);
  // This thread is still root's.
  EXPECT_EQ(::geteuid(), 0u);
}

TEST_F(EventFilesTest, AUserWithoutRightsThereIsNamed) {
  if (!CanBecome(kNobody)) GTEST_SKIP() << "only root writes as another user";
  v1::RankUser nobody;
  nobody.set_uid(kNobody);
  nobody.set_gid(kNobody);
  auto files = *EventFiles::Start(&nobody);
  files->Add(0, directory_ + "/rank0", "host.1.1", Report(1, 1), kNow);
  pollfd ready = {files->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 5000), 1);
  const auto problems = files->TakeProblems();
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].error, EACCES);
  files.reset();
  EXPECT_THAT(FilesBelow("/rank0"), IsEmpty());
}

}  // namespace
}  // namespace meshrun::worker
