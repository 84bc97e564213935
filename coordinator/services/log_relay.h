// Passes log bytes from workers to readers.
//
//   reader --ReadLogs--> state machine: which node holds which file
//                        OpenLog to each, on its session
//   worker --UploadLog--> relay --> reader
//
// A reader that is slow slows its own uploads down: each holds at most kBufferBytes here, and then
// its stream is not read. A call ends when every file is read to its end, with UNAVAILABLE when one
// broke off. Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/services/shell.h"
#include "core/mutex.h"
#include "meshrun/v1/job_service.pb.h"
#include "meshrun/v1/session.pb.h"

namespace meshrun::coordinator {

class LogReader;

class LogRelay {
 public:
  static constexpr size_t kBufferBytes = 1 << 20;

  explicit LogRelay(Shell shell) : shell_(shell) {}

  // The reactors of the two calls; they delete themselves.
  grpc::ServerWriteReactor<v1::ReadLogsResponse>* Read(const v1::ReadLogsRequest& request);
  grpc::ServerReadReactor<v1::UploadLogRequest>* Upload();

  // Files that were asked for on this session and are not being uploaded will not come.
  void OnSessionEnded(uint64_t session_id);
  // Ends all readers with UNAVAILABLE.
  void Stop();

 private:
  friend class LogReader;
  friend class LogUpload;
  void Add(const std::string& stream_id, std::shared_ptr<LogReader> reader);
  void Remove(const std::string& stream_id);
  // Null when nobody waits for it.
  std::shared_ptr<LogReader> Find(const std::string& stream_id);
  std::set<std::shared_ptr<LogReader>> Readers();

  Shell shell_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<LogReader>> readers_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
