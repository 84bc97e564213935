#include "coordinator/standby_server.h"

#include <grpcpp/server.h>
#include <grpcpp/support/server_interceptor.h>

#include <string_view>
#include <utility>
#include <vector>

#include "core/rpc/loop_health.h"
#include "core/rpc/status_conversion.h"
#include "core/status.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "meshrun/v1/session.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"

namespace meshrun::coordinator {
namespace {

namespace experimental = grpc::experimental;

// Replaces the UNIMPLEMENTED of a service without methods.
class AnswerInterceptor : public experimental::Interceptor {
 public:
  explicit AnswerInterceptor(const StandbyServer::Answer& answer) : answer_(answer) {}

  void Intercept(experimental::InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      batch->ModifySendStatus(rpc::ToGrpc(answer_(), v1::ERROR_ORIGIN_COORDINATOR));
    }
    batch->Proceed();
  }

 private:
  const StandbyServer::Answer& answer_;
};

class AnswerInterceptorFactory : public experimental::ServerInterceptorFactoryInterface {
 public:
  explicit AnswerInterceptorFactory(StandbyServer::Answer answer) : answer_(std::move(answer)) {}

  experimental::Interceptor* CreateServerInterceptor(experimental::ServerRpcInfo* call) override {
    const std::string_view method = call->method();
    return method.starts_with("/meshrun.v1.") ? new AnswerInterceptor(answer_) : nullptr;
  }

 private:
  const StandbyServer::Answer answer_;
};

class RunningStandby : public StandbyServer {
 public:
  explicit RunningStandby(Door& door) : door_(door) {}
  ~RunningStandby() override { Stop(); }

  absl::Status Begin(Answer answer) {
    grpc::ServerBuilder builder;
    MESHRUN_RETURN_IF_ERROR(door_.Serve(builder, /*reads=*/false, /*on_refused=*/nullptr));
    std::vector<std::unique_ptr<experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(std::make_unique<AnswerInterceptorFactory>(std::move(answer)));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    builder.RegisterService(&sessions_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&store_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr) {
      health_.WatchStandby(
          *server_,
          {v1::SessionService::service_full_name(), v1::JobService::service_full_name(),
           v1::ClusterService::service_full_name(), v1::StoreService::service_full_name()});
    }
    return door_.Begin(server_.get());
  }

  void Stop() override {
    health_.Stop();
    if (server_ == nullptr) return;
    door_.End();
    // No call takes longer than its answer.
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    server_->Wait();
    server_.reset();
  }

 private:
  Door& door_;
  rpc::LoopHealth health_{rpc::LoopHealth::Options()};
  // Methods that nobody overrides end with UNIMPLEMENTED.
  v1::SessionService::CallbackService sessions_;
  v1::JobService::CallbackService jobs_;
  v1::ClusterService::CallbackService cluster_;
  v1::StoreService::CallbackService store_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(Door& door, Answer answer) {
  auto server = std::make_unique<RunningStandby>(door);
  MESHRUN_RETURN_IF_ERROR(server->Begin(std::move(answer)));
  return server;
}

}  // namespace meshrun::coordinator
