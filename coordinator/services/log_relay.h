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
  // Ends all readers with UNAVAILABLE.
  void Stop();
  // Readers that are still referred to: for tests.
  size_t readers_alive() const { return token_.use_count() - 1; }

 private:
  template <typename Kind>
  friend class ReaderOf;
  friend class LogUpload;
  void Add(const std::string& stream_id, std::shared_ptr<LogReader> reader);
  void Remove(const std::string& stream_id);
  // Null when no reader waits for it.
  std::shared_ptr<LogReader> Find(const std::string& stream_id);
  std::set<std::shared_ptr<LogReader>> Readers();
  // Whether the certificate of the call's peer holds still.
  absl::Status Stands(const Sender& sender);

  Shell shell_;
  // Each reader has a copy.
  const std::shared_ptr<const int> token_ = std::make_shared<const int>(0);
  Mutex mu_;
  std::map<std::string, std::shared_ptr<LogReader>> readers_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
