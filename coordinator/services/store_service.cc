#include "coordinator/services/store_service.h"

namespace meshrun::coordinator {

grpc::ServerUnaryReactor* StoreService::SetValues(grpc::CallbackServerContext* context,
                                                  const v1::SetValuesRequest* request,
                                                  v1::SetValuesResponse* response) {
  v1::StateEvent event;
  *event.mutable_set_values() = *request;
  return (new UnaryCall<v1::SetValuesResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::GetValues(grpc::CallbackServerContext* context,
                                                  const v1::GetValuesRequest* request,
                                                  v1::GetValuesResponse* response) {
  v1::StateEvent event;
  *event.mutable_get_values() = *request;
  return (new UnaryCall<v1::GetValuesResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::WaitKeys(grpc::CallbackServerContext* context,
                                                 const v1::WaitKeysRequest* request,
                                                 v1::WaitKeysResponse* response) {
  v1::StateEvent event;
  *event.mutable_wait_keys() = *request;
  return (new UnaryCall<v1::WaitKeysResponse>(shell_, response))->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::AddValue(grpc::CallbackServerContext* context,
                                                 const v1::AddValueRequest* request,
                                                 v1::AddValueResponse* response) {
  v1::StateEvent event;
  *event.mutable_add_value() = *request;
  return (new UnaryCall<v1::AddValueResponse>(shell_, response))->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::CompareSetValue(grpc::CallbackServerContext* context,
                                                        const v1::CompareSetValueRequest* request,
                                                        v1::CompareSetValueResponse* response) {
  v1::StateEvent event;
  *event.mutable_compare_set_value() = *request;
  return (new UnaryCall<v1::CompareSetValueResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::AppendValue(grpc::CallbackServerContext* context,
                                                    const v1::AppendValueRequest* request,
                                                    v1::AppendValueResponse* response) {
  v1::StateEvent event;
  *event.mutable_append_value() = *request;
  return (new UnaryCall<v1::AppendValueResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::DeleteKey(grpc::CallbackServerContext* context,
                                                  const v1::DeleteKeyRequest* request,
                                                  v1::DeleteKeyResponse* response) {
  v1::StateEvent event;
  *event.mutable_delete_key() = *request;
  return (new UnaryCall<v1::DeleteKeyResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::CountKeys(grpc::CallbackServerContext* context,
                                                  const v1::CountKeysRequest* request,
                                                  v1::CountKeysResponse* response) {
  v1::StateEvent event;
  *event.mutable_count_keys() = *request;
  return (new UnaryCall<v1::CountKeysResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::EnterBarrier(grpc::CallbackServerContext* context,
                                                     const v1::EnterBarrierRequest* request,
                                                     v1::EnterBarrierResponse* response) {
  v1::StateEvent event;
  *event.mutable_enter_barrier() = *request;
  return (new UnaryCall<v1::EnterBarrierResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::PublishUniqueId(grpc::CallbackServerContext* context,
                                                        const v1::PublishUniqueIdRequest* request,
                                                        v1::PublishUniqueIdResponse* response) {
  v1::StateEvent event;
  *event.mutable_publish_unique_id() = *request;
  return (new UnaryCall<v1::PublishUniqueIdResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::AwaitUniqueId(grpc::CallbackServerContext* context,
                                                      const v1::AwaitUniqueIdRequest* request,
                                                      v1::AwaitUniqueIdResponse* response) {
  v1::StateEvent event;
  *event.mutable_await_unique_id() = *request;
  return (new UnaryCall<v1::AwaitUniqueIdResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::RegisterGroup(grpc::CallbackServerContext* context,
                                                      const v1::RegisterGroupRequest* request,
                                                      v1::RegisterGroupResponse* response) {
  v1::StateEvent event;
  *event.mutable_register_group() = *request;
  return (new UnaryCall<v1::RegisterGroupResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::GetWorld(grpc::CallbackServerContext* context,
                                                 const v1::GetWorldRequest* request,
                                                 v1::GetWorldResponse* response) {
  v1::StateEvent event;
  *event.mutable_get_world() = *request;
  return (new UnaryCall<v1::GetWorldResponse>(shell_, response))->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::CommitCheckpoint(grpc::CallbackServerContext* context,
                                                         const v1::CommitCheckpointRequest* request,
                                                         v1::CommitCheckpointResponse* response) {
  v1::StateEvent event;
  *event.mutable_commit_checkpoint() = *request;
  return (new UnaryCall<v1::CommitCheckpointResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::GetCheckpoint(grpc::CallbackServerContext* context,
                                                      const v1::GetCheckpointRequest* request,
                                                      v1::GetCheckpointResponse* response) {
  v1::StateEvent event;
  *event.mutable_get_checkpoint() = *request;
  return (new UnaryCall<v1::GetCheckpointResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::ReportFinished(grpc::CallbackServerContext* context,
                                                       const v1::ReportFinishedRequest* request,
                                                       v1::ReportFinishedResponse* response) {
  v1::StateEvent event;
  *event.mutable_report_finished() = *request;
  return (new UnaryCall<v1::ReportFinishedResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

grpc::ServerUnaryReactor* StoreService::GetFinished(grpc::CallbackServerContext* context,
                                                    const v1::GetFinishedRequest* request,
                                                    v1::GetFinishedResponse* response) {
  v1::StateEvent event;
  *event.mutable_get_finished() = *request;
  return (new UnaryCall<v1::GetFinishedResponse>(shell_, response))
      ->Begin(*context, std::move(event));
}

}  // namespace meshrun::coordinator
