#include "core/rpc/bounds.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meshrun/v1/agent_service.pb.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/store_service.pb.h"

namespace meshrun::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

bool IsText(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

// Every field that a request can contain is looked at once.
class Requests {
 public:
  Requests() {
    for (const auto& entry : std::filesystem::directory_iterator("proto/meshrun/v1")) {
      const std::string name = "meshrun/v1/" + entry.path().filename().string();
      const auto* const file = DescriptorPool::generated_pool()->FindFileByName(name);
      for (int s = 0; file != nullptr && s < file->service_count(); ++s) {
        ++services;
        for (int m = 0; m < file->service(s)->method_count(); ++m) {
          types.push_back(file->service(s)->method(m)->input_type());
          Add(types.back());
        }
      }
    }
  }
  int services = 0;
  std::vector<const Descriptor*> types;
  std::vector<const FieldDescriptor*> fields;

 private:
  void Add(const Descriptor* type) {
    if (type->full_name().starts_with("google.") || !seen_.insert(type).second) return;
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* const field = type->field(i);
      fields.push_back(field);
      const Descriptor* within = field->message_type();
      if (field->is_map()) within = within->map_value()->message_type();
      if (within != nullptr) Add(within);
    }
  }
  std::set<const Descriptor*> seen_;
};

TEST(BoundsTest, EveryFieldOfARequestHasBounds) {
  const Requests requests;
  EXPECT_EQ(requests.services, 5);
  EXPECT_GT(requests.fields.size(), 200u);
  for (const FieldDescriptor* const field : requests.fields) {
    const FieldBounds bounds = BoundsOf(*field);
    const bool has_text = field->is_map() ? IsText(field->message_type()->map_key()) ||
                                                IsText(field->message_type()->map_value())
                                          : IsText(field);
    EXPECT_EQ(bounds.max_items > 0, field->is_repeated())
        << field->full_name() << ": max_items belongs to repeated fields, and to all of them";
    EXPECT_EQ(bounds.max_bytes > 0, has_text)
        << field->full_name() << ": max_bytes belongs to fields with strings, and to all of them";
  }
}

