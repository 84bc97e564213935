// The audit as a file, for collectors of logs: one JSON object a line, in the form of AuditRecord,
// each once. Lines are written when their records are durable, and what a file with lines lacks at
// a start of the coordinator is added then. A new file begins with what comes next.
//
// It may be renamed, for rotation: Reopen() makes a new one. The owner calls CatchUp before it
// starts, and then Write on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

class AuditFile {
 public:
  // Readable by this user alone. `on_problem`: it cannot be written any more; said once until it
  // can again. Errors: those of opening and reading the file; DATA_LOSS: its last line is no
  // record.
  static absl::StatusOr<std::unique_ptr<AuditFile>> Open(
      std::string path, std::function<void(const std::string&)> on_problem);

  using Rows = google::protobuf::RepeatedPtrField<v1::StateRow>;
  // The whole state at a start, part by part.
  void CatchUp(const Rows& part);
  // Sequence of the last line; 0: there is none yet.
  uint64_t last() const { return last_; }
  // Appends those of the rows that are records of the audit, and that the file lacks.
  void Write(const std::vector<v1::StateRow>& rows);
  // The next Write opens the path again. Any thread.
  void Reopen() { reopen_.store(true); }

 private:
  AuditFile(std::string path, std::function<void(const std::string&)> on_problem)
      : path_(std::move(path)), on_problem_(std::move(on_problem)) {}
  absl::Status OpenFile();
  absl::Status FindLast();
  absl::Status Flush();
  template <typename Range>
  void WriteRecords(const Range& rows);

  const std::string path_;
  const std::function<void(const std::string&)> on_problem_;
  os::UniqueFd file_;
  std::atomic<bool> reopen_{false};
  // Sequence of the last line, and lines that could not be written.
  uint64_t last_ = 0;
  // The file had no line when it was opened.
  bool is_new_ = false;
  std::string pending_;
  bool is_broken_ = false;
};

}  // namespace meshrun::coordinator
