// Log streams that the coordinator asked for: each reads one file from an offset and sends it by
// its own UploadLog call, as fast as the reader takes it. A followed file is polled 20 times a
// second until its rank has ended and the file is read to its end. Pictures of ranks go the same
// way.
//
// Has its own event loop and thread: a slow disk delays no heartbeat. Methods may be called from
// any thread; calls are carried out in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {

class Upload;

// Where a rank's pictures may be.
struct PicturePlace {
  // As the reader knows it.
  int rank = 0;
  // The first one that is there counts.
  std::vector<std::string> directories;
};

class LogUploads {
 public:
  // More than this at once are refused.
  static constexpr size_t kMostStreams = 1024;

  explicit LogUploads(std::shared_ptr<rpc::RenewedChannel> channel);
  // Cancels what is under way, and waits for it.
  ~LogUploads();

  // `growing`: the rank that writes `path` has not ended.
  void Open(const v1::OpenLog& request, std::string path, bool growing);
  // Which pictures are in `places`, or one of them. Absent directories have none.
  void OpenPictures(const v1::OpenPictures& request, std::vector<PicturePlace> places);
  void Close(const std::string& stream_id);
  // This rank has ended: its files no longer grow.
  void RankEnded(const std::string& job_id, uint64_t generation, int rank);

 private:
  friend class Upload;
  void Start(const std::string& stream_id, std::function<std::unique_ptr<Upload>()> make);
  void Forget(const std::string& stream_id);

  EventLoop loop_;
  rpc::StubOf<v1::SessionService> stub_;
  // On the loop's thread.
  std::unordered_map<std::string, std::unique_ptr<Upload>> uploads_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace meshrun::worker
