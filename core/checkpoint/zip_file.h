// Members of a zip that are stored as they are, as torch.save() and PhysicsNeMo write them. Zip64
// is read. Checksums are not compared: torch writes other numbers in their place on request.
//
// Threads: any, several at a time. Errors: see tensor_source.h. UNIMPLEMENTED: a member that is
// compressed or encrypted, when it is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "core/checkpoint/file_region.h"

namespace meshrun {

class ZipFile {
 public:
  // Reads the list of members, not the members. DATA_LOSS: not a zip, or a damaged one.
  static absl::StatusOr<ZipFile> Open(FileRegion region);

  const FileRegion& region() const { return region_; }
  // The name of the member that was written first. Empty: the zip has no members.
  const std::string& first_name() const { return first_name_; }
  bool Has(std::string_view name) const { return members_.contains(name); }
  // Whether the name of a member begins with `prefix`.
  bool HasPrefix(std::string_view prefix) const;
  // The bytes of a member. DATA_LOSS: the zip has no such member.
  absl::StatusOr<FileRegion> Find(std::string_view name) const;

 private:
  struct Member {
    uint64_t header = 0;  // where its local header is
    uint64_t bytes = 0;
    uint64_t stored_bytes = 0;
    uint16_t method = 0;
    uint16_t flags = 0;
  };

  explicit ZipFile(FileRegion region) : region_(std::move(region)) {}
  // Reads the central directory, which `directory` is.
  absl::Status ReadDirectory(std::string_view directory, uint64_t count);
  absl::Status Damaged(std::string_view reason) const;

  FileRegion region_;
  std::map<std::string, Member, std::less<>> members_;
  std::string first_name_;
};

}  // namespace meshrun
