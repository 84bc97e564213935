// The HTTP API and the page: what the coordinator's HTTP server is asked for below / and /api/v1.
//
// A call goes the way of the gRPC method that its row names (routes.h): the role, the gate, the
// bounds, the stamp of its sender, the event, the audit are the same code, and so is the answer.
// Besides, a call that changes something must have "Content-Type: application/json", which no form
// and no script of another site can send.
//
// Thread-safe. Handle waits on the thread that calls it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "coordinator/api/routes.h"
#include "coordinator/services/cluster_service.h"
#include "coordinator/services/job_service.h"
#include "core/http/message.h"
#include "core/rpc/caller.h"

namespace meshrun::coordinator {

class Api {
 public:
  struct Options {
    JobService& jobs;
    ClusterService& cluster;
    // Asked for calls with a certificate; null: each is let in.
    rpc::CallAdmission admit;
    // Told of a call that was let in and whose request, of so many bytes, cannot be read: no
    // service sees it. May be null.
    std::function<void(const rpc::Identity& caller, size_t bytes)> on_unreadable;
    std::chrono::milliseconds answer_within = std::chrono::seconds(30);
    // Ranks of a stopped host are given up by the call itself, after 20 s.
    std::chrono::milliseconds collect_within = std::chrono::seconds(60);
    // A host that is slower hides its own pictures from the list.
    std::chrono::milliseconds list_pictures_within = std::chrono::seconds(5);
    std::chrono::milliseconds heartbeat = std::chrono::seconds(10);
  };
  explicit Api(Options options) : options_(std::move(options)) {}

  http::Answer Handle(const http::Request& request) const;

  // A handler beside the API, for callers whose roles allow `method` and who do not call too often.
  // Outlived by this object.
  http::Handler Guard(std::string method, http::Handler handler) const;

 private:
  http::Answer Call(const http::Request& request) const;
  // Whether the caller may make the call, by its head alone. `method`: empty where the path is none
  // that there is. `counted_as`: its name for the gate.
  absl::Status Allow(const http::Request& request, std::string_view method,
                     std::string_view counted_as) const;
  absl::StatusOr<http::Answer> Run(const http::Request& request, const Match& match) const;

  const Options options_;
};

}  // namespace meshrun::coordinator
