// Tensors of a torch.distributed.checkpoint, put together from the chunks that its metadata names.
//
// Threads: Read() from any, several at a time. Errors: see tensor_source.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/file_region.h"
#include "core/checkpoint/strided_tensor.h"
#include "core/checkpoint/tensor_boxes.h"
#include "core/checkpoint/tensor_source.h"
#include "core/checkpoint/torch_dtype.h"

namespace meshrun {

// Where an item is: a torch.save() file within a file of the directory.
struct DcpItem {
  size_t file = 0;  // place in the list of files
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct DcpChunk {
  TensorBox box;
  DcpItem item;
};

struct DcpTensor {
  const TorchDtype* dtype = nullptr;
  std::vector<int64_t> shape;  // elements of torch
  std::vector<DcpChunk> chunks;
};

class DcpSource : public TensorSource {
 public:
  // `files`: the paths that items refer to.
  DcpSource(std::string directory, std::vector<std::string> files)
      : directory_(std::move(directory)), files_(std::move(files)) {}

  // Requires that the chunks have passed CheckCover().
  void AddTensor(const std::string& name, DcpTensor tensor);
  // A value beside tensors: its texts if it is short and plain, else its size.
  void AddNote(const std::string& name, const DcpItem& item);

  std::string Format() const override { return "torch.distributed.checkpoint"; }
  const std::map<std::string, TensorInfo>& Tensors() const override { return infos_; }
  std::map<std::string, std::string> Notes() const override { return notes_; }
  absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const override;

 private:
  absl::StatusOr<FileRegion> Open(const DcpItem& item) const;
  absl::StatusOr<StridedTensor> OpenChunk(const std::string& name, const DcpTensor& tensor,
                                          const DcpChunk& chunk) const;

  const std::string directory_;
  const std::vector<std::string> files_;
  std::map<std::string, TensorInfo> infos_;
  std::map<std::string, DcpTensor> tensors_;
  std::map<std::string, std::string> notes_;
  // Items are read for their texts as long as these are short, so that opening ends soon.
  uint64_t notes_budget_ = uint64_t{16} << 20;
};

}  // namespace meshrun
