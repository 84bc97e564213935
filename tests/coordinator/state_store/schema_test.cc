// Whoever changes a record of the durable state is asked whether an older coordinator would misread
// it. What changes its meaning alone is not seen here.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "coordinator/state_store/sqlite_state_store.h"
#include "core/hash.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Every field that a message of the state has, at any depth, and every value of its enums.
void Describe(const Descriptor* type, std::set<std::string>* lines) {
  if (!lines->insert(type->full_name()).second) return;
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    lines->insert(field->DebugString() + field->full_name());
    if (field->message_type() != nullptr) Describe(field->message_type(), lines);
    if (field->enum_type() != nullptr) lines->insert(field->enum_type()->DebugString());
  }
}

TEST(SchemaTest, AChangeOfTheRecordsIsDecidedUpon) {
  std::set<std::string> lines = {v1::StateTable_descriptor()->DebugString()};
  for (const Descriptor* const type :
       {v1::JobRecord::descriptor(), v1::NodeRecord::descriptor(), v1::World::descriptor(),
        v1::MemberRecord::descriptor(), v1::BarrierPassed::descriptor(),
        v1::ClusterEvent::descriptor(), v1::UsageRecord::descriptor(),
        v1::AuditRecord::descriptor(), v1::StateBatch::descriptor(),
        v1::AddValueResponse::descriptor(), v1::DeleteKeyResponse::descriptor(),
        v1::CompareSetValueResponse::descriptor()}) {
    Describe(type, &lines);
  }
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  constexpr char kKnown[] = "11e39416236587e1";
  const std::string now = HexEncode(Sha256(all)).substr(0, 16);
  EXPECT_EQ(now, kKnown)
      << "the records of the state have changed. Would a coordinator of before misread what this "
         "one writes: a field it does not know that it must not pass over, or a known one that "
         "means something else? Then raise kSchemaVersion ("
      << kSchemaVersion << ") and say why there. In either case write " << now << " here.";
}

}  // namespace
}  // namespace meshrun::coordinator
