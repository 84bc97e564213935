// One record of an event file: TFRecord's frame around an Event.
//
//   length   8 bytes, little-endian
//   masked CRC-32C of the length, 4 bytes
//   the serialized Event
//   masked CRC-32C of the Event, 4 bytes
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "third_party/tensorboard/event.pb.h"

namespace meshrun::worker {

std::string EventRecord(const tensorboard::Event& event);

// CRC-32C (Castagnoli), as of RFC 3720.
uint32_t Crc32c(std::string_view bytes);

}  // namespace meshrun::worker
