// Between protobuf's well-known time types and std::chrono.
#pragma once

#include <chrono>
#include <cstdint>

#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace meshrun {

// The longest Duration that a request may have, in whole seconds: a hundred years. The sum of it
// and a clock's time fits into 64 bits of nanoseconds. A request may add a part of a second.
inline constexpr int64_t kMostDurationSeconds = int64_t{36525} * 24 * 3600;

inline std::chrono::nanoseconds FromProto(const google::protobuf::Duration& d) {
  return std::chrono::seconds(d.seconds()) + std::chrono::nanoseconds(d.nanos());
}
inline std::chrono::nanoseconds FromProto(const google::protobuf::Timestamp& t) {
  return std::chrono::seconds(t.seconds()) + std::chrono::nanoseconds(t.nanos());
}
inline google::protobuf::Duration ToProtoDuration(std::chrono::nanoseconds d) {
  google::protobuf::Duration out;
  out.set_seconds(d.count() / 1'000'000'000);
  out.set_nanos(static_cast<int32_t>(d.count() % 1'000'000'000));
  return out;
}
inline google::protobuf::Timestamp ToProtoTimestamp(std::chrono::nanoseconds since_epoch) {
  google::protobuf::Timestamp out;
  out.set_seconds(since_epoch.count() / 1'000'000'000);
  out.set_nanos(static_cast<int32_t>(since_epoch.count() % 1'000'000'000));
  return out;
}

}  // namespace meshrun
