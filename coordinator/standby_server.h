// What a standby serves: its health, reflection, and for every other call at once the same answer,
// which names the leader.
//
//   grpc.health.v1 "":              SERVING: the process lives
//   grpc.health.v1 "meshrun.ready"
//   and each service:               NOT_SERVING: calls belong to the leader
//
// Stops when it is destroyed.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/door.h"

namespace meshrun::coordinator {

class StandbyServer {
 public:
  // Answer to a call, as of now: UNAVAILABLE with a detail. Called by many threads at once.
  using Answer = std::function<absl::Status()>;

  // `door` outlives it. Errors: as Door::Serve and Door::Begin.
  static absl::StatusOr<std::unique_ptr<StandbyServer>> Start(Door& door, Answer answer);
  virtual ~StandbyServer() = default;
  // Connections end. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace meshrun::coordinator
