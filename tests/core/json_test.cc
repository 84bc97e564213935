#include "core/json/json.h"

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

TEST(ReadJsonTest, NamesTheFieldWithAWrongValue) {
  EXPECT_THAT(ErrorOf(R"({"now": "soon"})"), HasSubstr("now"));
  EXPECT_THAT(ErrorOf(R"({"firstSignal": 1e99})"), HasSubstr("firstSignal"));
  EXPECT_THAT(ErrorOf(R"({"reason": ["a"]})"), HasSubstr("reason"));
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

TEST(ReadJsonTest, RefusesANestThatIsTooDeep) {
  const std::string deep =
      "{\"reason\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(ErrorOf(deep), "the body is nested more than 32 levels deep");
}

}  // namespace
}  // namespace meshrun
