#include "core/wait_messages.h"

#include <algorithm>

#include "core/fingerprint.h"
#include "core/proto_time.h"
#include "core/wait_bytes.h"

namespace meshrun {
namespace {

// Most members of a group in a received message.
constexpr size_t kMostMembers = 1 << 20;

struct Row {
  int first = 0;
  int count = 0;
  int stride = 1;
};

std::vector<Row> RowsOf(const std::vector<int>& ranks) {
  std::vector<Row> rows;
  for (size_t i = 0; i < ranks.size();) {
    Row row{ranks[i], 1, 1};
    if (i + 1 < ranks.size()) row.stride = ranks[i + 1] - ranks[i];
    while (i + row.count < ranks.size() &&
           ranks[i + row.count] - ranks[i + row.count - 1] == row.stride) {
      ++row.count;
    }
    i += row.count;
    rows.push_back(row);
  }
  return rows;
}

void SetMembers(const std::vector<int>& members, v1::WaitCall* call) {
  const std::vector<Row> rows = RowsOf(members);
  if (3 * rows.size() >= members.size()) {
    call->mutable_members()->Add(members.begin(), members.end());
    return;
  }
  for (const Row& row : rows) {
    call->add_member_rows(row.first);
    call->add_member_rows(row.count);
    call->add_member_rows(row.stride);
  }
}

// None where there are too many of them.
GroupMembers MembersOf(const v1::WaitCall& call) {
  std::vector<int> members(call.members().begin(), call.members().end());
  for (int i = 0; i + 2 < call.member_rows_size(); i += 3) {
    const int64_t first = call.member_rows(i), stride = call.member_rows(i + 2);
    const int count = call.member_rows(i + 1);
    if (count < 0 || members.size() + count > kMostMembers) return {};
    for (int at = 0; at < count; ++at) members.push_back(static_cast<int>(first + at * stride));
  }
  return members;
}

}  // namespace

uint64_t GroupId(const v1::WaitCall& call) {
  std::string text = call.group();
  const auto add = [&text](const auto& numbers) {
    text += '\0';
    text.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int32_t));
  };
  add(call.members());
  add(call.member_rows());
  return std::max<uint64_t>(Fingerprint(text), 1);
}

v1::WaitReport ToProto(const WaitReport& report) {
  v1::WaitReport out;
  out.set_rank(report.rank);
  for (const WaitCall& call : report.calls) {
    v1::WaitCall& added = *out.add_calls();
    added.set_group(call.group);
    SetMembers(call.members.ranks(), &added);
    added.set_sequence(call.sequence);
    added.mutable_peers()->Add(call.peers.begin(), call.peers.end());
    added.set_operation(call.operation);
    added.set_moving(call.is_moving);
  }
  out.mutable_called()->insert(report.called.begin(), report.called.end());
  out.mutable_sending_to()->Add(report.sending_to.begin(), report.sending_to.end());
  out.mutable_receiving_from()->Add(report.receiving_from.begin(), report.receiving_from.end());
  out.set_other_threads(static_cast<uint32_t>(report.other_threads));
  *out.mutable_deadlock_after() = ToProtoDuration(report.deadlock_after);
  return out;
}

v1::WaitVerdict ToProto(const WaitVerdict& verdict) {
  v1::WaitVerdict out;
  out.set_message(verdict.message);
  out.mutable_ranks()->Add(verdict.ranks.begin(), verdict.ranks.end());
  out.set_deadlock(verdict.deadlock);
  for (const WaitVerdict::Group& group : verdict.groups) {
    v1::WaitVerdict::Group& added = *out.add_groups();
    added.set_name(group.name);
    added.mutable_members()->Add(group.members.begin(), group.members.end());
    added.set_resume_at(group.resume_at);
  }
  return out;
}

WaitReport FromProto(const v1::WaitReport& report) {
  WaitReport out;
  out.rank = report.rank();
  for (const v1::WaitCall& call : report.calls()) {
    out.calls.push_back({call.group(),
                         MembersOf(call),
                         call.sequence(),
                         {call.peers().begin(), call.peers().end()},
                         call.operation(),
                         call.moving()});
  }
  out.called.insert(report.called().begin(), report.called().end());
  out.sending_to.insert(report.sending_to().begin(), report.sending_to().end());
  out.receiving_from.insert(report.receiving_from().begin(), report.receiving_from().end());
  out.other_threads = static_cast<int>(report.other_threads());
  out.deadlock_after = FromProto(report.deadlock_after());
  return out;
}

WaitVerdict FromProto(const v1::WaitVerdict& verdict) {
  WaitVerdict out;
  out.message = verdict.message();
  out.ranks.assign(verdict.ranks().begin(), verdict.ranks().end());
  out.deadlock = verdict.deadlock();
  for (const v1::WaitVerdict::Group& group : verdict.groups()) {
    out.groups.push_back(
        {group.name(), {group.members().begin(), group.members().end()}, group.resume_at()});
  }
  return out;
}

std::string Serialize(const WaitReport& report) { return ToProto(report).SerializeAsString(); }
std::string Serialize(const WaitVerdict& verdict) { return ToProto(verdict).SerializeAsString(); }

std::optional<WaitReport> ParseWaitReport(std::string_view bytes) {
  v1::WaitReport message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  return FromProto(message);
}

std::optional<WaitVerdict> ParseWaitVerdict(std::string_view bytes) {
  v1::WaitVerdict message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  return FromProto(message);
}

}  // namespace meshrun
