#include "coordinator/state_machine/callers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace meshrun::coordinator {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const FieldDescriptor* FieldOf(const v1::StateEvent& event) {
  return event.GetReflection()->GetOneofFieldDescriptor(
      event, v1::StateEvent::descriptor()->FindOneofByName("event"));
}

// The message of the event itself: a SetValuesRequest, a CancelJobRequest, ...
const Message& BodyOf(const v1::StateEvent& event) {
  const FieldDescriptor* const field = FieldOf(event);
  return field == nullptr ? static_cast<const Message&>(event)
                          : event.GetReflection()->GetMessage(event, field);
}

const FieldDescriptor* JobIdField(const Message& body) {
  return body.GetDescriptor()->FindFieldByName("job_id");
}

bool MayName(const v1::Caller& caller, const std::string& node) {
  return std::any_of(caller.nodes().begin(), caller.nodes().end(),
                     [&node](const std::string& own) { return own == "*" || own == node; });
}

absl::Status NotItsNode(const v1::Caller& caller, std::string_view what) {
  return absl::PermissionDeniedError(fmt::format(
      "the certificate of '{}' is for the node {}, and not for {}", caller.user(),
      caller.nodes().empty() ? "of nobody" : fmt::format("{}", fmt::join(caller.nodes(), ", ")),
      what));
}

absl::Status CheckHello(const v1::Caller& caller, const v1::Hello& hello, NodeTable& nodes) {
  if (!MayName(caller, hello.name())) {
    return NotItsNode(caller, fmt::format("'{}'", hello.name()));
  }
  // Else a worker could take another node's place under its own name.
  const Node* const known = nodes.Find(hello.node_id());
  if (known != nullptr && !MayName(caller, known->record.name())) {
    return NotItsNode(
        caller, fmt::format("node id {}, which is '{}'", hello.node_id(), known->record.name()));
  }
  return absl::OkStatus();
}

absl::Status CheckFence(const v1::Caller& caller, const Message& body, NodeTable& nodes,
                        JobTable& jobs) {
  const FieldDescriptor* const field = body.GetDescriptor()->FindFieldByName("fence");
  const auto* const fence =
      field == nullptr
          ? nullptr
          : dynamic_cast<const v1::Fence*>(&body.GetReflection()->GetMessage(body, field));
  const Node* const node = fence == nullptr ? nullptr : nodes.Find(fence->node_id());
  if (node == nullptr || !MayName(caller, node->record.name())) {
    return NotItsNode(caller, node == nullptr ? "a call that names no node"
                                              : fmt::format("'{}'", node->record.name()));
  }
  Job* const job = jobs.Find(fence->job_id());
  if (job != nullptr && fence->generation() == job->view.generation() &&
      job->FindMember(node->id()) == nullptr) {
    return absl::PermissionDeniedError(
        fmt::format("no rank of job {} runs on {}", job->id(), node->record.name()));
  }
  return absl::OkStatus();
}

absl::Status CheckOwner(const v1::Caller& caller, const Message& body, JobTable& jobs) {
  const FieldDescriptor* const field = JobIdField(body);
  if (field == nullptr) {
    return absl::PermissionDeniedError("this call is for the role operate");
  }
  const std::string name = body.GetReflection()->GetString(body, field);
  std::vector<Job*> named = jobs.OfArray(name);
  // The call itself answers that there is no such job.
  if (const auto job = jobs.Lookup(name); job.ok()) named.push_back(*job);
  for (const Job* const job : named) {
    if (job->view.submitter() == caller.user()) continue;
    return absl::PermissionDeniedError(fmt::format(
        "job {} was submitted by '{}', and the certificate of '{}' has the role submit: "
        "changing others' jobs takes the role operate",
        job->id(), job->view.submitter(), caller.user()));
  }
  return absl::OkStatus();
}

absl::Status CheckPriority(const v1::Caller& caller, int32_t priority) {
  if (priority <= 0) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format(
      "priority {}: the certificate of '{}' has the role submit, and a priority above 0 "
      "takes the role operate",
      priority, caller.user()));
}

}  // namespace

std::string MethodOf(const v1::StateEvent& event) {
  if (event.has_session_message()) return "OpenSession";
  const FieldDescriptor* const field = FieldOf(event);
  std::string name = field == nullptr ? "" : field->camelcase_name();
  if (!name.empty() && name[0] >= 'a' && name[0] <= 'z') name[0] -= 'a' - 'A';
  return name;
}

std::string JobIdOf(const v1::StateEvent& event) {
  const Message& body = BodyOf(event);
  if (const FieldDescriptor* const field = JobIdField(body))
    return body.GetReflection()->GetString(body, field);
  const FieldDescriptor* const fence = body.GetDescriptor()->FindFieldByName("fence");
  if (fence == nullptr) return "";
  return static_cast<const v1::Fence&>(body.GetReflection()->GetMessage(body, fence)).job_id();
}

absl::Status CheckCluster(const std::string& cluster_id, const v1::Hello& hello) {
  if (hello.cluster_id().empty() || hello.cluster_id() == cluster_id) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "{} belongs to cluster {}, and this coordinator {}: {}", hello.name(), hello.cluster_id(),
      cluster_id.empty() ? "keeps no state" : "is of cluster " + cluster_id,
      cluster_id.empty()
          ? "give the worker another --state-dir"
          : fmt::format("look at its --coordinator, or move it with --join-cluster {}",
                        cluster_id)));
}

absl::Status CheckCaller(const v1::StateEvent& event, NodeTable& nodes, JobTable& jobs) {
  const v1::Caller& caller = event.caller();
  if (caller.own_node_only()) {
    return event.has_session_message()
               ? CheckHello(caller, event.session_message().message().hello(), nodes)
               : CheckFence(caller, BodyOf(event), nodes, jobs);
  }
  if (!caller.own_jobs_only()) return absl::OkStatus();
  if (event.has_submit_job()) return CheckPriority(caller, event.submit_job().spec().priority());
  if (absl::Status status = CheckPriority(caller, event.update_job().priority()); !status.ok()) {
    return status;
  }
  return CheckOwner(caller, BodyOf(event), jobs);
}

}  // namespace meshrun::coordinator
