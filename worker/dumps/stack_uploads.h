// Stacks of ranks on their way to the coordinator: each by a call of its own, beside the session.
#pragma once

#include <chrono>
#include <memory>

#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/session.grpc.pb.h"

namespace meshrun::worker {

class StackUploads {
 public:
  // Whoever asked has given up after this.
  static constexpr std::chrono::seconds kTimeout{10};

  explicit StackUploads(std::shared_ptr<rpc::RenewedChannel> channel)
      : stub_(std::make_shared<rpc::StubOf<v1::SessionService>>(std::move(channel))) {}

  // Does not wait. What the coordinator does not take is lost. Thread-safe.
  void Send(v1::UploadStackRequest request);

 private:
  const std::shared_ptr<rpc::StubOf<v1::SessionService>> stub_;
};

}  // namespace meshrun::worker
