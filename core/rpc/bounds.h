// Bounds of what a server receives: the options max_bytes and max_items of the fields
// (meshrun/v1/bounds.proto), looked up once for each type of message. A Duration is never negative,
// and at most a hundred years (core/proto_time.h).
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>

#include "absl/status/status.h"

namespace meshrun::rpc {

// 0: none.
struct FieldBounds {
  // Bytes of a string; of a repeated field or a map, those of each string in it.
  uint32_t max_bytes = 0;
  // Items of a repeated field or a map.
  uint32_t max_items = 0;
};

FieldBounds BoundsOf(const google::protobuf::FieldDescriptor& field);

// INVALID_ARGUMENT names the first field beyond its bounds, with both numbers: "reason has 20971520
// bytes, and at most 4096 are taken". Durations are from 0 to a hundred years. Fields of messages
// within the message are looked at too.
// Costs a few nanoseconds for each field, and nothing for the bytes. `items`: of repeated fields
// and maps, how many there are in all (before the first field beyond its bounds). Thread-safe.
absl::Status CheckBounds(const google::protobuf::Message& message, size_t* items = nullptr);

}  // namespace meshrun::rpc
