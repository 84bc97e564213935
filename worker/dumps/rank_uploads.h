// Stacks and flight records of ranks on their way to the coordinator: each by a call of its own,
// beside the session.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/rpc/renewed_channel.h"
#include "meshrun/v1/session.grpc.pb.h"

namespace meshrun::worker {

class RankUploads {
 public:
  // Whoever asked has given up after this.
  static constexpr std::chrono::seconds kTimeout{10};

  RankUploads(std::shared_ptr<rpc::RenewedChannel> channel, std::string node_id,
              uint64_t incarnation)
      : stub_(std::make_shared<rpc::StubOf<v1::SessionService>>(std::move(channel))),
        node_id_(std::move(node_id)),
        incarnation_(incarnation) {}

  // Adds node and incarnation. Does not wait. What the coordinator does not take is lost.
  // Thread-safe.
  void Send(v1::UploadStackRequest request);
  void Send(v1::UploadFlightRecordRequest request);

 private:
  const std::shared_ptr<rpc::StubOf<v1::SessionService>> stub_;
  const std::string node_id_;
  const uint64_t incarnation_;
};

}  // namespace meshrun::worker
