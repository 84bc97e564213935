#include "core/json/json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/json/read_json.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun {
namespace {

using testing::HasSubstr;

// All fields may be named.
absl::Status Read(std::string_view text, google::protobuf::Message* message) {
  std::vector<std::string_view> fields;
  const auto& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) fields.push_back(type.field(i)->name());
  return ReadJson(text, fields, message);
}

std::string ErrorOf(std::string_view text) {
  v1::CancelJobRequest request;
  const absl::Status status = Read(text, &request);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
  return std::string(status.message());
}

TEST(ReadJsonTest, ReadsTheNamesThatToJsonWrites) {
  v1::WatchJobResponse written;
  written.mutable_job()->set_job_id("geoid-k3x9w2");
  written.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  written.mutable_job()->set_generation(uint64_t{1} << 62);
  written.mutable_job()->mutable_submitted_at()->set_seconds(1'780'000'000);
  written.add_curve()->set_loss(0.25);
  v1::WatchJobResponse read;
  ASSERT_TRUE(Read(ToJson(written), &read).ok());
  EXPECT_EQ(ToJson(read), ToJson(written));
  EXPECT_EQ(read.job().generation(), uint64_t{1} << 62);
}

TEST(ReadJsonTest, KeepsWhatTheTextDoesNotName) {
  v1::CancelJobRequest request;
  request.set_job_id("geoid-k3x9w2");
  ASSERT_TRUE(Read(R"({"now": true, "reason": null})", &request).ok());
  EXPECT_EQ(request.job_id(), "geoid-k3x9w2");
  EXPECT_TRUE(request.now());
  EXPECT_EQ(request.reason(), "");
}

TEST(ReadJsonTest, ADurationIsSeconds) {
  v1::DrainNodeRequest request;
  ASSERT_TRUE(Read(R"({"deadline": "1.5s"})", &request).ok());
  EXPECT_EQ(request.deadline().seconds(), 1);
  EXPECT_EQ(request.deadline().nanos(), 500'000'000);
}

TEST(ReadJsonTest, NamesAFieldThatIsNotThereAndThoseThatAre) {
  EXPECT_EQ(ErrorOf(R"({"noww": true})"),
            "there is no field 'noww': this body has jobId, now, reason, firstSignal");
}

TEST(ReadJsonTest, AFieldThatIsNotTheBodysIsNoField) {
  static constexpr std::string_view kFields[] = {"first_signal"};
  v1::CancelJobRequest request;
  const absl::Status status = ReadJson(R"({"jobId": "geoid"})", kFields, &request);
  EXPECT_EQ(status.message(), "there is no field 'jobId': this body has firstSignal");
  const absl::Status none = ReadJson(R"({"jobId": "geoid"})", {}, &request);
  EXPECT_EQ(none.message(), "there is no field 'jobId': this body has none, write {}");
}

TEST(ToJsonLineTest, IsOneLine) {
  v1::CancelJobRequest request;
  request.set_reason("first\nsecond");
  EXPECT_EQ(ToJsonLine(request),
            R"({"jobId":"","now":false,"reason":"first\nsecond","firstSignal":0})");
}

std::string ErrorOf(std::string_view text, google::protobuf::Message&& message) {
  const absl::Status status = Read(text, &message);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
  return std::string(status.message());
}

TEST(ReadJsonTest, AValueOfAnotherTypeIsRefused) {
  for (const char* value : {"\"yes\"", "\"true\"", "\"false\"", "1", "0", "[]", "{}"}) {
    EXPECT_EQ(ErrorOf(fmt::format(R"({{"now": {}}})", value)),
              "now: write true or false, without quotes")
        << value;
  }
  for (const char* value : {"1", "true", R"(["a"])", "{}"}) {
    EXPECT_EQ(ErrorOf(fmt::format(R"({{"reason": {}}})", value)), "reason: write text, in quotes")
        << value;
  }
  for (const char* value : {"\"3\"", "1e99", "0.5", "true", "[3]", "2147483648", "-2147483649"}) {
    EXPECT_EQ(ErrorOf(fmt::format(R"({{"firstSignal": {}}})", value)),
              "firstSignal: write a whole number from -2147483648 to 2147483647, without quotes")
        << value;
  }
  EXPECT_THAT(ErrorOf(R"({"maxRanks": -1})", v1::GetJobRequest()),
              HasSubstr("maxRanks: write a whole number from 0 to 4294967295"));
  EXPECT_THAT(ErrorOf(R"({"after": "7"})", v1::ListEventsRequest()),
              HasSubstr("after: write a whole number from 0 to 18446744073709551615"));
  EXPECT_EQ(ErrorOf(R"({"ranks": 0})", v1::GetStacksRequest()), "ranks: write a list: [...]");
  EXPECT_THAT(ErrorOf(R"({"ranks": [0, "1"]})", v1::GetStacksRequest()),
              HasSubstr("ranks[1]: write a whole number"));
  EXPECT_EQ(ErrorOf(R"({"streams": ["stdout"]})", v1::ReadLogsRequest()),
            R"(streams[0]: write one of "LOG_STREAM_UNSPECIFIED", "LOG_STREAM_STDOUT", )"
            R"("LOG_STREAM_STDERR")");
  EXPECT_EQ(ErrorOf(R"({"since": "yesterday"})", v1::ListUsageRequest()),
            R"(since: write a time such as "2026-11-23T07:15:00Z")");
  EXPECT_EQ(ErrorOf(R"({"spec": {"requeue": "no", "gpusPerProc": 1}})", v1::SubmitJobRequest()),
            "there is no field 'spec.requeue'");
  EXPECT_EQ(ErrorOf(R"({"spec": {"env": [{"name": 5}]}})", v1::SubmitJobRequest()),
            "spec.env[0].name: write text, in quotes");
}

TEST(ReadJsonTest, AWholeNumberMayHaveAPoint) {
  v1::CancelJobRequest request;
  ASSERT_TRUE(Read(R"({"firstSignal": 15.0})", &request).ok());
  EXPECT_EQ(request.first_signal(), 15);
}

TEST(ReadJsonTest, AWrongDurationIsToldHowDurationsAreWritten) {
  for (const char* value :
       {"\"5m\"", "\"-5s\"", "\"-3600s\"", "\"\"", "\"s\"", "\"5\"", "\"1.s\"", "\".5s\"",
        "\"1e3s\"", "\" 5s\"", "\"5s \"", "\"+5s\"", "5", "{}", "\"1.0123456789s\"",
        "\"9999999999s\"", "\"3155760001s\"", "\"99999999999999999999s\""}) {
    EXPECT_EQ(ErrorOf(fmt::format(R"({{"deadline": {}}})", value), v1::DrainNodeRequest()),
              "deadline: write seconds with an s, a hundred years at most, such as \"300s\" or "
              "\"0.5s\"")
        << value;
  }
  v1::DrainNodeRequest request;
  EXPECT_TRUE(Read(R"({"deadline": "0s"})", &request).ok());
  EXPECT_TRUE(request.has_deadline());
  // As over gRPC (BoundsTest).
  EXPECT_TRUE(Read(R"({"deadline": "3155760000s"})", &request).ok());
  EXPECT_EQ(request.deadline().seconds(), 3'155'760'000);
}

TEST(ReadJsonTest, RefusesWhatIsNotAnObject) {
  for (const char* text : {"[]", "1", "\"now\"", "null", "true"}) {
    EXPECT_EQ(ErrorOf(text), "the body is not an object in JSON: write {...}");
  }
}

TEST(ReadJsonTest, SaysWhereTheTextIsNotJson) {
  EXPECT_EQ(ErrorOf(R"({"now": tru})"), "the body is not JSON: byte 12 cannot be read");
  EXPECT_EQ(ErrorOf(""), "the body is not JSON: byte 1 cannot be read");
  EXPECT_EQ(ErrorOf("now=true"), "the body is not JSON: byte 2 cannot be read");
}

TEST(ReadJsonTest, RefusesAKeyThatAnObjectHasTwice) {
  for (const char* text :
       {R"({"now": "yes", "now": null})", R"({"now": true, "reason": "", "now": true})",
        R"({"now": true, "n\u006fw": false})", R"({"reason": {"now": 1}, "now": 1, "now": 2})"}) {
    EXPECT_EQ(ErrorOf(text), "an object of the body has 'now' twice: write it once") << text;
  }
  EXPECT_EQ(ErrorOf(R"({"spec": {"env": [{"name": "A"}, {"value": "1", "value": "2"}]}})",
                    v1::SubmitJobRequest()),
            "an object of the body has 'value' twice: write it once");
  // Each object has its own.
  v1::SubmitJobRequest request;
  const absl::Status status =
      Read(R"({"spec": {"name": "a", "env": [{"name": "QQ=="}, {"name": "Qg=="}]}})", &request);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(request.spec().env_size(), 2);
}

TEST(ReadJsonTest, RefusesANumberThatIsTooLarge) {
  for (const char* number : {"1e999", "-1e999", "1e400", "[1e999]", "{\"a\": 1e999}"}) {
    EXPECT_EQ(ErrorOf(fmt::format(R"({{"firstSignal": {}}})", number)),
              "the body has a number that is too large: write at most 1e308")
        << number;
  }
}

TEST(ReadJsonTest, RefusesANestThatIsTooDeep) {
  const std::string deep =
      "{\"reason\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(ErrorOf(deep), "the body is nested more than 32 levels deep");
}

}  // namespace
}  // namespace meshrun
