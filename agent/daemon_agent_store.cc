// Keys, barriers, unique ids and groups: the daemon's store service.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "agent/daemon_agent.h"
#include "agent/deadlines.h"
#include "core/os/routes.h"
#include "core/proto_time.h"
#include "core/status.h"

namespace meshrun::agent {
namespace {

// At timeout 0 the store says NOT_FOUND; here a timeout is a timeout.
absl::Status AsTimeout(const absl::Status& status) {
  return absl::IsNotFound(status) ? absl::DeadlineExceededError(status.message()) : status;
}

}  // namespace

template <typename Request, typename Response>
absl::Status DaemonAgent::Call(Method<Request, Response> method, const Request& request,
                               Response* response) {
  return calls_.Run(After(kCallTimeout), [&](grpc::ClientContext& context, auto) {
    return ((*store_).*method)(&context, request, response);
  });
}

template <typename Request, typename Response>
absl::Status DaemonAgent::WaitingCall(Method<Request, Response> method, Request request,
                                      Milliseconds timeout, Response* response,
                                      const std::stop_token& stop) {
  const WaitScope waits(totals_);
  return AsTimeout(calls_.Run(
      After(timeout),
      [&](grpc::ClientContext& context, std::chrono::nanoseconds remaining) {
        *request.mutable_timeout() = ToProtoDuration(remaining);
        return ((*store_).*method)(&context, request, response);
      },
      stop));
}

absl::StatusOr<WorldTable> DaemonAgent::World(Milliseconds timeout) {
  auto request = NewRequest<v1::GetWorldRequest>();
  v1::GetWorldResponse response;
  MESHRUN_RETURN_IF_ERROR(calls_.Run(After(timeout), [&](grpc::ClientContext& context, auto) {
    return store_->GetWorld(&context, request, &response);
  }));
  WorldTable table;
  table.node_ranks.resize(assignment_.world_size, -1);
  table.addresses.resize(assignment_.world_size);
  std::map<std::string, std::string> address_of;
  for (const v1::NodeAddresses& node : response.world().addresses()) {
    address_of[node.node_id()] =
        os::FirstWithRoute({node.addresses().begin(), node.addresses().end()});
  }
  for (const v1::RankAssignment& rank : response.world().ranks()) {
    if (rank.rank() < 0 || rank.rank() >= assignment_.world_size) continue;
    table.node_ranks[rank.rank()] = rank.node_rank();
    table.addresses[rank.rank()] = address_of[rank.node_id()];
  }
  if (std::count(table.node_ranks.begin(), table.node_ranks.end(), -1) > 0) {
    return absl::InternalError(fmt::format("the world table has {} ranks, the world {}",
                                           response.world().ranks_size(), assignment_.world_size));
  }
  return table;
}

absl::Status DaemonAgent::Set(std::string_view key, std::string_view value) {
  return MultiSet({std::string(key)}, {std::string(value)});
}

absl::Status DaemonAgent::MultiSet(const std::vector<std::string>& keys,
                                   const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(
        fmt::format("MultiSet: {} keys and {} values", keys.size(), values.size()));
  }
  auto request = NewRequest<v1::SetValuesRequest>();
  for (size_t i = 0; i < keys.size(); ++i) (*request.mutable_values())[keys[i]] = values[i];
  v1::SetValuesResponse response;
  return Call(&v1::StoreService::Stub::SetValues, request, &response);
}

absl::StatusOr<std::string> DaemonAgent::Get(std::string_view key, Milliseconds timeout) {
  MESHRUN_ASSIGN_OR_RETURN(std::vector<std::string> values,
                           MultiGet({std::string(key)}, timeout, {}));
  return std::move(values.front());
}

absl::StatusOr<std::vector<std::string>> DaemonAgent::MultiGet(const std::vector<std::string>& keys,
                                                               Milliseconds timeout,
                                                               const std::stop_token& stop) {
  auto request = NewRequest<v1::GetValuesRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::GetValuesResponse response;
  MESHRUN_RETURN_IF_ERROR(WaitingCall(&v1::StoreService::Stub::GetValues, std::move(request),
                                      timeout, &response, stop));
  if (response.values_size() != static_cast<int>(keys.size())) {
    return absl::InternalError(
        fmt::format("asked for {} keys, got {} values", keys.size(), response.values_size()));
  }
  return std::vector<std::string>(response.values().begin(), response.values().end());
}

