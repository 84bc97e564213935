#include "coordinator/event_loop/audit_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// No record is longer: its texts are bounded.
constexpr off_t kLongestLine = 1 << 16;
// Lines that wait for a disk. What the file loses beyond that is still in the state.
constexpr size_t kMostPending = 16u << 20;

std::string LineOf(const v1::AuditRecord& record) {
  std::string line;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  if (!google::protobuf::util::MessageToJsonString(record, &line, options).ok()) return "";
  return line + '\n';
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditFile>> AuditFile::Open(
    std::string path, std::function<void(const std::string&)> on_problem) {
  std::unique_ptr<AuditFile> file(new AuditFile(std::move(path), std::move(on_problem)));
  MESHRUN_RETURN_IF_ERROR(file->OpenFile());
  MESHRUN_RETURN_IF_ERROR(file->FindLast());
  file->is_new_ = file->last_ == 0;
  return file;
}

absl::Status AuditFile::OpenFile() {
  file_ = os::UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  return file_ ? absl::OkStatus() : os::ErrnoStatus(errno, path_);
}

absl::Status AuditFile::FindLast() {
  struct stat info;
  if (::fstat(file_.get(), &info) != 0) return os::ErrnoStatus(errno, path_);
  const off_t begin = std::max<off_t>(info.st_size - 2 * kLongestLine, 0);
  std::string tail(static_cast<size_t>(info.st_size - begin), '\0');
  const ssize_t got = ::pread(file_.get(), tail.data(), tail.size(), begin);
  if (got < 0 || static_cast<size_t>(got) != tail.size()) return os::ErrnoStatus(errno, path_);
  // A crash may have cut the last line.
  const size_t end = tail.rfind('\n');
  const size_t whole = end == std::string::npos ? 0 : end + 1;
  if (whole < tail.size() && ::ftruncate(file_.get(), begin + static_cast<off_t>(whole)) != 0)
    return os::ErrnoStatus(errno, path_);
  if (whole == 0) return absl::OkStatus();
  const size_t before = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
  const size_t first = before == std::string::npos ? 0 : before + 1;
  v1::AuditRecord record;
  google::protobuf::util::JsonParseOptions options;
  // A newer program may have written it.
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(tail.substr(first, end - first), &record,
                                                   options)
           .ok() ||
      record.sequence() == 0) {
    return absl::DataLossError(
        fmt::format("{}: its last line is no record of the audit: name another file", path_));
  }
  last_ = record.sequence();
  return absl::OkStatus();
}

void AuditFile::CatchUp(const Rows& part) {
  if (!is_new_) return WriteRecords(part);
  for (const v1::StateRow& row : part) {
    v1::AuditRecord record;
    if (row.table() == v1::STATE_TABLE_AUDIT && record.ParseFromString(row.value()))
      last_ = std::max(last_, record.sequence());
  }
}

void AuditFile::Write(const std::vector<v1::StateRow>& rows) { WriteRecords(rows); }

template <typename Range>
void AuditFile::WriteRecords(const Range& rows) {
  for (const v1::StateRow& row : rows) {
    v1::AuditRecord record;
    if (row.table() != v1::STATE_TABLE_AUDIT || row.erased() ||
        !record.ParseFromString(row.value()) || record.sequence() <= last_) {
      continue;
    }
    last_ = record.sequence();
    if (pending_.size() < kMostPending) pending_ += LineOf(record);
  }
  if (pending_.empty()) return;
  absl::Status status = absl::OkStatus();
  if (reopen_.exchange(false) || !file_) status = OpenFile();
  if (status.ok()) status = Flush();
  if (!status.ok() && !std::exchange(is_broken_, true)) on_problem_(std::string(status.message()));
  if (status.ok()) is_broken_ = false;
}

absl::Status AuditFile::Flush() {
  std::string_view left = pending_;
  absl::Status status = absl::OkStatus();
  while (!left.empty() && status.ok()) {
    const ssize_t written = ::write(file_.get(), left.data(), left.size());
    if (written > 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      status = os::ErrnoStatus(errno, path_);
    }
  }
  pending_ = std::string(left);
  return status;
}

}  // namespace meshrun::coordinator
