// Pictures of ranks that the coordinator asked for: which there are, or the bytes of one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/logs/upload.h"
#include "worker/pictures/picture_directory.h"

namespace meshrun::worker {

class PictureUpload : public Upload {
 public:
  PictureUpload(LogUploads& owner, const v1::OpenPictures& request,
                std::vector<PicturePlace> places)
      : Upload(owner, request.stream_id()), name_(request.name()), places_(std::move(places)) {}

 private:
  void Next() override;
  void SendList();
  void OpenPicture();
  void SendBytes();

  const std::string name_;
  const std::vector<PicturePlace> places_;
  // Those that are listed.
  size_t listed_ = 0;
  // The picture that is being sent, and how much of it has been.
  os::UniqueFd fd_;
  uint64_t size_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace meshrun::worker
