// JobService: what clients ask about jobs. Calls come over gRPC, or, with a Sender, over the HTTP
// API; both are the same calls.
#pragma once

#include "coordinator/services/log_relay.h"
#include "coordinator/services/shell.h"
#include "meshrun/v1/job_service.grpc.pb.h"

namespace meshrun::coordinator {

class JobService : public v1::JobService::CallbackService {
 public:
  JobService(Shell shell, LogRelay& relay) : shell_(shell), relay_(relay) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext*, const v1::SubmitJobRequest*,
                                      v1::SubmitJobResponse*) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext*, const v1::GetJobRequest*,
                                   v1::GetJobResponse*) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext*, const v1::ListJobsRequest*,
                                     v1::ListJobsResponse*) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(grpc::CallbackServerContext*,
                                                           const v1::WatchJobRequest*) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext*, const v1::CancelJobRequest*,
                                      v1::CancelJobResponse*) override;
  grpc::ServerUnaryReactor* SignalJob(grpc::CallbackServerContext*, const v1::SignalJobRequest*,
                                      v1::SignalJobResponse*) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext*, const v1::UpdateJobRequest*,
                                      v1::UpdateJobResponse*) override;
  grpc::ServerWriteReactor<v1::ReadLogsResponse>* ReadLogs(grpc::CallbackServerContext*,
                                                           const v1::ReadLogsRequest*) override;
  grpc::ServerWriteReactor<v1::ReadPicturesResponse>* ReadPictures(
      grpc::CallbackServerContext*, const v1::ReadPicturesRequest*) override;
  grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* GetFlightRecords(
      grpc::CallbackServerContext*, const v1::GetFlightRecordsRequest*) override;
  grpc::ServerWriteReactor<v1::GetStacksResponse>* GetStacks(grpc::CallbackServerContext*,
                                                             const v1::GetStacksRequest*) override;

  grpc::ServerUnaryReactor* GetJob(const Sender&, const v1::GetJobRequest&, v1::GetJobResponse*);
  grpc::ServerUnaryReactor* ListJobs(const Sender&, const v1::ListJobsRequest&,
                                     v1::ListJobsResponse*);
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(const Sender&,
                                                           const v1::WatchJobRequest&);
  grpc::ServerUnaryReactor* CancelJob(const Sender&, const v1::CancelJobRequest&,
                                      v1::CancelJobResponse*);
  grpc::ServerUnaryReactor* UpdateJob(const Sender&, const v1::UpdateJobRequest&,
                                      v1::UpdateJobResponse*);
  grpc::ServerWriteReactor<v1::ReadLogsResponse>* ReadLogs(const Sender&,
                                                           const v1::ReadLogsRequest&);
  grpc::ServerWriteReactor<v1::ReadPicturesResponse>* ReadPictures(const Sender&,
                                                                   const v1::ReadPicturesRequest&);
  grpc::ServerWriteReactor<v1::GetFlightRecordsResponse>* GetFlightRecords(
      const Sender&, const v1::GetFlightRecordsRequest&);
  grpc::ServerWriteReactor<v1::GetStacksResponse>* GetStacks(const Sender&,
                                                             const v1::GetStacksRequest&);

 private:
  Shell shell_;
  LogRelay& relay_;
};

}  // namespace meshrun::coordinator
