// The methods of the services that the HTTP API calls, by their names.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/api/local_call.h"
#include "coordinator/services/cluster_service.h"
#include "coordinator/services/job_service.h"

namespace meshrun::coordinator {

struct Services {
  JobService& jobs;
  ClusterService& cluster;
};

// An empty request of a method: "/meshrun.v1.JobService/GetJob".
std::unique_ptr<google::protobuf::Message> NewRequest(std::string_view method);

// Makes a call that has one answer, and waits for it. DEADLINE_EXCEEDED: none came by then;
// UNAVAILABLE: it has nowhere to go; and the errors of the method.
absl::StatusOr<std::unique_ptr<google::protobuf::Message>> CallUnary(
    const Services& services, std::string_view method, const Sender& sender,
    std::shared_ptr<const google::protobuf::Message> request, const Patience& patience);
// Begins a call that has many.
std::shared_ptr<LocalStream> CallStream(const Services& services, std::string_view method,
                                        const Sender& sender,
                                        const google::protobuf::Message& request);

}  // namespace meshrun::coordinator
