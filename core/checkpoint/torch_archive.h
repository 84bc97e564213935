// The zip of torch.save(): a pickle (data.pkl), and one member for each storage of its tensors.
//
// Threads: any, several at a time. Errors: see tensor_source.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "core/checkpoint/file_region.h"
#include "core/checkpoint/pickle.h"
#include "core/checkpoint/strided_tensor.h"
#include "core/checkpoint/zip_file.h"

namespace meshrun {

// A pickle that is longer is UNIMPLEMENTED.
inline constexpr uint64_t kLongestPickle = uint64_t{1} << 30;

class TorchArchive {
 public:
  // Reads the pickle. UNIMPLEMENTED: TorchScript, a file of torch before 1.6, one of a big-endian
  // machine.
  static absl::StatusOr<std::unique_ptr<const TorchArchive>> Open(const FileRegion& region);

  const Pickle& pickle() const { return *pickle_; }
  // Whether a value is a tensor, be it one that Tensor() refuses.
  static bool IsTensor(const PickleValue& value);
  // UNIMPLEMENTED: a sparse or quantized tensor, a dtype that a TensorSource has no name for.
  // `name` is what errors call the tensor.
  absl::StatusOr<StridedTensor> Tensor(const PickleValue& value, const std::string& name) const;

 private:
  TorchArchive(ZipFile zip, std::string prefix)
      : zip_(std::move(zip)), prefix_(std::move(prefix)) {}

  absl::StatusOr<FileRegion> Storage(const PickleValue& storage, uint64_t element_bytes,
                                     const std::string& name) const;
  absl::Status Damaged(const std::string& name, std::string_view reason) const;
  absl::Status Unread(const std::string& name, std::string_view reason) const;

  const ZipFile zip_;
  const std::string prefix_;  // all members' names begin with it: "archive/"
  std::unique_ptr<const Pickle> pickle_;
};

}  // namespace meshrun
