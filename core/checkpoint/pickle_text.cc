#include "core/checkpoint/pickle_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>

#include "core/checkpoint/little_endian.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

using Kind = PickleValue::Kind;

// Decimal. `bytes`: two's complement, least significant first.
std::string LongText(std::string_view bytes) {
  if (bytes.size() > sizeof(__int128)) return fmt::format("an integer of {} bytes", bytes.size());
  // Shifted to the top, so that the way back extends the sign.
  unsigned __int128 number = 0;
  for (const char c : bytes) {
    number = number >> 8 | static_cast<unsigned __int128>(static_cast<unsigned char>(c)) << 120;
  }
  return fmt::format("{}",
                     static_cast<__int128>(number) >> (8 * (sizeof(__int128) - bytes.size())));
}

// Bytes that protocol 2 writes as a text of code points below 256. Absent: another text, or more
// than 8 bytes.
std::optional<std::string> BytesFromLatin1(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    if (length == 0 || length > 2 || lead > 0xC3 || bytes.size() == 8) return std::nullopt;
    bytes += length == 1 ? text[0] : static_cast<char>((lead & 3) << 6 | (text[1] & 0x3F));
    text.remove_prefix(length);
  }
  return bytes;
}

// A call of numpy's scalar(dtype, bytes). Absent: a type that is not read.
std::optional<std::string> NumpyScalarText(const PickleValue& value) {
  const std::vector<PickleValue>& items = value.items();
  if (items.size() != 2 || !items[0].Calls("numpy", "dtype")) return std::nullopt;
  const std::vector<PickleValue>& type = items[0].items();
  const std::vector<PickleValue>& state = items[0].object->state.items();
  if (type.empty() || !type[0].Is(Kind::kText) || state.size() < 2 || !state[1].Is(Kind::kText) ||
      (state[1].text() != "<" && state[1].text() != "|")) {
    return std::nullopt;
  }
  std::optional<std::string> bytes;
  if (items[1].Is(Kind::kBytes) && items[1].size <= 8) {
    bytes = items[1].text();
  } else if (items[1].Calls("_codecs", "encode") && !items[1].items().empty() &&
             items[1].items()[0].Is(Kind::kText)) {
    bytes = BytesFromLatin1(items[1].items()[0].text());
  }
  const std::string_view name = type[0].text();
  if (!bytes || name.size() != 2 || bytes->size() != static_cast<size_t>(name[1] - '0')) {
    return std::nullopt;
  }
  const uint64_t number = LittleEndian(*bytes);
  const size_t shift = 64 - 8 * bytes->size();
  if (name == "f8") return fmt::format("{}", std::bit_cast<double>(number));
  if (name == "f4") return fmt::format("{}", std::bit_cast<float>(static_cast<uint32_t>(number)));
  if (name == "b1") return number != 0 ? "True" : "False";
  if (name[0] == 'u') return fmt::format("{}", number);
  if (name[0] == 'i') return fmt::format("{}", static_cast<int64_t>(number << shift) >> shift);
  return std::nullopt;
}

std::string Joined(const std::vector<PickleValue>& items, std::string_view separator) {
  constexpr size_t kLongest = 4096;
  std::string text;
  for (const PickleValue& item : items) {
    if (text.size() > kLongest) break;
    if (!text.empty()) text += separator;
    // No calls within calls: they could be nested without end.
    text += item.Is(Kind::kCall) ? item.Describe() : PickleText(item);
  }
  return text;
}

std::string CallText(const PickleValue& value) {
  const std::vector<PickleValue>& items = value.items();
  const PickleName& name = *value.object->name;
  if (value.Calls("torch", "Size")) {
    if (const auto sizes = PickleDimensions(value))
      return fmt::format("[{}]", fmt::join(*sizes, ", "));
  }
  if (items.size() <= kMostDimensions) {
    if (value.Calls("torch", "device")) return Joined(items, ":");
    if (value.Calls("torch.serialization", "_get_layout")) return Joined(items, "");
    if (name.module.starts_with("pathlib")) {
      // The first part of an absolute path is "/" by itself.
      const std::string path = Joined(items, "/");
      return path.starts_with("//") ? path.substr(1) : path;
    }
    if (name.name == "complex" || name.name == "range" || name.name == "xrange") {
      return fmt::format("{}({})", name.name, Joined(items, ", "));
    }
  }
  if (name.name == "encode" || name.name == "bytearray" || name.name == "bytes") return "bytes";
  if (name.name == "_reconstruct" || name.name == "_frombuffer") return "a numpy array";
  if (name.name == "scalar") {
    if (const auto text = NumpyScalarText(value)) return *text;
  }
  return value.Describe();
}

}  // namespace

std::string PickleText(const PickleValue& value) {
  switch (value.kind) {
    case Kind::kBool:
      return value.integer != 0 ? "True" : "False";
    case Kind::kInt:
      return fmt::format("{}", value.integer);
    case Kind::kFloat:
      return fmt::format("{}", value.real);
    case Kind::kText:
      return EscapeBytes(value.text());
    case Kind::kBytes:
      return fmt::format("{} bytes", value.size);
    case Kind::kLong:
      return LongText(value.text());
    case Kind::kCall:
      return CallText(value);
    default:
      return value.Describe();
  }
}

std::optional<std::vector<int64_t>> PickleDimensions(const PickleValue& value) {
  const std::vector<PickleValue>* items = &value.items();
  if (value.Is(Kind::kCall)) {
    if (!value.Calls("torch", "Size") || items->size() != 1) return std::nullopt;
    const PickleValue& argument = items->front();
    if (!argument.Is(Kind::kTuple) && !argument.Is(Kind::kList)) return std::nullopt;
    items = &argument.items();
  } else if (!value.Is(Kind::kTuple) && !value.Is(Kind::kList)) {
    return std::nullopt;
  }
  if (items->size() > kMostDimensions) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const PickleValue& item : *items) {
    if (!item.Is(Kind::kInt)) return std::nullopt;
    numbers.push_back(item.integer);
  }
  return numbers;
}

}  // namespace meshrun
