#include "coordinator/api/calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

namespace meshrun::coordinator {
namespace {

using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;

struct UnaryMethod {
  std::string_view name;
  grpc::ServerUnaryReactor* (*call)(const Services&, const Sender&, const Message&, Message*);
};
struct StreamMethod {
  std::string_view name;
  std::shared_ptr<LocalStream> (*call)(const Services&, const Sender&, const Message&);
};

#define MESHRUN_UNARY(Service, member, Method)                                                    \
  {                                                                                               \
    "/meshrun.v1." #Service "/" #Method,                                                          \
        [](const Services& to, const Sender& sender, const Message& request, Message* response) { \
          return to.member.Method(sender, static_cast<const v1::Method##Request&>(request),       \
                                  static_cast<v1::Method##Response*>(response));                  \
        }                                                                                         \
  }
#define MESHRUN_STREAM(Method)                                                           \
  {                                                                                      \
    "/meshrun.v1.JobService/" #Method,                                                   \
        [](const Services& to, const Sender& sender, const Message& request) {           \
          return LocalStreamOf<v1::Method##Response>::Begin(                             \
              to.jobs.Method(sender, static_cast<const v1::Method##Request&>(request))); \
        }                                                                                \
  }

constexpr UnaryMethod kUnary[] = {
    MESHRUN_UNARY(JobService, jobs, GetJob),
    MESHRUN_UNARY(JobService, jobs, ListJobs),
    MESHRUN_UNARY(JobService, jobs, CancelJob),
    MESHRUN_UNARY(JobService, jobs, UpdateJob),
    MESHRUN_UNARY(ClusterService, cluster, ListNodes),
    MESHRUN_UNARY(ClusterService, cluster, DescribeCluster),
    MESHRUN_UNARY(ClusterService, cluster, ListEvents),
    MESHRUN_UNARY(ClusterService, cluster, DrainNode),
    MESHRUN_UNARY(ClusterService, cluster, UndrainNode),
    MESHRUN_UNARY(ClusterService, cluster, ListUsage),
    MESHRUN_UNARY(ClusterService, cluster, DescribeLimits),
};
constexpr StreamMethod kStreams[] = {
    MESHRUN_STREAM(WatchJob),         MESHRUN_STREAM(ReadLogs),  MESHRUN_STREAM(ReadPictures),
    MESHRUN_STREAM(GetFlightRecords), MESHRUN_STREAM(GetStacks),
};

#undef MESHRUN_UNARY
#undef MESHRUN_STREAM

const MethodDescriptor& Describe(std::string_view method) {
  std::string name(method.substr(1));
  std::replace(name.begin(), name.end(), '/', '.');
  return *google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
}

std::unique_ptr<Message> New(const google::protobuf::Descriptor& type) {
  return std::unique_ptr<Message>(MessageFactory::generated_factory()->GetPrototype(&type)->New());
}

template <typename Methods>
const auto& Find(const Methods& methods, std::string_view name) {
  return *std::find_if(std::begin(methods), std::end(methods),
                       [name](const auto& method) { return method.name == name; });
}

// What a reactor refers to.
struct Messages {
  std::shared_ptr<const Message> request;
  std::shared_ptr<Message> response;
};

}  // namespace

std::unique_ptr<Message> NewRequest(std::string_view method) {
  return New(*Describe(method).input_type());
}

absl::StatusOr<std::unique_ptr<Message>> CallUnary(const Services& services,
                                                   std::string_view method, const Sender& sender,
                                                   std::shared_ptr<const Message> request,
                                                   const Patience& patience) {
  auto messages = std::make_shared<Messages>();
  messages->request = std::move(request);
  messages->response = New(*Describe(method).output_type());
  const auto call = std::make_shared<LocalUnary>();
  call->Begin(
      Find(kUnary, method).call(services, sender, *messages->request, messages->response.get()),
      messages);
  std::optional<absl::Status> status;
  const absl::Status waited =
      AwaitPatiently(patience, "the coordinator has not answered in time: try again",
                     [&](Deadline step) { return (status = call->Wait(step)).has_value(); });
  if (!waited.ok()) {
    call->Cancel();
    return waited;
  }
  if (!status->ok()) return *status;
  std::unique_ptr<Message> response = New(*messages->response->GetDescriptor());
  response->GetReflection()->Swap(response.get(), messages->response.get());
  return response;
}

std::shared_ptr<LocalStream> CallStream(const Services& services, std::string_view method,
                                        const Sender& sender, const Message& request) {
  return Find(kStreams, method).call(services, sender, request);
}

}  // namespace meshrun::coordinator
