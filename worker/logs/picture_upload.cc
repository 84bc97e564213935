#include "worker/logs/picture_upload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/os/files.h"

namespace meshrun::worker {
namespace {

constexpr size_t kPictureChunk = 1 << 16;
// Places of one message. Other streams have their turn in between.
constexpr size_t kPlacesPerTurn = 64;

std::optional<PictureDirectory> FindDirectory(const PicturePlace& place) {
  for (const std::string& path : place.directories) {
    if (auto directory = PictureDirectory::Open(path); directory.ok()) return *std::move(directory);
  }
  return std::nullopt;
}

void Describe(const PicturePlace& place, const PictureFile& file, v1::Picture* out) {
  out->set_rank(place.rank);
  out->set_name(file.name);
  out->set_bytes(file.bytes);
  out->mutable_modified_at()->set_seconds(file.modified.tv_sec);
  out->mutable_modified_at()->set_nanos(static_cast<int32_t>(file.modified.tv_nsec));
}

}  // namespace

void PictureUpload::Next() {
  if (name_.empty()) {
    SendList();
  } else if (!fd_) {
    OpenPicture();
  } else {
    SendBytes();
  }
}

void PictureUpload::SendList() {
  if (listed_ == places_.size()) return End();
  v1::UploadLogRequest& message = NewMessage();
  const size_t end = std::min(listed_ + kPlacesPerTurn, places_.size());
  for (; listed_ < end; ++listed_) {
    const PicturePlace& place = places_[listed_];
    const auto directory = FindDirectory(place);
    if (!directory) continue;
    const std::vector<PictureFile> files = directory->List();
    for (const PictureFile& file : files) Describe(place, file, message.add_pictures());
  }
  Write();
}

void PictureUpload::OpenPicture() {
  if (places_.size() != 1) {
    return Fail(fmt::format("picture {} is asked of {} ranks at once", name_, places_.size()),
                /*gone=*/true);
  }
  const PicturePlace& place = places_.front();
  const auto directory = FindDirectory(place);
  absl::StatusOr<OpenedPicture> picture = absl::NotFoundError("");
  if (directory) picture = directory->OpenPicture(name_);
  if (!picture.ok()) {
    return Fail(fmt::format("rank {} has no picture {}", place.rank, name_), /*gone=*/true);
  }
  fd_ = std::move(picture->fd);
  size_ = picture->file.bytes;
  v1::UploadLogRequest& message = NewMessage();
  Describe(place, picture->file, message.add_pictures());
  Write();
}

void PictureUpload::SendBytes() {
  if (offset_ == size_) return End();
  std::string data(std::min<size_t>(kPictureChunk, size_ - offset_), '\0');
  const ssize_t n = ::pread(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset_));
  if (n <= 0) {
    return Fail(fmt::format("picture {}: {}", name_,
                            n < 0 ? std::strerror(errno)
                                  : "it became shorter while it was read: ask again"),
                /*gone=*/false);
  }
  data.resize(static_cast<size_t>(n));
  v1::UploadLogRequest& message = NewMessage();
  message.set_offset(offset_);
  offset_ += data.size();
  message.set_data(std::move(data));
  Write();
}

}  // namespace meshrun::worker
