// StoreService: what ranks tell each other, passed on by their daemons.
#pragma once

#include "coordinator/services/shell.h"
#include "meshrun/v1/store_service.grpc.pb.h"

namespace meshrun::coordinator {

class StoreService : public v1::StoreService::CallbackService {
 public:
  explicit StoreService(Shell shell) : shell_(shell) {}

  grpc::ServerUnaryReactor* SetValues(grpc::CallbackServerContext*, const v1::SetValuesRequest*,
                                      v1::SetValuesResponse*) override;
  grpc::ServerUnaryReactor* GetValues(grpc::CallbackServerContext*, const v1::GetValuesRequest*,
                                      v1::GetValuesResponse*) override;
  grpc::ServerUnaryReactor* WaitKeys(grpc::CallbackServerContext*, const v1::WaitKeysRequest*,
                                     v1::WaitKeysResponse*) override;
  grpc::ServerUnaryReactor* AddValue(grpc::CallbackServerContext*, const v1::AddValueRequest*,
                                     v1::AddValueResponse*) override;
  grpc::ServerUnaryReactor* CompareSetValue(grpc::CallbackServerContext*,
                                            const v1::CompareSetValueRequest*,
                                            v1::CompareSetValueResponse*) override;
  grpc::ServerUnaryReactor* AppendValue(grpc::CallbackServerContext*, const v1::AppendValueRequest*,
                                        v1::AppendValueResponse*) override;
  grpc::ServerUnaryReactor* DeleteKey(grpc::CallbackServerContext*, const v1::DeleteKeyRequest*,
                                      v1::DeleteKeyResponse*) override;
  grpc::ServerUnaryReactor* CountKeys(grpc::CallbackServerContext*, const v1::CountKeysRequest*,
                                      v1::CountKeysResponse*) override;
  grpc::ServerUnaryReactor* EnterBarrier(grpc::CallbackServerContext*,
                                         const v1::EnterBarrierRequest*,
                                         v1::EnterBarrierResponse*) override;
  grpc::ServerUnaryReactor* PublishUniqueId(grpc::CallbackServerContext*,
                                            const v1::PublishUniqueIdRequest*,
                                            v1::PublishUniqueIdResponse*) override;
  grpc::ServerUnaryReactor* AwaitUniqueId(grpc::CallbackServerContext*,
                                          const v1::AwaitUniqueIdRequest*,
                                          v1::AwaitUniqueIdResponse*) override;
  grpc::ServerUnaryReactor* RegisterGroup(grpc::CallbackServerContext*,
                                          const v1::RegisterGroupRequest*,
                                          v1::RegisterGroupResponse*) override;
  grpc::ServerUnaryReactor* GetWorld(grpc::CallbackServerContext*, const v1::GetWorldRequest*,
                                     v1::GetWorldResponse*) override;
  grpc::ServerUnaryReactor* CommitCheckpoint(grpc::CallbackServerContext*,
                                             const v1::CommitCheckpointRequest*,
                                             v1::CommitCheckpointResponse*) override;
  grpc::ServerUnaryReactor* GetCheckpoint(grpc::CallbackServerContext*,
                                          const v1::GetCheckpointRequest*,
                                          v1::GetCheckpointResponse*) override;
  grpc::ServerUnaryReactor* ReportFinished(grpc::CallbackServerContext*,
                                           const v1::ReportFinishedRequest*,
                                           v1::ReportFinishedResponse*) override;
  grpc::ServerUnaryReactor* GetFinished(grpc::CallbackServerContext*, const v1::GetFinishedRequest*,
                                        v1::GetFinishedResponse*) override;

 private:
  Shell shell_;
};

}  // namespace meshrun::coordinator