absl::Status DaemonAgent::Wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  auto request = NewRequest<v1::WaitKeysRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::WaitKeysResponse response;
  return WaitingCall(&v1::StoreService::Stub::WaitKeys, std::move(request), timeout, &response);
}

absl::StatusOr<bool> DaemonAgent::Check(const std::vector<std::string>& keys) {
  auto request = NewRequest<v1::CountKeysRequest>();
  request.mutable_keys()->Add(keys.begin(), keys.end());
  v1::CountKeysResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CountKeys, request, &response));
  return response.existing() == keys.size();
}

absl::StatusOr<int64_t> DaemonAgent::Add(std::string_view key, int64_t amount) {
  auto request = NewRequest<v1::AddValueRequest>();
  request.set_key(std::string(key));
  request.set_amount(amount);
  v1::AddValueResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::AddValue, request, &response));
  return response.value();
}

absl::StatusOr<std::string> DaemonAgent::CompareSet(std::string_view key, std::string_view expected,
                                                    std::string_view desired) {
  auto request = NewRequest<v1::CompareSetValueRequest>();
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  v1::CompareSetValueResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CompareSetValue, request, &response));
  return response.has_value() ? response.value() : std::string(expected);
}

absl::Status DaemonAgent::Append(std::string_view key, std::string_view value) {
  auto request = NewRequest<v1::AppendValueRequest>();
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  v1::AppendValueResponse response;
  return Call(&v1::StoreService::Stub::AppendValue, request, &response);
}

absl::StatusOr<bool> DaemonAgent::Delete(std::string_view key) {
  auto request = NewRequest<v1::DeleteKeyRequest>();
  request.set_key(std::string(key));
  v1::DeleteKeyResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::DeleteKey, request, &response));
  return response.deleted();
}

absl::StatusOr<int64_t> DaemonAgent::CountKeys() {
  const auto request = NewRequest<v1::CountKeysRequest>();
  v1::CountKeysResponse response;
  MESHRUN_RETURN_IF_ERROR(Call(&v1::StoreService::Stub::CountKeys, request, &response));
  return static_cast<int64_t>(response.total());
}

absl::Status DaemonAgent::Barrier(std::string_view name, const std::vector<int>& ranks,
                                  Milliseconds timeout) {
  auto request = NewRequest<v1::EnterBarrierRequest>();
  request.set_name(std::string(name));
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  v1::EnterBarrierResponse response;
  return WaitingCall(&v1::StoreService::Stub::EnterBarrier, std::move(request), timeout, &response);
}

absl::Status DaemonAgent::PublishUniqueId(std::string_view group, std::string_view unique_id) {
  auto request = NewRequest<v1::PublishUniqueIdRequest>();
  request.set_group(std::string(group));
  request.set_unique_id(std::string(unique_id));
  v1::PublishUniqueIdResponse response;
  return Call(&v1::StoreService::Stub::PublishUniqueId, request, &response);
}

absl::StatusOr<std::string> DaemonAgent::AwaitUniqueId(std::string_view group,
                                                       Milliseconds timeout) {
  auto request = NewRequest<v1::AwaitUniqueIdRequest>();
  request.set_group(std::string(group));
  v1::AwaitUniqueIdResponse response;
  MESHRUN_RETURN_IF_ERROR(
      WaitingCall(&v1::StoreService::Stub::AwaitUniqueId, std::move(request), timeout, &response));
  return response.unique_id();
}

absl::Status DaemonAgent::RegisterGroup(std::string_view name, const std::vector<int>& ranks,
                                        std::string_view backend) {
  auto request = NewRequest<v1::RegisterGroupRequest>();
  request.set_name(std::string(name));
  request.mutable_ranks()->Add(ranks.begin(), ranks.end());
  request.set_backend(std::string(backend));
  v1::RegisterGroupResponse response;
  return Call(&v1::StoreService::Stub::RegisterGroup, request, &response);
}

}  // namespace meshrun::agent
