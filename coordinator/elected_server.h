// One coordinator of several: a standby until it is elected, then the leader, and a standby again
// when it has lost the leadership; in one process, at one address.
//
//            elected                      state restored
//   STANDBY ---------> TAKING OVER ------------------------> LEADS
//      ^                    |                                  |
//      |      lost, or what it needs is not there              | lost
//      +--------------------+----------------------------------+
//
// STANDBY and TAKING OVER answer every call with NotLeading. A loss is noticed by the event loop
// before each thing that it does, so a process that stood still for minutes does nothing more as a
// leader.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/door.h"
#include "coordinator/http_front.h"
#include "coordinator/leadership/leadership.h"
#include "coordinator/server.h"

namespace meshrun::coordinator {

class ElectedServer : public Server {
 public:
  struct Options {
    // Leadership::Candidate::name.
    std::string name;
    std::unique_ptr<Door> door;
    std::unique_ptr<Leadership> leadership;
    // Where HTTP is served, by the leader and by a standby; null: nowhere.
    std::unique_ptr<HttpFront> front;
    // What a server needs that leads from now on: policy, store and files, opened anew each time.
    // Its door and leadership are filled in. `note` may be called from any thread. An error that
    // may pass is tried again; one that does not is the end: another coordinator takes over.
    using Note = std::function<void(const std::string& kind, const std::string& message)>;
    std::function<absl::StatusOr<Server::Options>(Note note)> prepare;
    // It can never lead: of no use any more. Called once, on a thread of the server's.
    std::function<void(const absl::Status&)> on_useless;
  };

  // Serves as a standby, and campaigns. Errors: as StandbyServer::Start.
  static absl::StatusOr<std::unique_ptr<ElectedServer>> Start(Options options);
};

}  // namespace meshrun::coordinator
