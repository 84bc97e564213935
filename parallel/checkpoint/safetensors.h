// Named tensors in a file of the safetensors format, which Python's safetensors reads and writes
// too.
//
// Without LibTorch: a tensor is a dtype's name, a shape and bytes. The file: the header's length as
// a little-endian u64, the header as JSON ({"name": {"dtype", "shape", "data_offsets"},
// "__metadata__": {...}}), the bytes. https://github.com/huggingface/safetensors#format
//
// Errors: SafetensorsError names the file and what is wrong with it, and says of files of
// torch.save() and torch.distributed.checkpoint how they are converted; std::runtime_error if
// reading or writing fails.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace meshrun {

struct StoredTensor {
  // "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
  // "F16", "BF16", "F32", "F64" or "C64". The format's dtypes of less than a byte are not read.
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;  // little-endian, contiguous
};

struct TensorFile {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

class SafetensorsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file's bytes, and back. Tensors are laid out in the order of their names. `path` is only what
// errors call the file.
std::string encode_safetensors(const std::string& path, const TensorFile& file);
// Checks every offset and size against the content's length, so that a damaged file is an error,
// never a crash.
TensorFile decode_safetensors(const std::string& path, const std::string& content);

// Atomic: see write_file_atomically.
void write_safetensors(const std::string& path, const TensorFile& file);
TensorFile read_safetensors(const std::string& path);

}  // namespace meshrun
