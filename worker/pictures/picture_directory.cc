#include "worker/pictures/picture_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <tuple>
#include <utility>

#include "core/os/files.h"
#include "core/picture_name.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// A process that its rank has left may go on writing.
constexpr std::chrono::minutes kRemovalTime(1);

absl::StatusOr<os::UniqueFd> OpenDirectory(const std::string& path) {
  os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd) return fd;
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{} is not a directory", path));
  }
  return os::ErrnoStatus(errno, path);
}

PictureFile Describe(std::string_view name, const struct stat& info) {
  return {.name = std::string(name),
          .bytes = static_cast<uint32_t>(info.st_size),
          .modified = info.st_mtim};
}

absl::StatusOr<std::string> ReadWhole(const OpenedPicture& picture) {
  std::string out(picture.file.bytes, '\0');
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t n =
        ::pread(picture.fd.get(), out.data() + got, out.size() - got, static_cast<off_t>(got));
    if (n < 0) return os::ErrnoStatus(errno, picture.file.name);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  out.resize(got);
  return out;
}

// The first so many; empty: there are none, or it cannot be read.
std::vector<std::string> NamesIn(int directory, int most) {
  // Opened anew: the position of a directory belongs to what dup would share.
  os::UniqueFd again(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(again.get()), &::closedir);
  if (entries == nullptr) return {};
  again.release();
  std::vector<std::string> out;
  for (int looked = 0; looked < most; ++looked) {
    const dirent* const entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out.emplace_back(name);
  }
  return out;
}

bool Unlink(int directory, const std::string& name) {
  return ::unlinkat(directory, name.c_str(), 0) == 0 ||
         ::unlinkat(directory, name.c_str(), AT_REMOVEDIR) == 0;
}

// What is below `name` goes, or moves to `top`. False: nothing did.
bool Raise(int top, const std::string& name, uint64_t* moved) {
  const os::UniqueFd below(
      ::openat(top, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!below) return false;
  bool did = false;
  for (const std::string& inner : NamesIn(below.get(), PictureDirectory::kMostEntries)) {
    const std::string raised = fmt::format("raised-{}", ++*moved);
    did |= Unlink(below.get(), inner) ||
           ::renameat(below.get(), inner.c_str(), top, raised.c_str()) == 0;
  }
  return did;
}

}  // namespace

absl::Status RemovePictures(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd top, OpenDirectory(path));
  uint64_t moved = 0;
  bool goes_on = true;
  const auto until = std::chrono::steady_clock::now() + kRemovalTime;
  while (goes_on && std::chrono::steady_clock::now() < until) {
    const std::vector<std::string> names = NamesIn(top.get(), PictureDirectory::kMostEntries);
    goes_on = false;
    for (const std::string& name : names) {
      goes_on |= Unlink(top.get(), name) || Raise(top.get(), name, &moved);
    }
  }
  if (::rmdir(path.c_str()) != 0) return os::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

absl::Status PictureDirectory::Make(const std::string& path, const v1::RankUser* user) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return os::ErrnoStatus(errno, path);
  if (user == nullptr) return absl::OkStatus();
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenDirectory(path));
  if (::fchown(fd.get(), user->uid(), user->gid()) != 0) return os::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

absl::StatusOr<PictureDirectory> PictureDirectory::Open(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd fd, OpenDirectory(path));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  return PictureDirectory(std::move(fd), info.st_uid);
}

bool PictureDirectory::IsPicture(const struct stat& info) const {
  return S_ISREG(info.st_mode) && info.st_uid == owner_ && info.st_size > 0 &&
         static_cast<uint64_t>(info.st_size) <= kMostPictureBytes;
}

std::vector<PictureFile> PictureDirectory::List() const {
  std::vector<PictureFile> out;
  const std::vector<std::string> names = NamesIn(fd_.get(), kMostEntries);
  for (const std::string& name : names) {
    struct stat info = {};
    if (PictureType(name).empty() ||
        ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || !IsPicture(info)) {
      continue;
    }
    out.push_back(Describe(name, info));
  }
  const auto age = [](const PictureFile& file) {
    return std::tie(file.modified.tv_sec, file.modified.tv_nsec);
  };
  std::sort(out.begin(), out.end(), [&age](const PictureFile& a, const PictureFile& b) {
    return age(a) == age(b) ? a.name < b.name : age(a) > age(b);
  });
  out.resize(std::min(out.size(), kMostPictures));
  std::sort(out.begin(), out.end(),
            [](const PictureFile& a, const PictureFile& b) { return a.name < b.name; });
  return out;
}

absl::StatusOr<OpenedPicture> PictureDirectory::OpenPicture(std::string_view name) const {
  const std::string file(name);
  if (!PictureType(name).empty()) {
    os::UniqueFd fd(::openat(fd_.get(), file.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    struct stat info = {};
    if (fd && ::fstat(fd.get(), &info) == 0 && IsPicture(info)) {
      return OpenedPicture{Describe(name, info), std::move(fd)};
    }
  }
  return absl::NotFoundError(fmt::format("there is no picture {}", file));
}

absl::Status CopyPictures(const std::string& from, const std::string& to) {
  MESHRUN_ASSIGN_OR_RETURN(const PictureDirectory pictures, PictureDirectory::Open(from));
  const std::vector<PictureFile> files = pictures.List();
  if (files.empty()) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(PictureDirectory::Make(to, nullptr));
  for (const PictureFile& file : files) {
    const auto picture = pictures.OpenPicture(file.name);
    if (!picture.ok()) continue;
    const auto bytes = ReadWhole(*picture);
    const std::string path = fmt::format("{}/{}", to, file.name);
    if (!bytes.ok() || !os::WriteFileAtomically(path, *bytes, 0600, /*sync=*/false).ok()) continue;
    const timespec times[] = {picture->file.modified, picture->file.modified};
    ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
  return absl::OkStatus();
}

}  // namespace meshrun::worker
