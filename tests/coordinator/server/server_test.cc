// The server over real gRPC, with a fake worker at the other end of the stream.
#include "coordinator/server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <thread>

#include "coordinator/event_loop/event_loop.h"
#include "coordinator/services/job_service.h"
#include "coordinator/services/log_relay.h"
#include "coordinator/services/session_service.h"
#include "coordinator/state_machine/state_machine.h"
#include "coordinator/state_store/memory_state_store.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "core/mutex.h"
#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/rpc/channel.h"
#include "core/rpc/status_conversion.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/coordinator/support/faulty_state_store.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

v1::JobSpec Spec(uint32_t nodes, uint32_t procs) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.add_command("./train");
  spec.set_min_nodes(nodes);
  spec.mutable_procs_per_node()->set_count(procs);
  return spec;
}

// Its ranks end well as soon as they start.
void EndWell(GrpcWorker& worker, const v1::OpenSessionResponse& message) {
  if (!message.has_start()) return;
  worker.Say([&](FakeWorker& fake) { return fake.ExitAll(message.fence().job_id(), 0); });
}

// Whether the coordinator answers.
class Heartbeats {
 public:
  GrpcWorker::Hook hook() {
    return [this](GrpcWorker&, const v1::OpenSessionResponse& message) {
      if (!message.has_heartbeat_reply()) return;
      MutexLock lock(mu_);
      ++answers_;
      changed_.NotifyAll();
    };
  }
  bool Answered(GrpcWorker& worker) {
    int before;
    {
      MutexLock lock(mu_);
      before = answers_;
    }
    worker.Say([](FakeWorker& fake) { return FakeWorker::Requests{fake.Heartbeat()}; });
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    MutexLock lock(mu_);
    while (answers_ == before) {
      if (!changed_.WaitUntil(mu_, deadline)) return false;
    }
    return true;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int answers_ MESHRUN_GUARDED_BY(mu_) = 0;
};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    ASSERT_TRUE(os::RemoveTree(directory_).ok());
  }

  // On the state directory of the test; leases are long, so that only what a test does happens.
  void Start(const std::atomic<bool>* broken = nullptr) {
    Server::Options options;
    options.listen = "unix:" + (sockets_ / "c.sock");
    auto store = SqliteStateStore::Open(directory_);
    ASSERT_TRUE(store.ok()) << store.status();
    options.store = *std::move(store);
    if (broken != nullptr) {
      options.store = std::make_unique<FaultyStateStore>(std::move(options.store), *broken);
    }
    options.lease = seconds(120);
    options.record_path = record_path_;
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *rpc::MakeChannel("test", server_->address(), {});
    jobs_ = v1::JobService::NewStub(channel_);
    cluster_ = v1::ClusterService::NewStub(channel_);
    store_ = v1::StoreService::NewStub(channel_);
  }

  static void SetDeadline(grpc::ClientContext& context, seconds timeout = seconds(30)) {
    rpc::SetTimeout(context, timeout);
  }
  grpc::Status Submit(const v1::JobSpec& spec, v1::Job* job) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    v1::SubmitJobResponse response;
    const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
    *job = response.job();
    return status;
  }
  v1::GetJobResponse Get(const std::string& id) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::GetJobResponse response;
    const grpc::Status status = jobs_->GetJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  v1::DescribeClusterResponse Describe() {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::DescribeClusterResponse response;
    const grpc::Status status = cluster_->DescribeCluster(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // Watches until the job is in the state; what it last was.
  v1::Job Await(const std::string& id, v1::JobState state) {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::WatchJobRequest request;
    request.set_job_id(id);
    const auto reader = jobs_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (reader->Read(&response) && response.job().state() != state) {
    }
    context.TryCancel();
    return response.job();
  }

  std::string directory_;
  meshrun::testing::TemporaryDirectory sockets_;
  std::string record_path_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::StoreService::Stub> store_;
};

TEST_F(ServerTest, WhatIsBeyondItsBoundsReachesNobody) {
  Start();
  v1::Job job;
  v1::JobSpec spec;
  spec.add_command("true");
  spec.set_hold(true);
  ASSERT_TRUE(Submit(spec, &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.job_id());
  cancel.set_reason(std::string(20 << 20, 'x'));
  v1::CancelJobResponse cancelled;
  grpc::ClientContext cancelling;
  SetDeadline(cancelling);
  const grpc::Status refused = jobs_->CancelJob(&cancelling, cancel, &cancelled);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "reason has 20971520 bytes, and at most 4096 are taken");
  v1::ReadLogsRequest read;
  read.set_job_id(job.job_id());
  for (int i = 0; i < 100'000; ++i) read.add_ranks(i);
  grpc::ClientContext reading;
  SetDeadline(reading);
  const grpc::Status ended = jobs_->ReadLogs(&reading, read)->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << ended.error_message();
  v1::WatchJobRequest watch;
  watch.set_job_id(std::string(1000, 'x'));
  grpc::ClientContext watching;
  SetDeadline(watching);
  EXPECT_EQ(jobs_->WatchJob(&watching, watch)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext opening;
  SetDeadline(opening);
  const auto session = v1::SessionService::NewStub(channel_)->OpenSession(&opening);
  v1::OpenSessionRequest hello;
  hello.mutable_hello()->set_name(std::string(1000, 'x'));
  session->Write(hello);
  EXPECT_EQ(session->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext asking;
  SetDeadline(asking);
  v1::GetJobRequest get;
  get.set_job_id(job.job_id());
  v1::GetJobResponse got;
  ASSERT_TRUE(jobs_->GetJob(&asking, get, &got).ok());
  EXPECT_EQ(got.job().state(), v1::JOB_STATE_QUEUED);
}

TEST_F(ServerTest, RunsAJobFromSubmitToSuccess) {
  Start();
  GrpcWorker worker(channel_, {.name = "node1"}, EndWell);
  ASSERT_TRUE(worker.Connect());
  v1::Job job;
  ASSERT_TRUE(Submit(Spec(1, 2), &job).ok());
  const v1::Job last = Await(job.job_id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(last.ranks(1).state(), v1::RANK_STATE_EXITED);
}

TEST_F(ServerTest, ARestartKeepsWhatWasListedAndAdoptsWhatRuns) {
  Start();
  auto worker = std::make_unique<GrpcWorker>(channel_, FakeWorker::Options{.name = "node1"});
  ASSERT_TRUE(worker->Connect());
  v1::Job running;
  ASSERT_TRUE(Submit(Spec(1, 1), &running).ok());
  Await(running.job_id(), v1::JOB_STATE_RUNNING);
  v1::Job queued;
  ASSERT_TRUE(Submit(Spec(7, 1), &queued).ok());
  const v1::GetJobResponse before = Get(running.job_id());
  const uint64_t term = server_->term();
  const std::string cluster_id = Describe().cluster_id();
  EXPECT_EQ(cluster_id.size(), 20u);

  server_.reset();
  EXPECT_EQ(worker->AwaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  Start();
  EXPECT_EQ(server_->term(), term + 1);
  EXPECT_EQ(Describe().cluster_id(), cluster_id);
  const v1::GetJobResponse after = Get(running.job_id());
  EXPECT_EQ(after.job().state(), v1::JOB_STATE_RUNNING);
  ASSERT_GE(after.events_size(), before.events_size());
  for (int i = 0; i < before.events_size(); ++i) {
    EXPECT_EQ(after.events(i).DebugString(), before.events(i).DebugString());
  }
  EXPECT_EQ(Get(queued.job_id()).job().state(), v1::JOB_STATE_QUEUED);

  // The same daemon under another stub: the port is another one.
  v1::OpenSessionRequest hello;
  worker->Say([&](FakeWorker& fake) {
    hello = fake.Hello();
    return FakeWorker::Requests{};
  });
  ASSERT_EQ(hello.hello().running_size(), 1);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto stub = v1::SessionService::NewStub(channel_);
  const auto stream = stub->OpenSession(&context);
  ASSERT_TRUE(stream->Write(hello));
  v1::OpenSessionResponse welcome;
  ASSERT_TRUE(stream->Read(&welcome));
  EXPECT_EQ(welcome.fence().term(), term + 1);
  v1::OpenSessionRequest exit;
  exit.mutable_fence()->set_term(term + 1);
  exit.mutable_fence()->set_incarnation(1);
  exit.mutable_fence()->set_job_id(running.job_id());
  exit.mutable_fence()->set_generation(1);
  exit.mutable_rank_exit();
  ASSERT_TRUE(stream->Write(exit));
  exit.mutable_generation_ended();
  ASSERT_TRUE(stream->Write(exit));
  EXPECT_EQ(Await(running.job_id(), v1::JOB_STATE_SUCCEEDED).generation(), 1u);
  context.TryCancel();
}

TEST_F(ServerTest, AFailedCommitMakesItReadOnlyUntilTheDiskIsBack) {
  std::atomic<bool> broken{false};
  Start(&broken);
  Heartbeats heartbeats;
  GrpcWorker worker(channel_, {.name = "node1"}, heartbeats.hook());
  ASSERT_TRUE(worker.Connect());
  v1::Job running;
  ASSERT_TRUE(Submit(Spec(1, 1), &running).ok());
  Await(running.job_id(), v1::JOB_STATE_RUNNING);
  v1::Job before;
  ASSERT_TRUE(Submit(Spec(5, 1), &before).ok());
  broken = true;
  v1::Job job;
  const grpc::Status refused = Submit(Spec(1, 1), &job);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(),
              HasSubstr("read-only: the state cannot be written: disk full"));
  EXPECT_THAT(Describe().read_only_reason(), HasSubstr("disk full"));
  EXPECT_EQ(Describe().jobs_total(), 2u);
  EXPECT_EQ(Get(before.job_id()).job().state(), v1::JOB_STATE_QUEUED);
  // Workers are heard, old and new, lest they stop their ranks.
  EXPECT_TRUE(heartbeats.Answered(worker));
  GrpcWorker late(channel_, {.name = "node2"}, heartbeats.hook());
  EXPECT_TRUE(late.Connect());
  EXPECT_TRUE(heartbeats.Answered(late));
  // What changes the state waits for their next Hello.
  worker.Say([&](FakeWorker& fake) { return fake.ExitAll(running.job_id(), 0); });
  EXPECT_TRUE(heartbeats.Answered(worker));
  EXPECT_EQ(Get(running.job_id()).job().state(), v1::JOB_STATE_RUNNING);
  broken = false;
  EXPECT_EQ(worker.AwaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(late.AwaitEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  // It tries once a second; each Describe is a round trip, and calls that it cuts off are tried
  // again.
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  while (std::chrono::steady_clock::now() < deadline && !Submit(Spec(1, 1), &job).ok()) {
  }
  EXPECT_EQ(Describe().read_only_reason(), "");
  EXPECT_EQ(Describe().jobs_total(), 3u);
  EXPECT_TRUE(worker.Connect());
  EXPECT_TRUE(late.Connect());
  EXPECT_EQ(Await(running.job_id(), v1::JOB_STATE_SUCCEEDED).state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ServerTest, ADamagedStateIsNamedAndNotUsed) {
  const auto start_with = [&](v1::StateTable table, const std::string& key) {
    v1::StateRow row;
    row.set_table(table);
    row.set_key(key);
    row.set_value("\xff\xff");
    Server::Options options;
    options.listen = "unix:" + (sockets_ / "c.sock");
    options.store = *SqliteStateStore::Open(directory_);
    EXPECT_TRUE(options.store->Commit(*options.store->BeginTerm(), {row}).ok());
    return Server::Start(std::move(options)).status();
  };
  const absl::Status job = start_with(v1::STATE_TABLE_JOBS, "train-1");
  EXPECT_TRUE(absl::IsDataLoss(job)) << job;
  EXPECT_THAT(std::string(job.message()), HasSubstr("STATE_TABLE_JOBS, key 'train-1'"));
  const absl::Status term = start_with(v1::STATE_TABLE_META, "term");
  EXPECT_TRUE(absl::IsDataLoss(term)) << term;
}

TEST_F(ServerTest, TheStoreWaitsAcrossCalls) {
  Start();
  GrpcWorker worker(channel_, {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  v1::Job job;
  ASSERT_TRUE(Submit(Spec(1, 2), &job).ok());
  v1::GetValuesRequest get;
  get.mutable_fence()->set_job_id(job.job_id());
  get.mutable_fence()->set_generation(1);
  get.add_keys("k");
  *get.mutable_timeout() = ToProtoDuration(seconds(20));
  v1::GetValuesResponse got;
  grpc::Status status;
  std::thread waiter([&] {
    grpc::ClientContext context;
    SetDeadline(context);
    status = store_->GetValues(&context, get, &got);
  });
  v1::SetValuesRequest set;
  *set.mutable_fence() = get.fence();
  (*set.mutable_values())["k"] = "v";
  v1::SetValuesResponse done;
  grpc::ClientContext context;
  EXPECT_TRUE(store_->SetValues(&context, set, &done).ok());
  waiter.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(got.values(0), "v");
}

TEST_F(ServerTest, ACallerThatGoesAwayWaitsNoLonger) {
  Start();
  GrpcWorker worker(channel_, {.name = "node1"});
  ASSERT_TRUE(worker.Connect());
  v1::Job job;
  ASSERT_TRUE(Submit(Spec(1, 2), &job).ok());
  v1::EnterBarrierRequest barrier;
  barrier.mutable_fence()->set_job_id(job.job_id());
  barrier.mutable_fence()->set_generation(1);
  v1::EnterBarrierResponse response;
  grpc::Status status;
  // The client's deadline passes before the server hears of it: rank 1 may still find rank 0, which
  // completes that barrier. In a new one it sooner or later does not.
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  for (int i = 0; status.ok() && std::chrono::steady_clock::now() < deadline; ++i) {
    barrier.set_name("b" + std::to_string(i));
    barrier.set_rank(0);
    *barrier.mutable_timeout() = ToProtoDuration(seconds(100));
    {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
      ASSERT_EQ(store_->EnterBarrier(&context, barrier, &response).error_code(),
                grpc::StatusCode::DEADLINE_EXCEEDED);
    }
    // Rank 0 has left the barrier: rank 1 waits for it in vain.
    barrier.set_rank(1);
    *barrier.mutable_timeout() = ToProtoDuration(std::chrono::milliseconds(200));
    grpc::ClientContext context;
    SetDeadline(context);
    status = store_->EnterBarrier(&context, barrier, &response);
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("ranks 0 are missing"));
}

TEST_F(ServerTest, ATakenSocketIsNamedAndStaysItsOwners) {
  Start();
  Server::Options options;
  options.listen = server_->address();
  const auto second = Server::Start(std::move(options));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
  EXPECT_EQ(Describe().term(), 1u);
}

TEST_F(ServerTest, ATakenPortIsNamed) {
  Server::Options options;
  options.listen = "127.0.0.1:0";
  options.security.insecure_loopback = true;
  const auto first = *Server::Start(std::move(options));
  options = {};
  options.listen = first->address();
  options.security.insecure_loopback = true;
  const auto second = Server::Start(std::move(options));
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first->address()));
}

TEST_F(ServerTest, RefusesPlaintextOverTcp) {
  for (const char* address : {"0.0.0.0:0", "127.0.0.1:0", "localhost:0", "[::1]:0"}) {
    Server::Options options;
    options.listen = address;
    EXPECT_TRUE(absl::IsInvalidArgument(Server::Start(std::move(options)).status())) << address;
  }
}

TEST_F(ServerTest, ItsSocketsDirectoryIsMadeForItsUserAlone) {
  Server::Options options;
  options.listen = "unix:" + (sockets_ / "made/s");
  {
    const auto server = *Server::Start(std::move(options));
    EXPECT_EQ(server->port(), 0);
    struct stat info;
    ASSERT_EQ(::stat((sockets_ / "made").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0700u);
  }
  ASSERT_EQ(::chmod((sockets_ / "made").c_str(), 0750), 0);
  options = {};
  options.listen = "unix:" + (sockets_ / "made/s");
  EXPECT_TRUE(absl::IsPermissionDenied(Server::Start(std::move(options)).status()));
}

TEST_F(ServerTest, AnswersHealthChecks) {
  Start();
  // HealthCheckRequest{} and HealthCheckResponse{status: SERVING}, as bytes.
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::ByteBuffer response;
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Slice empty("");
  const grpc::ByteBuffer request(&empty, 1);
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel_.get(), method, &context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  ASSERT_TRUE(response.DumpToSingleSlice(&slice).ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()), "\x08\x01");
}

TEST_F(ServerTest, ARecordingReplaysToTheSameState) {
  ASSERT_TRUE(os::MakeDirectories(directory_, 0700).ok());
  record_path_ = directory_ + "/events";
  Start();
  v1::Job job;
  {
    GrpcWorker worker(channel_, {.name = "node1"}, EndWell);
    ASSERT_TRUE(worker.Connect());
    ASSERT_TRUE(Submit(Spec(1, 3), &job).ok());
    Await(job.job_id(), v1::JOB_STATE_SUCCEEDED);
  }
  server_.reset();
  StateMachine machine;
  MemoryStateStore replayed;
  const int fd = ::open(record_path_.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);
  google::protobuf::io::FileInputStream input(fd);
  input.SetCloseOnDelete(true);
  v1::StateEvent event;
  bool clean_end = false;
  int events = 0;
  while (google::protobuf::util::ParseDelimitedFromZeroCopyStream(&event, &input, &clean_end)) {
    ASSERT_TRUE(replayed.Commit(0, machine.Step(event).rows).ok());
    ++events;
    event.Clear();  // reading merges into what is there
  }
  EXPECT_TRUE(clean_end);
  EXPECT_GT(events, 5);
  std::map<std::pair<int, std::string>, std::string> recorded;
  const std::vector<v1::StateRow> written = *(*SqliteStateStore::Open(directory_))->Load();
  for (const v1::StateRow& row : written) {
    if (row.table() != v1::STATE_TABLE_META) recorded[{row.table(), row.key()}] = row.value();
  }
  const auto rows = *replayed.Load();
  EXPECT_EQ(rows.size(), recorded.size());
  for (const v1::StateRow& row : rows) {
    EXPECT_EQ((recorded[{row.table(), row.key()}]), row.value()) << row.key();
  }
}

// A state of several parts.
TEST(EventLoopTest, ARowThatCannotBeReadIsToldWhereverItStands) {
  for (const char* const key : {"a-1", "m-1", "z-1"}) {
    MemoryStateStore store;
    std::vector<v1::StateRow> rows;
    for (const char* const id : {"a-1", "b-1", "m-1", "y-1", "z-1"}) {
      v1::JobRecord record;
      record.mutable_job()->set_job_id(id);
      record.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
      record.set_submit_sequence(rows.size() + 1);
      v1::StateRow& row = rows.emplace_back();
      row.set_table(v1::STATE_TABLE_JOBS);
      row.set_key(id);
      row.set_value(id == std::string_view(key) ? "\xff\xff" : record.SerializeAsString());
    }
    ASSERT_TRUE(store.Commit(0, rows).ok());
    Recipients recipients;
    for (const size_t part_bytes : {size_t{1}, size_t{1} << 20}) {
      EventLoop loop({.clock = Clock::Real(),
                      .store = store,
                      .recipients = recipients,
                      .part_bytes = part_bytes});
      const absl::Status started = loop.Start();
      EXPECT_TRUE(absl::IsDataLoss(started)) << key;
      EXPECT_THAT(std::string(started.message()), HasSubstr(fmt::format("key '{}'", key)));
    }
  }
}

TEST(EventLoopTest, AFullQueueRefusesCallsAndSaysSo) {
  MemoryStateStore store;
  Recipients recipients;
  EventLoop loop(
      {.clock = Clock::Real(), .store = store, .recipients = recipients, .queue_limit = 2});
  v1::StateEvent tick;
  tick.mutable_tick();
  EXPECT_TRUE(loop.Post(tick).ok());
  EXPECT_TRUE(loop.Post(tick).ok());
  const absl::Status status = loop.Post(tick);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 events waiting"));
}

TEST(EventLoopTest, AFullQueueLetsASessionWaitAndLosesNothingOfIt) {
  MemoryStateStore store;
  Recipients recipients;
  EventLoop loop(
      {.clock = Clock::Real(), .store = store, .recipients = recipients, .queue_limit = 2});
  std::atomic<int> resumed{0};
  const auto post = [&] {
    v1::StateEvent event;
    event.mutable_session_message()->set_session_id(7);
    return loop.PostMessage(event, [&] { ++resumed; });
  };
  EXPECT_TRUE(*post());
  EXPECT_TRUE(*post());
  EXPECT_FALSE(*post()) << "taken, and the last for now";
  EXPECT_EQ(resumed, 0);
  ASSERT_TRUE(loop.Start().ok());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (resumed == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(*post());
  loop.Stop();
  EXPECT_TRUE(absl::IsUnavailable(post().status()));
  EXPECT_EQ(resumed, 1);
}

TEST(EventLoopTest, AQueueHasALimitInBytesToo) {
  MemoryStateStore store;
  Recipients recipients;
  EventLoop loop({.clock = Clock::Real(),
                  .store = store,
                  .recipients = recipients,
                  .queue_bytes_limit = 1000});
  v1::StateEvent event;
  event.mutable_append_value()->set_value(std::string(600, 'x'));
  EXPECT_TRUE(loop.Post(event).ok());
  const absl::Status status = loop.Post(event);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no more than 1000 B"));
}

// --- logs ---

// What a worker would do with OpenLog: uploads `bytes`, 64 KiB a message.
class LogHolder {
 public:
  LogHolder(std::shared_ptr<grpc::Channel> channel, std::string content)
      : stub_(v1::SessionService::NewStub(channel)), content_(std::move(content)) {}
  ~LogHolder() {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

  GrpcWorker::Hook hook() {
    return [this](GrpcWorker&, const v1::OpenSessionResponse& message) {
      if (!message.has_open_log()) return;
      MutexLock lock(mu_);
      threads_.emplace_back([this, open = message.open_log()] { Upload(open); });
    };
  }
  std::atomic<uint64_t> written{0};
  std::atomic<int> last_code{-1};
  // Breaks the upload off in the middle.
  std::atomic<bool> break_off{false};
  // Says nothing more after the last byte, not even that it was the last.
  std::atomic<bool> fall_silent{false};

 private:
  void Upload(const v1::OpenLog& open) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, seconds(60));
    v1::UploadLogResponse response;
    const auto writer = stub_->UploadLog(&context, &response);
    const std::string content = std::to_string(open.rank()) + content_;
    for (uint64_t offset = open.offset(); offset < content.size();) {
      v1::UploadLogRequest chunk;
      if (offset == open.offset()) chunk.set_stream_id(open.stream_id());
      chunk.set_offset(offset);
      chunk.set_data(content.substr(offset, 64 << 10));
      offset += chunk.data().size();
      if (!writer->Write(chunk)) break;
      written += chunk.data().size();
      if (break_off && offset > content.size() / 2) context.TryCancel();
    }
    if (!fall_silent) writer->WritesDone();
    last_code = writer->Finish().error_code();
  }

  const std::unique_ptr<v1::SessionService::Stub> stub_;
  const std::string content_;
  Mutex mu_;
  std::vector<std::thread> threads_ MESHRUN_GUARDED_BY(mu_);
};

class LogRelayTest : public ServerTest {
 protected:
  std::string Run(GrpcWorker& worker, uint32_t procs) {
    EXPECT_TRUE(worker.Connect());
    v1::Job job;
    EXPECT_TRUE(Submit(Spec(1, procs), &job).ok());
    Await(job.job_id(), v1::JOB_STATE_SUCCEEDED);
    return job.job_id();
  }
  static v1::ReadLogsRequest Stdout(const std::string& id) {
    v1::ReadLogsRequest request;
    request.set_job_id(id);
    request.add_streams(v1::LOG_STREAM_STDOUT);
    return request;
  }
  static GrpcWorker::Hook Both(LogHolder& holder) {
    return [hook = holder.hook()](GrpcWorker& worker, const v1::OpenSessionResponse& message) {
      EndWell(worker, message);
      hook(worker, message);
    };
  }
};

TEST_F(LogRelayTest, DeliversEachFileInOrderAlsoOfAnEndedJob) {
  Start();
  const std::string content(3 << 20, 'x');
  LogHolder holder(channel_, content);
  GrpcWorker worker(channel_, {.name = "node1"}, Both(holder));
  const std::string id = Run(worker, 2);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = jobs_->ReadLogs(&context, Stdout(id));
  std::map<int, std::string> got;
  v1::ReadLogsResponse response;
  while (reader->Read(&response)) {
    ASSERT_EQ(response.offset(), got[response.rank()].size());
    got[response.rank()] += response.data();
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(got[0], "0" + content);
  EXPECT_EQ(got[1], "1" + content);
}

// The worker never sends the file, so nothing but the metadata comes.
TEST_F(LogRelayTest, AReaderKnowsAtOnceThatItWasReached) {
  Start();
  GrpcWorker worker(channel_, {.name = "node1"}, EndWell);
  const std::string id = Run(worker, 1);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = jobs_->ReadLogs(&context, Stdout(id));
  reader->WaitForInitialMetadata();
  EXPECT_EQ(context.GetServerInitialMetadata().count(rpc::kReachedKey), 1u);
  context.TryCancel();
  reader->Finish();
}

TEST_F(LogRelayTest, AReaderThatDoesNotReadHoldsTheUploadBack) {
  Start();
  const std::string content(64 << 20, 'x');
  auto holder = std::make_unique<LogHolder>(channel_, content);
  GrpcWorker worker(channel_, {.name = "node1"}, Both(*holder));
  const std::string id = Run(worker, 1);
  // The reader has its own channel: the flow control of one connection would hold back the worker,
  // too.
  grpc::ChannelArguments arguments;
  arguments.SetInt("reader", 1);
  const auto own =
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  const auto stub = v1::JobService::NewStub(own);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub->ReadLogs(&context, Stdout(id));
  v1::ReadLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // Describe is a round trip: while the amount still grows, somebody is still buffering.
  uint64_t before = 0;
  int still = 0;
  while (still < 200) {
    Describe();
    still = holder->written == before ? still + 1 : 0;
    before = holder->written;
  }
  EXPECT_LT(holder->written, content.size() / 2);
  context.TryCancel();
  reader->Finish();
  holder.reset();
}

TEST_F(LogRelayTest, AReaderThatLeavesEndsTheUpload) {
  Start();
  auto holder = std::make_unique<LogHolder>(channel_, std::string(64 << 20, 'x'));
  GrpcWorker worker(channel_, {.name = "node1"}, Both(*holder));
  const std::string id = Run(worker, 1);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = jobs_->ReadLogs(&context, Stdout(id));
  v1::ReadLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  reader->Finish();
  LogHolder& upload = *holder;
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  while (upload.last_code < 0 && std::chrono::steady_clock::now() < deadline) Describe();
  EXPECT_TRUE(upload.last_code == grpc::StatusCode::CANCELLED ||
              upload.last_code == grpc::StatusCode::NOT_FOUND)
      << upload.last_code;
}

TEST_F(LogRelayTest, AnUploadThatBreaksOffIsUnavailable) {
  Start();
  LogHolder holder(channel_, std::string(1 << 20, 'x'));
  holder.break_off = true;
  GrpcWorker worker(channel_, {.name = "node1"}, Both(holder));
  const std::string id = Run(worker, 1);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = jobs_->ReadLogs(&context, Stdout(id));
  v1::ReadLogsResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(LogRelayTest, AnUploadOfALostNodeIsUnavailableAlthoughItNeverEnds) {
  Start();
  LogHolder holder(channel_, "y");
  holder.fall_silent = true;
  GrpcWorker worker(channel_, {.name = "node1"}, Both(holder));
  const std::string id = Run(worker, 1);
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = jobs_->ReadLogs(&context, Stdout(id));
  v1::ReadLogsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  worker.Say([](FakeWorker& fake) { return FakeWorker::Requests{fake.Goodbye()}; });
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("node1, which holds the file, is lost"));
}

TEST(LogReaderTest, IsGoneOnceItsCallHasEnded) {
  MemoryStateStore store;
  Recipients recipients;
  EventLoop loop({.clock = Clock::Real(), .store = store, .recipients = recipients});
  LogRelay relay({loop, recipients});
  SessionService sessions({loop, recipients}, relay);
  JobService job_service({loop, recipients}, relay);
  ASSERT_TRUE(loop.Start().ok());
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&sessions);
  builder.RegisterService(&job_service);
  const auto server = builder.BuildAndStart();
  const auto channel =
      *rpc::MakeChannel("test", "127.0.0.1:" + std::to_string(port), {.insecure_loopback = true});
  const auto jobs = v1::JobService::NewStub(channel);
  {
    LogHolder holder(channel, "y");
    GrpcWorker worker(channel, {.name = "node1"}, holder.hook());
    ASSERT_TRUE(worker.Connect());
    v1::SubmitJobRequest submit;
    *submit.mutable_spec() = Spec(1, 1);
    v1::SubmitJobResponse submitted;
    grpc::ClientContext context;
    ASSERT_TRUE(jobs->SubmitJob(&context, submit, &submitted).ok());
    v1::ReadLogsRequest request;
    request.set_job_id(submitted.job().job_id());
    request.add_streams(v1::LOG_STREAM_STDOUT);
    grpc::ClientContext reading;
    const auto reader = jobs->ReadLogs(&reading, request);
    v1::ReadLogsResponse response;
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_TRUE(reader->Finish().ok());
  }
  loop.Stop();
  relay.Stop();
  server->Shutdown(std::chrono::system_clock::now() + seconds(10));
  server->Wait();
  // No call is left, and none keeps its reader.
  EXPECT_EQ(relay.readers_alive(), 0u);
}

// As an alarm, or a watch of a certificate, may be, while the server ends.
TEST(LogReaderTest, IsAwaitedWhileAThreadIsAtItWhoseCallHasEnded) {
  MemoryStateStore store;
  Recipients recipients;
  // Holds up the thread that ends the reader, once the call has ended.
  std::promise<void> at_reader, release;
  std::atomic<std::thread::id> ender;
  EventLoop loop({.clock = Clock::Real(), .store = store, .recipients = recipients, .leads = [&] {
                    if (std::this_thread::get_id() != ender.load()) return true;
                    at_reader.set_value();
                    release.get_future().wait();
                    ender = std::thread::id();
                    return true;
                  }});
  auto relay = std::make_unique<LogRelay>(Shell{loop, recipients});
  SessionService sessions({loop, recipients}, *relay);
  JobService job_service({loop, recipients}, *relay);
  ASSERT_TRUE(loop.Start().ok());
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&sessions);
  builder.RegisterService(&job_service);
  const auto server = builder.BuildAndStart();
  const auto channel =
      *rpc::MakeChannel("test", "127.0.0.1:" + std::to_string(port), {.insecure_loopback = true});
  const auto jobs = v1::JobService::NewStub(channel);
  std::atomic<bool> is_open{false};
  // Its upload never begins.
  GrpcWorker worker(channel, {.name = "node1"},
                    [&](GrpcWorker&, const v1::OpenSessionResponse& message) {
                      if (message.has_open_log()) is_open = true;
                    });
  ASSERT_TRUE(worker.Connect());
  v1::SubmitJobRequest submit;
  *submit.mutable_spec() = Spec(1, 1);
  v1::SubmitJobResponse submitted;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(jobs->SubmitJob(&context, submit, &submitted).ok());
  }
  v1::ReadLogsRequest request;
  request.set_job_id(submitted.job().job_id());
  request.add_streams(v1::LOG_STREAM_STDOUT);
  grpc::ClientContext reading;
  const auto reader = jobs->ReadLogs(&reading, request);
  ASSERT_TRUE(meshrun::testing::Eventually([&] { return is_open.load(); }));
  std::thread stop([&] {
    ender = std::this_thread::get_id();
    relay->Stop();
  });
  EXPECT_EQ(at_reader.get_future().wait_for(seconds(60)), std::future_status::ready);
  v1::ReadLogsResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  loop.Stop();
  server->Shutdown(std::chrono::system_clock::now() + seconds(10));
  server->Wait();
  EXPECT_FALSE(relay->AwaitReaders(std::chrono::milliseconds(50)));
  auto gone = std::async(std::launch::async, [&] { return relay->AwaitReaders(seconds(60)); });
  release.set_value();
  EXPECT_TRUE(gone.get());
  EXPECT_EQ(relay->readers_alive(), 0u);
  stop.join();
}

TEST_F(LogRelayTest, AFileOfAWorkerThatIsAwayIsNamed) {
  Start();
  LogHolder holder(channel_, "y");
  auto worker =
      std::make_unique<GrpcWorker>(channel_, FakeWorker::Options{.name = "node1"}, Both(holder));
  const std::string id = Run(*worker, 1);
  worker->Break();
  // The break reaches the coordinator in its own time.
  grpc::Status status;
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  do {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto reader = jobs_->ReadLogs(&context, Stdout(id));
    v1::ReadLogsResponse response;
    while (reader->Read(&response)) {
    }
    status = reader->Finish();
  } while (status.error_message().find("node1, which is not connected") == std::string::npos &&
           std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("node1, which is not connected"));
}

}  // namespace
}  // namespace meshrun::coordinator::testing
