// Passes log bytes and pictures from workers to readers.
//
//   reader --ReadLogs, ReadPictures--> state machine: which node holds which file
//                                      OpenLog, OpenPictures to each, on its session
//   worker --UploadLog--> relay --> reader
//
// A slow reader slows down only its own uploads. The relay buffers at most kBufferBytes for all
// uploads of a reader together, and then stops reading their streams. Each stream may have one more
// message under way; with more files the messages are smaller. A call ends when every file is read
// to its end, and with UNAVAILABLE when an upload broke off. An upload outlives the session that
// asked for it, but not its node: when the node is lost the relay ends the upload, because a host
// without power cannot.
// Thread-safe.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
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
template <typename Kind>
class ReaderOf;

class LogRelay {
 public:
  static constexpr size_t kBufferBytes = 1 << 20;

  // The event loop must stop before this object is destroyed.
  explicit LogRelay(Shell shell);
  ~LogRelay();

  // The reactors of the three calls; they delete themselves.
  grpc::ServerWriteReactor<v1::ReadLogsResponse>* Read(const Sender& sender,
                                                       const v1::ReadLogsRequest& request);
  grpc::ServerWriteReactor<v1::ReadPicturesResponse>* Read(const Sender& sender,
                                                           const v1::ReadPicturesRequest& request);
  grpc::ServerReadReactor<v1::UploadLogRequest>* Upload(grpc::CallbackServerContext* context);

  // This session has ended: the files that it was asked for, and whose upload has not begun, will
  // not come.
  void OnSessionEnded(uint64_t session_id);
  // Ends all readers with UNAVAILABLE. The event loop opens no more files for them.
  void Stop();
  // Returns when nothing refers to a reader any more. gRPC ends a call without waiting for an alarm
  // or a certificate's watch that is just at its reader. Call it after Stop, once the server of the
  // calls has shut down. False: a reader was left after `timeout`.
  bool AwaitReaders(std::chrono::milliseconds timeout) MESHRUN_EXCLUDES(alive_mu_);
  // Readers that are still referred to: for tests.
  size_t readers_alive() const MESHRUN_EXCLUDES(alive_mu_) {
    MutexLock lock(alive_mu_);
    return alive_;
  }

 private:
  template <typename Kind>
  friend class ReaderOf;
  friend class LogUpload;
  // Counts its reader.
  class Presence {
   public:
    explicit Presence(LogRelay& relay) : relay_(relay) {
      MutexLock lock(relay_.alive_mu_);
      ++relay_.alive_;
    }
    // The notice is given under the lock: whoever waits for it may destroy the relay right after.
    ~Presence() {
      MutexLock lock(relay_.alive_mu_);
      --relay_.alive_;
      relay_.left_.NotifyAll();
    }
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;

   private:
    LogRelay& relay_;
  };
  void Add(const std::string& stream_id, std::shared_ptr<LogReader> reader);
  void Remove(const std::string& stream_id);
  // Null when no reader waits for it.
  std::shared_ptr<LogReader> Find(const std::string& stream_id);
  std::set<std::shared_ptr<LogReader>> Readers();
  // Whether the certificate of the call's peer holds still.
  absl::Status Stands(const Sender& sender);

  Shell shell_;
  mutable Mutex alive_mu_;
  CondVar left_;
  size_t alive_ MESHRUN_GUARDED_BY(alive_mu_) = 0;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<LogReader>> readers_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
