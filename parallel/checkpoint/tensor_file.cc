#include "parallel/checkpoint/tensor_file.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/checkpoint/open_tensors.h"
#include "core/checkpoint/safetensors.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "parallel/checkpoint/range_writer.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/checkpoint/stored_values.h"

namespace meshrun {

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, TensorInfo> outline;
  std::map<std::string, StoredValues> bytes;
  for (const auto& [name, tensor] : tensors) {
    outline[name] = stored_info(tensor);
    bytes[name] = StoredValues(tensor);
  }
  const SafetensorsHeader header = value_of(LayOutSafetensors(path, outline));
  const std::string head = EncodeSafetensorsHeader(header);
  std::vector<FileRange> ranges = {{.begin = 0, .bytes = head.size(), .memory = head.data()}};
  for (const auto& [name, entry] : header.tensors) {
    ranges.push_back({.begin = entry.begin,
                      .bytes = entry.end - entry.begin,
                      .memory = nullptr,
                      .fill = [&tensor = bytes.at(name)](uint64_t from, std::span<char> to) {
                        tensor.read(from, to);
                      }});
  }
  std::ranges::sort(ranges, {}, &FileRange::begin);
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".unfinished";
  os::UniqueFd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file) check_status(os::ErrnoStatus(errno, temporary), "cannot write");
  file.reset();
  RangeWriter writer([] { return false; });
  std::vector<WrittenChunk> written;
  absl::Status status = writer.write(temporary, ranges, chunk_bytes_of(header.file_bytes), written);
  if (status.ok()) status = writer.flush();
  if (!status.ok()) ::unlink(temporary.c_str());
  check_status(status);
  check_status(os::PublishFile(temporary, path), "cannot write");
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const TensorSourcePtr source = value_of(OpenTensors(path));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, info] : source->Tensors()) {
    const at::Tensor tensor = at::empty(info.shape, dtype_of(info));
    check_status(source->Read(
        name, 0, {static_cast<char*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes())}));
    tensors[name] = tensor;
  }
  return tensors;
}

}  // namespace meshrun