TEST(BoundsTest, LargeJobsFit) {
  for (const FieldDescriptor* const field : Requests().fields) {
    const bool of_ranks = field->is_repeated() && field->name().find("rank") != std::string::npos;
    if (!of_ranks) continue;
    EXPECT_GE(BoundsOf(*field).max_items, 16'384u) << field->full_name();
  }
}

std::string Refusal(const google::protobuf::Message& message) {
  const absl::Status status = CheckBounds(message);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(BoundsTest, TheFieldIsNamedWithBothNumbers) {
  v1::CancelJobRequest request;
  request.set_reason(std::string(4096, 'x'));
  EXPECT_EQ(Refusal(request), "");
  request.set_reason(std::string(20 << 20, 'x'));
  EXPECT_EQ(Refusal(request), "reason has 20971520 bytes, and at most 4096 are taken");
}

TEST(BoundsTest, ListsAndWhatIsInThem) {
  v1::ReadLogsRequest logs;
  for (int i = 0; i < 65'536; ++i) logs.add_ranks(i);
  EXPECT_EQ(Refusal(logs), "");
  logs.add_ranks(0);
  EXPECT_EQ(Refusal(logs), "ranks has 65537 items, and at most 65536 are taken");
  v1::WaitKeysRequest keys;
  keys.add_keys("a");
  keys.add_keys(std::string(5000, 'k'));
  EXPECT_EQ(Refusal(keys), "keys has 5000 bytes, and at most 4096 are taken");
}

TEST(BoundsTest, MessagesWithinMessages) {
  v1::SubmitJobRequest submit;
  v1::EnvEntry& entry = *submit.mutable_spec()->add_env();
  entry.set_name("A");
  entry.set_value(std::string((1 << 20) + 1, 'v'));
  EXPECT_EQ(Refusal(submit), "value has 1048577 bytes, and at most 1048576 are taken");
  v1::OpenSessionRequest session;
  EXPECT_EQ(Refusal(session), "");
  v1::RankExit& exit = *session.mutable_hello()->add_running()->add_exits();
  for (int i = 0; i < 65; ++i) exit.add_last_lines("x");
  EXPECT_EQ(Refusal(session), "last_lines has 65 items, and at most 64 are taken");
}

// Calls `then` with each Duration in the message, while only the messages on the way to it are set.
template <typename Then>
void ForEachDuration(google::protobuf::Message& message, int depth, const Then& then) {
  const auto* const reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    if (field->message_type() == nullptr || field->is_map() || depth > 6) continue;
    auto* const within = field->is_repeated() ? reflection->AddMessage(&message, field)
                                              : reflection->MutableMessage(&message, field);
    if (field->message_type()->full_name() == "google.protobuf.Duration") {
      then(field, static_cast<google::protobuf::Duration&>(*within));
    } else if (!field->message_type()->full_name().starts_with("google.")) {
      ForEachDuration(*within, depth + 1, then);
    }
    if (field->is_repeated()) {
      reflection->RemoveLast(&message, field);
    } else {
      reflection->ClearField(&message, field);
    }
  }
}

TEST(BoundsTest, NoDurationOfARequestIsNegative) {
  std::set<std::string> seen;
  for (const Descriptor* const type : Requests().types) {
    const auto* const prototype =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type);
    const std::unique_ptr<google::protobuf::Message> request(prototype->New());
    ForEachDuration(*request, 0, [&](const FieldDescriptor* field, auto& duration) {
      seen.insert(field->full_name());
      const auto refusal_of = [&](int64_t seconds, int32_t nanos) {
        duration.set_seconds(seconds);
        duration.set_nanos(nanos);
        return Refusal(*request);
      };
      EXPECT_EQ(refusal_of(0, 0), "") << field->full_name();
      EXPECT_EQ(refusal_of(365 * 24 * 3600, 999'999'999), "") << field->full_name();
      EXPECT_EQ(refusal_of(3'155'760'000, 0), "") << field->full_name();
      EXPECT_EQ(refusal_of(3'155'760'001, 0), field->name() +
                                                  " is 3155760001 s, and only durations from 0 to "
                                                  "3155760000 s are taken");
      EXPECT_EQ(refusal_of(-5, 0), field->name() +
                                       " is -5 s, and only durations from 0 to "
                                       "3155760000 s are taken");
      EXPECT_EQ(refusal_of(0, -1), field->name() +
                                       " is 0 s and -1 ns, and only durations from 0 "
                                       "to 3155760000 s are taken");
      // It would be more nanoseconds than can be counted.
      EXPECT_NE(refusal_of(std::numeric_limits<int64_t>::max(), 0), "") << field->full_name();
      EXPECT_NE(refusal_of(1, 1'000'000'000), "") << field->full_name();
    });
  }
  EXPECT_TRUE(seen.contains("meshrun.v1.DrainNodeRequest.deadline"));
  EXPECT_TRUE(seen.contains("meshrun.v1.JobSpec.time_limit"));
  EXPECT_TRUE(seen.contains("meshrun.v1.Hello.fence_after"));
  EXPECT_GE(seen.size(), 12u);
}

TEST(BoundsTest, KeysAndValuesOfMaps) {
  v1::SetValuesRequest set;
  (*set.mutable_values())["k"] = std::string(20 << 20, 'v');
  EXPECT_EQ(Refusal(set), "") << "the store has its own limit, with its own code";
  (*set.mutable_values())["k"] = std::string((32 << 20) + 1, 'v');
  EXPECT_EQ(Refusal(set), "values has 33554433 bytes, and at most 33554432 are taken");
  v1::OpenSessionRequest session;
  auto& labels = *session.mutable_hello()->mutable_labels();
  labels[std::string(1001, 'k')] = "";
  EXPECT_EQ(Refusal(session), "labels has 1001 bytes, and at most 1000 are taken");
  labels.clear();
  labels["zone"] = std::string(1001, 'v');
  EXPECT_EQ(Refusal(session), "labels has 1001 bytes, and at most 1000 are taken");
  v1::OpenSessionRequest report;
  v1::Progress& progress = (*report.mutable_progress_report()->mutable_progress())[3];
  progress.set_note(std::string(70'000, 'n'));
  EXPECT_EQ(Refusal(report), "note has 70000 bytes, and at most 65536 are taken");
  v1::OpenSessionRequest other;
  v1::Progress& with_metrics = (*other.mutable_progress_report()->mutable_progress())[3];
  (*with_metrics.mutable_metrics())[std::string(2000, 'm')] = 1;
  EXPECT_EQ(Refusal(other), "metrics has 2000 bytes, and at most 1000 are taken");
}

}  // namespace
}  // namespace meshrun::rpc
