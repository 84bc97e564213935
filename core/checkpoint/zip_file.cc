#include "core/checkpoint/zip_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint/little_endian.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

// Sizes of the records without their names, comments and extra fields.
constexpr uint64_t kLocalHeader = 30;
constexpr uint64_t kCentralHeader = 46;
constexpr uint64_t kEnd = 22;
constexpr uint64_t kEnd64 = 56;
constexpr uint64_t kEnd64Locator = 20;
constexpr uint64_t kLongestComment = 0xFFFF;
// More would be millions of members.
constexpr uint64_t kLongestDirectory = uint64_t{1} << 30;

constexpr std::string_view kLocalMagic = "PK\x03\x04";
constexpr std::string_view kCentralMagic = "PK\x01\x02";
constexpr std::string_view kEndMagic = "PK\x05\x06";
constexpr std::string_view kEnd64Magic = "PK\x06\x06";
constexpr std::string_view kEnd64LocatorMagic = "PK\x06\x07";

constexpr uint32_t kIn64 = 0xFFFFFFFF;
constexpr uint16_t kEncrypted = 1;

uint64_t Field(std::string_view record, size_t at, size_t bytes) {
  return LittleEndian(record.substr(at, bytes));
}

// Replaces those of `numbers` that are saturated by the ones in the extra field of zip64, which
// holds only these, in this order. False: the extra field is missing or too short.
bool Widen(std::string_view extra, std::initializer_list<uint64_t*> numbers) {
  if (std::ranges::none_of(numbers, [](const uint64_t* n) { return *n == kIn64; })) return true;
  constexpr uint64_t kZip64 = 1;
  while (extra.size() >= 4) {
    const uint64_t id = Field(extra, 0, 2);
    const uint64_t size = Field(extra, 2, 2);
    extra.remove_prefix(4);
    if (size > extra.size()) return false;
    if (id != kZip64) {
      extra.remove_prefix(size);
      continue;
    }
    std::string_view wide = extra.substr(0, size);
    for (uint64_t* number : numbers) {
      if (*number != kIn64) continue;
      if (wide.size() < 8) return false;
      *number = Field(wide, 0, 8);
      wide.remove_prefix(8);
    }
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ZipFile> ZipFile::Open(FileRegion region) {
  ZipFile zip(std::move(region));
  const uint64_t size = zip.region_.size();
  // The end record lies before a comment of unknown length.
  std::string tail(std::min(size, kEnd + kLongestComment + kEnd64Locator), '\0');
  MESHRUN_RETURN_IF_ERROR(zip.region_.Read(size - tail.size(), tail));
  size_t at = tail.rfind(kEndMagic);
  while (at != std::string::npos &&
         (tail.size() - at < kEnd || Field(tail, at + 20, 2) != tail.size() - at - kEnd)) {
    at = at == 0 ? std::string::npos : tail.rfind(kEndMagic, at - 1);
  }
  if (at == std::string::npos) return zip.Damaged("its end is not that of a zip");
  uint64_t count = Field(tail, at + 10, 2);
  uint64_t directory_size = Field(tail, at + 12, 4);
  uint64_t directory_at = Field(tail, at + 16, 4);
  if (at >= kEnd64Locator && tail.substr(at - kEnd64Locator, 4) == kEnd64LocatorMagic) {
    std::string end(kEnd64, '\0');
    MESHRUN_RETURN_IF_ERROR(zip.region_.Read(Field(tail, at - kEnd64Locator + 8, 8), end));
    if (!end.starts_with(kEnd64Magic)) return zip.Damaged("it has no end record of zip64");
    count = Field(end, 32, 8);
    directory_size = Field(end, 40, 8);
    directory_at = Field(end, 48, 8);
  }
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion part,
                           zip.region_.Part(directory_at, directory_size, "the list of members"));
  MESHRUN_ASSIGN_OR_RETURN(const std::string directory,
                           part.ReadAll(kLongestDirectory, "the list of members"));
  MESHRUN_RETURN_IF_ERROR(zip.ReadDirectory(directory, count));
  return zip;
}

absl::Status ZipFile::ReadDirectory(std::string_view directory, uint64_t count) {
  uint64_t first = UINT64_MAX;
  for (uint64_t k = 0; k < count; ++k) {
    if (directory.size() < kCentralHeader || !directory.starts_with(kCentralMagic)) {
      return Damaged(fmt::format("its list has {} members, and {} were announced", k, count));
    }
    const uint64_t name_size = Field(directory, 28, 2);
    const uint64_t extra_size = Field(directory, 30, 2);
    const uint64_t all = kCentralHeader + name_size + extra_size + Field(directory, 32, 2);
    if (all > directory.size()) return Damaged("its list of members is truncated");
    std::string name(directory.substr(kCentralHeader, name_size));
    Member member = {.header = Field(directory, 42, 4),
                     .bytes = Field(directory, 24, 4),
                     .stored_bytes = Field(directory, 20, 4),
                     .method = static_cast<uint16_t>(Field(directory, 10, 2)),
                     .flags = static_cast<uint16_t>(Field(directory, 8, 2))};
    if (!Widen(directory.substr(kCentralHeader + name_size, extra_size),
               {&member.bytes, &member.stored_bytes, &member.header})) {
      return Damaged(fmt::format("member '{}' lacks its sizes of zip64", EscapeControls(name)));
    }
    if (member.header < first) {
      first = member.header;
      first_name_ = name;
    }
    const auto [other, added] = members_.emplace(std::move(name), member);
    if (!added) {
      return Damaged(fmt::format("two members are '{}'", EscapeControls(other->first)));
    }
    directory.remove_prefix(all);
  }
  return absl::OkStatus();
}

bool ZipFile::HasPrefix(std::string_view prefix) const {
  const auto at = members_.lower_bound(prefix);
  return at != members_.end() && at->first.starts_with(prefix);
}

absl::StatusOr<FileRegion> ZipFile::Find(std::string_view name) const {
  const std::string member_name = fmt::format("member '{}'", EscapeControls(name));
  const auto at = members_.find(name);
  if (at == members_.end()) return Damaged(fmt::format("it has no {}", member_name));
  const Member& member = at->second;
  if (member.method != 0) {
    return absl::UnimplementedError(
        fmt::format("{}: {} is compressed (method {}), and only stored members are read",
                    region_.Describe(), member_name, member.method));
  }
  if (member.flags & kEncrypted) {
    return absl::UnimplementedError(
        fmt::format("{}: {} is encrypted", region_.Describe(), member_name));
  }
  if (member.bytes != member.stored_bytes) {
    return Damaged(fmt::format("{} has {} bytes, and {} are stored", member_name, member.bytes,
                               member.stored_bytes));
  }
  std::string header(kLocalHeader, '\0');
  MESHRUN_RETURN_IF_ERROR(region_.Read(member.header, header));
  if (!header.starts_with(kLocalMagic)) {
    return Damaged(fmt::format("{} has no header at byte {}", member_name, member.header));
  }
  // The header was read, so that this does not overflow.
  const uint64_t begin = member.header + kLocalHeader + Field(header, 26, 2) + Field(header, 28, 2);
  return region_.Part(begin, member.bytes, member_name);
}

absl::Status ZipFile::Damaged(std::string_view reason) const {
  return absl::DataLossError(fmt::format("{} is damaged: {}", region_.Describe(), reason));
}

}  // namespace meshrun
