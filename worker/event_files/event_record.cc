#include "worker/event_files/event_record.h"

#include <array>

namespace meshrun::worker {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  // The polynomial, its bits reversed.
  constexpr uint32_t kPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

// A CRC over bytes that hold CRCs would be weak: TFRecord turns it and adds a constant.
uint32_t Masked(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

std::string EventRecord(const tensorboard::Event& event) {
  const std::string bytes = event.SerializeAsString();
  std::string record;
  record.reserve(bytes.size() + 16);
  AppendLittleEndian(bytes.size(), 8, &record);
  AppendLittleEndian(Masked(record), 4, &record);
  record += bytes;
  AppendLittleEndian(Masked(bytes), 4, &record);
  return record;
}

}  // namespace meshrun::worker
