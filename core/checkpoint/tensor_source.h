// Named tensors that lie in files, whatever wrote them: what can be listed, and read range by range
// without the rest.
//
// A tensor is a dtype's name, a shape, and bytes: little-endian, row-major. Dtypes are those of the
// safetensors format: "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3",
// "F8_E5M2", "F8_E8M0", "F16", "BF16", "F32", "F64", "C64". The format has no complex128: such a
// tensor is "F64" with a last dimension of 2, its real and its imaginary part.
//
// Errors are sentences that begin with the path. Codes: NOT_FOUND (no such file, no such tensor),
// PERMISSION_DENIED, DATA_LOSS (truncated, damaged, not of this format), UNIMPLEMENTED (a valid
// file that uses what is not read; the text says what), INVALID_ARGUMENT (the caller's fault),
// INTERNAL (the system refuses).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

struct TensorInfo {
  std::string dtype;
  std::vector<int64_t> shape;

  bool operator==(const TensorInfo&) const = default;
};

// Bytes of one element; absent: the dtype is not known.
std::optional<uint64_t> ElementBytes(std::string_view dtype);
// Bytes of the tensor. INVALID_ARGUMENT for an unknown dtype, a negative extent, or a product that
// overflows; the text begins with `name`.
absl::StatusOr<uint64_t> TensorBytes(const std::string& name, const TensorInfo& tensor);
// "F32 [2, 3]".
std::string DescribeTensor(const TensorInfo& tensor);

// Threads: Read() from any, several at a time.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // What wrote it, as a person calls it: "safetensors", "torch.save",
  // "torch.distributed.checkpoint", "PhysicsNeMo .mdlus", "meshrun checkpoint".
  virtual std::string Format() const = 0;
  virtual const std::map<std::string, TensorInfo>& Tensors() const = 0;
  // Fills `to` with the tensor's bytes from `begin` on. Requires that the tensor has them.
  virtual absl::Status Read(const std::string& name, uint64_t begin, std::span<char> to) const = 0;
  // What the file says beside tensors, by name; values as text.
  virtual std::map<std::string, std::string> Notes() const { return {}; }
  // Files of a checkpoint that were not opened, since only its model was asked for.
  virtual std::vector<std::string> FilesLeftOut() const { return {}; }
};

using TensorSourcePtr = std::unique_ptr<TensorSource>;

// Which files of a checkpoint are opened. kModel: neither those of the optimizer nor of what the
// program keeps, which may then be damaged or missing.
enum class StepFiles { kAll, kModel };

}  // namespace meshrun
