// Records that are only ever added, a durable row each. They are numbered from 1 upwards, and the
// newest of them are kept.
//
// They are kept as their bytes, which take a fraction of the memory of their messages. A page of
// them is read at a time, and a page looks at so many records at most: a search of all takes
// several calls, and others are served between them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "coordinator/state_machine/context.h"
#include "core/proto_time.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// `Record`: a message with a `sequence`, and a time which `kTimeOf` reads.
template <typename Record, const google::protobuf::Timestamp& (Record::*kTimeOf)() const>
class RowLog {
 public:
  static constexpr size_t kMostLookedAt = 2000;
  static constexpr size_t kMostPageBytes = 1 << 20;

  explicit RowLog(v1::StateTable table) : table_(table) {}

  // Writes its row, and erases that of the oldest beyond `most`.
  void Append(Context& context, size_t most, Record record) {
    record.set_sequence(next_++);
    std::string bytes = record.SerializeAsString();
    context.Put(table_, KeyNumber(record.sequence()), bytes);
    rows_.push_back({FromProto((record.*kTimeOf)()), record.sequence(), std::move(bytes)});
    while (rows_.size() > most) {
      forgotten_until_ = rows_.front().at;
      context.Erase(table_, KeyNumber(rows_.front().sequence));
      rows_.pop_front();
    }
  }

  // The next record comes after this number, whatever has been written.
  void ContinueAfter(uint64_t sequence) { next_ = std::max(next_, sequence + 1); }

  // In the order of the keys.
  void Restore(Context& context, const v1::StateRow& row) {
    Record record;
    const bool is_read =
        record.ParseFromString(row.value()) && KeyNumber(record.sequence()) == row.key();
    if (!is_read || record.sequence() < next_) {
      context.Damaged(row);
      return;
    }
    if (rows_.empty() && record.sequence() > 1) forgotten_until_ = FromProto((record.*kTimeOf)());
    next_ = record.sequence() + 1;
    rows_.push_back({FromProto((record.*kTimeOf)()), record.sequence(), row.value()});
  }

  // Adds those after `after` that are not older than `since`, as `take` says, oldest first. Returns
  // the sequence after which to go on; 0: there are no more.
  template <typename Take>
  uint64_t Page(uint64_t after, std::chrono::nanoseconds since, const Take& take) const {
    auto row = std::upper_bound(
        rows_.begin(), rows_.end(), after,
        [](uint64_t sequence, const Row& candidate) { return sequence < candidate.sequence; });
    uint64_t last = after;
    size_t bytes = 0;
    for (size_t looked = 0; row != rows_.end(); ++row) {
      if (row->at >= since) {
        if (++looked > kMostLookedAt || bytes > kMostPageBytes) return last;
        Record record;
        if (record.ParseFromString(row->bytes) && take(std::move(record)))
          bytes += row->bytes.size();
      }
      last = row->sequence;
    }
    return 0;
  }

  // Older records have been forgotten; absent: none has.
  std::optional<std::chrono::nanoseconds> forgotten_until() const { return forgotten_until_; }

 private:
  struct Row {
    std::chrono::nanoseconds at{0};
    uint64_t sequence = 0;
    std::string bytes;
  };

  const v1::StateTable table_;
  std::deque<Row> rows_;
  uint64_t next_ = 1;
  std::optional<std::chrono::nanoseconds> forgotten_until_;
};

}  // namespace meshrun::coordinator
