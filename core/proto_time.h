// Between protobuf's well-known time types and std::chrono.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"

namespace meshrun {

// The longest Duration that a request may have, in whole seconds: a hundred years. The sum of it
// and a clock's time fits into 64 bits of nanoseconds. A request may add a part of a second.
inline constexpr int64_t kMostDurationSeconds = int64_t{36525} * 24 * 3600;

namespace internal {

// `nanos` may be any number, of up to 2.2 s.
inline std::chrono::nanoseconds ToNanoseconds(int64_t seconds, int32_t nanos) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 1'000'000'000 - 3;
  return std::chrono::seconds(std::clamp(seconds, -kMost, kMost)) + std::chrono::nanoseconds(nanos);
}

}  // namespace internal

// A time may be any of RFC 3339, such as 9999-12-31T23:59:59Z for no end. One that 64 bits of
// nanoseconds do not reach is the first or last second, but three, that they do.
inline std::chrono::nanoseconds FromProto(const google::protobuf::Duration& d) {
  return internal::ToNanoseconds(d.seconds(), d.nanos());
}
inline std::chrono::nanoseconds FromProto(const google::protobuf::Timestamp& t) {
  return internal::ToNanoseconds(t.seconds(), t.nanos());
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
