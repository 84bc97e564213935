#include "client/checkpoint/conversion.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/checkpoint/open_tensors.h"
#include "core/checkpoint/safetensors.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/os/write_all.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 16 << 20;

absl::Status CheckTarget(const std::string& to, bool force) {
  if (to.empty()) return absl::InvalidArgumentError("TO is empty: name a file");
  std::error_code error;
  const fs::file_status status = fs::status(to, error);
  if (status.type() == fs::file_type::not_found) return absl::OkStatus();
  if (status.type() != fs::file_type::regular) {
    return absl::InvalidArgumentError(to + " is not a file: name a file");
  }
  if (force) return absl::OkStatus();
  return absl::AlreadyExistsError(to + " is there: name another file, or give --force");
}

// Writes `header` and the tensors behind it.
absl::Status WriteTensors(const TensorSource& source, const SafetensorsHeader& header,
                          const std::string& path, const ConvertOptions& options) {
  const os::UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return os::ErrnoStatus(errno, path);
  if (!os::WriteAll(fd.get(), EncodeSafetensorsHeader(header))) return os::ErrnoStatus(errno, path);
  using Entry = std::pair<const std::string, SafetensorsHeader::Entry>;
  std::vector<const Entry*> entries;
  for (const Entry& entry : header.tensors) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->second.begin < b->second.begin; });
  std::string block;
  for (const Entry* entry : entries) {
    const uint64_t bytes = entry->second.end - entry->second.begin;
    for (uint64_t at = 0; at < bytes; at += block.size()) {
      block.resize(std::min(kBlock, bytes - at));
      MESHRUN_RETURN_IF_ERROR(source.Read(entry->first, at, block));
      if (!os::WriteAll(fd.get(), block)) return os::ErrnoStatus(errno, path);
      if (options.progress) {
        options.progress(entry->second.begin + at + block.size(), header.file_bytes);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Conversion> Convert(const std::string& from, const std::string& to,
                                   const ConvertOptions& options) {
  MESHRUN_RETURN_IF_ERROR(CheckTarget(to, options.force));
  MESHRUN_ASSIGN_OR_RETURN(const TensorSourcePtr source,
                           OpenTensors(from, options.all ? StepFiles::kAll : StepFiles::kModel));
  Conversion conversion;
  conversion.format = source->Format();
  const std::map<std::string, TensorInfo>& tensors = source->Tensors();
  // Hugging Face's libraries refuse a file without this field.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const auto& [key, value] : source->Notes()) metadata[EscapeBytes(key)] = EscapeBytes(value);
  MESHRUN_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                           LayOutSafetensors(to, tensors, metadata));
  // A link keeps leading to the file.
  std::error_code error;
  const fs::path target = fs::weakly_canonical(to, error);
  const std::string path = error ? to : target.string();
  const std::string temporary = fmt::format("{}.{}.new", path, ::getpid());
  if (options.unfinished) options.unfinished(temporary);
  absl::Status written = WriteTensors(*source, header, temporary, options);
  // Another program may have made the file since.
  if (written.ok()) written = CheckTarget(to, options.force);
  if (written.ok()) {
    written = os::PublishFile(temporary, path);
  } else {
    ::unlink(temporary.c_str());
  }
  if (options.unfinished) options.unfinished("");
  MESHRUN_RETURN_IF_ERROR(written);
  conversion.tensors = tensors.size();
  conversion.left_out = source->FilesLeftOut();
  conversion.bytes = header.file_bytes;
  return conversion;
}

}  // namespace meshrun::client
