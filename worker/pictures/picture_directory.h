// The directory of pictures that a rank is told of (MESHRUN_PICTURES). The rank controls what is in
// it: only regular files of the directory's own owner are seen, no link is followed, no pipe waited
// for, and what is larger than kMostPictureBytes or has another name than a picture's does not
// exist here. Calls block as long as the file system does.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

struct PictureFile {
  std::string name;
  uint32_t bytes = 0;
  timespec modified = {};
};

// A picture as it is now; one that the rank puts in its place later is another file.
struct OpenedPicture {
  PictureFile file;
  os::UniqueFd fd;
};

class PictureDirectory {
 public:
  // The newest so many are listed.
  static constexpr size_t kMostPictures = 16;
  // Entries that are looked at, so that a directory of a million files costs no more.
  static constexpr int kMostEntries = 4096;

  // Makes it for the user, null: for this process's. What is there already stays.
  static absl::Status Make(const std::string& path, const v1::RankUser* user);
  // NOT_FOUND: there is none. FAILED_PRECONDITION: a link.
  static absl::StatusOr<PictureDirectory> Open(const std::string& path);

  // In order of their names.
  std::vector<PictureFile> List() const;
  // NOT_FOUND: there is no picture of this name.
  absl::StatusOr<OpenedPicture> OpenPicture(std::string_view name) const;

 private:
  PictureDirectory(os::UniqueFd fd, uid_t owner) : fd_(std::move(fd)), owner_(owner) {}
  bool IsPicture(const struct stat& info) const;

  os::UniqueFd fd_;
  uid_t owner_;
};

// Removes the directory and all that its rank has put there, however deep: it follows no link, and
// has two descriptors open at a time, where recursion would have one for each level.
absl::Status RemovePictures(const std::string& path);

// Copies the pictures of one directory into another one, which it makes; those that cannot be
// copied stay behind. Errors: of the directories.
absl::Status CopyPictures(const std::string& from, const std::string& to);

}  // namespace meshrun::worker
