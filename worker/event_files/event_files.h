// Writes what ranks report to event files (JobSpec.tensorboard), as the user of the ranks.
//
// The writing runs on a thread of its own, since a file system may hang, and with the user's rights
// on that thread alone: a directory on NFS may be closed to root. The thread shares nothing with
// its owner but one socket and takes no lock, as in output_copier.h. What the file system does not
// take in time waits, up to kMostWaiting bytes; beyond it records are lost, and counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/os/fd.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/event_files/rank_curve.h"

namespace meshrun::worker {

class EventFiles {
 public:
  static constexpr size_t kMostWaiting = size_t{4} << 20;
  // For what waits at the end, when the file system does not answer.
  static constexpr std::chrono::seconds kPatience{2};

  // What became of a process's file, once: the errno of the first call on `path` that failed.
  struct Problem {
    uint32_t process = 0;
    int error = 0;
    std::string path;
  };

  // `user`: who the files belong to; null: this process's.
  static absl::StatusOr<std::unique_ptr<EventFiles>> Start(const v1::RankUser* user);
  // Writes what waits; after kPatience the thread is left to the end of the process.
  ~EventFiles();

  // A report of process number `process`, whose file begins in `directory` (made if missing) with
  // the first report that holds a number. `tag`: makes the file's name this process's own.
  void Add(uint32_t process, const std::string& directory, const std::string& tag,
           const v1::Progress& report, WallNanos now);

  // For poll(): readable when there are problems, writable wanted while records wait.
  int fd() const { return owner_end_.get(); }
  bool waits_for_room() const { return !waiting_.empty(); }
  void OnWritable();
  std::vector<Problem> TakeProblems();
  // The other end has hung up: nothing more is written.
  void Close();
  // Records that were lost because too many waited.
  uint64_t lost() const { return lost_; }

 private:
  EventFiles() = default;
  void Send(std::string message);
  void DropWaiting();

  os::UniqueFd owner_end_;
  std::thread thread_;
  std::map<uint32_t, RankCurve> curves_;
  std::deque<std::string> waiting_;
  size_t waiting_bytes_ = 0;
  uint64_t lost_ = 0;
  // The thread has ended: nothing more is written.
  bool broken_ = false;
};

}  // namespace meshrun::worker
