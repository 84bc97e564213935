#include "core/checkpoint/tar_file.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun {
namespace {

constexpr uint64_t kBlock = 512;
constexpr int kMostMembers = 1 << 16;
// Limit for the records that describe the next member.
constexpr uint64_t kLongestRecords = uint64_t{1} << 20;

// An octal number that ends with spaces or zero bytes, or GNU's binary one.
std::optional<uint64_t> TarNumber(std::string_view field) {
  uint64_t number = 0;
  if (static_cast<unsigned char>(field[0]) == 0x80) {
    for (const char c : field.substr(1)) {
      if (number >> 55 != 0) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return number;
  }
  while (!field.empty() && (field.back() == ' ' || field.back() == '\0')) field.remove_suffix(1);
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  for (const char c : field) {
    if (c < '0' || c > '7') return std::nullopt;
    number = number << 3 | static_cast<uint64_t>(c - '0');
  }
  return number;
}

bool HasTarChecksum(std::string_view header) {
  constexpr size_t kAt = 148;
  constexpr size_t kBytes = 8;
  uint64_t sum = 0;
  for (size_t k = 0; k < header.size(); ++k) {
    const bool blank = k >= kAt && k < kAt + kBytes;
    sum += blank ? uint64_t{' '} : static_cast<unsigned char>(header[k]);
  }
  return TarNumber(header.substr(kAt, kBytes)) == sum;
}

std::string_view UntilZero(std::string_view field) { return field.substr(0, field.find('\0')); }

// What records before a member say of it.
struct Announced {
  std::optional<std::string> name;
  std::optional<uint64_t> size;
};

// Records of pax: "25 path=a/long/name\n", where 25 is the length of all of it.
bool ReadPax(std::string_view records, Announced* announced) {
  while (!records.empty()) {
    const size_t space = records.find(' ');
    const auto length = ParseInteger<uint64_t>(records.substr(0, space));
    if (space == std::string_view::npos || !length || *length > records.size() ||
        *length < space + 2) {
      return false;
    }
    const std::string_view record = records.substr(space + 1, *length - space - 2);
    if (record.starts_with("path=")) announced->name = record.substr(5);
    if (record.starts_with("size=")) {
      announced->size = ParseInteger<uint64_t>(record.substr(5));
      if (!announced->size) return false;
    }
    records.remove_prefix(*length);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::map<std::string, FileRegion, std::less<>>> ReadTar(const FileRegion& region) {
  const auto damaged = [&](uint64_t at, std::string_view reason) {
    return absl::DataLossError(
        fmt::format("{} is damaged: at byte {} {}", region.Describe(), at, reason));
  };
  std::map<std::string, FileRegion, std::less<>> members;
  Announced announced;
  int count = 0;
  for (uint64_t at = 0; at < region.size();) {
    std::string header(kBlock, '\0');
    MESHRUN_RETURN_IF_ERROR(region.Read(at, header));
    if (header.find_first_not_of('\0') == std::string::npos) break;
    const std::optional<uint64_t> stated = TarNumber(std::string_view(header).substr(124, 12));
    if (!HasTarChecksum(header) || !stated) return damaged(at, "there is no header of a tar");
    if (++count > kMostMembers) {
      return absl::UnimplementedError(
          fmt::format("{}: the tar has more than {} members", region.Describe(), kMostMembers));
    }
    const char type = header[156];
    const bool describes = type == 'x' || type == 'L';
    const bool is_file = type == '0' || type == '\0';
    const uint64_t size = is_file ? announced.size.value_or(*stated) : *stated;
    MESHRUN_ASSIGN_OR_RETURN(const FileRegion content,
                             region.Part(at + kBlock, size, "a member of the tar"));
    if (describes) {
      MESHRUN_ASSIGN_OR_RETURN(const std::string records,
                               content.ReadAll(kLongestRecords, "the name of a member"));
      if (type == 'L') {
        announced.name = UntilZero(records);
      } else if (!ReadPax(records, &announced)) {
        return damaged(at, "the records of pax are damaged");
      }
    } else if (type != 'g' && type != 'K') {
      const std::string_view own = UntilZero(std::string_view(header).substr(0, 100));
      std::string name = announced.name.value_or(std::string(own));
      if (name.starts_with("./")) name.erase(0, 2);
      // The later of two members replaces the earlier one, as in tar itself.
      if (is_file) members.insert_or_assign(std::move(name), content);
      announced = {};
    }
    // The member's end was compared with the file's.
    at += kBlock + (size + kBlock - 1) / kBlock * kBlock;
  }
  if (count == 0) return damaged(0, "there is no header of a tar");
  return members;
}

}  // namespace meshrun
