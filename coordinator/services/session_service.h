// SessionService: the workers' streams, and the log bytes, flight records and stacks that they
// upload.
#pragma once

#include "coordinator/services/log_relay.h"
#include "coordinator/services/shell.h"
#include "meshrun/v1/session.grpc.pb.h"

namespace meshrun::coordinator {

class SessionService : public v1::SessionService::CallbackService {
 public:
  SessionService(Shell shell, LogRelay& relay) : shell_(shell), relay_(relay) {}

  grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::UploadLogRequest>* UploadLog(grpc::CallbackServerContext*,
                                                           v1::UploadLogResponse*) override;
  grpc::ServerUnaryReactor* UploadFlightRecord(grpc::CallbackServerContext*,
                                               const v1::UploadFlightRecordRequest*,
                                               v1::UploadFlightRecordResponse*) override;
  grpc::ServerUnaryReactor* UploadStack(grpc::CallbackServerContext*, const v1::UploadStackRequest*,
                                        v1::UploadStackResponse*) override;

 private:
  Shell shell_;
  LogRelay& relay_;
};

}  // namespace meshrun::coordinator
