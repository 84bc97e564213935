#include "tests/bench/control/rows.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>

#include "core/mutex.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/store_service.grpc.pb.h"
#include "tests/bench/rendezvous/cluster.h"

namespace meshrun::bench {
namespace {

using coordinator::testing::FakeWorker;
using Clock = std::chrono::steady_clock;

constexpr size_t kCallers = 256;
constexpr size_t kWatchers = 1'000;
constexpr std::chrono::seconds kPatience(120);

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::Status Failed(const std::string& what, const grpc::Status& status) {
  return absl::InternalError(what + ": " + status.error_message());
}

// Counts answers, and waits for the last.
class Answers {
 public:
  void Add(const grpc::Status& status) {
    MutexLock lock(mu_);
    if (!status.ok() && error_.empty()) error_ = status.error_message();
    ++count_;
    changed_.NotifyAll();
  }
  absl::Status Await(size_t count) {
    const auto deadline = Clock::now() + kPatience;
    MutexLock lock(mu_);
    while (count_ < count) {
      if (!changed_.WaitUntil(mu_, deadline)) {
        return absl::DeadlineExceededError(fmt::format("{} of {} answers came", count_, count));
      }
    }
    return error_.empty() ? absl::OkStatus() : absl::InternalError(error_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t count_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::string error_ MESHRUN_GUARDED_BY(mu_);
};

// One call of many under way at once; lives until its answer.
template <typename Request, typename Response>
struct Call {
  grpc::ClientContext context;
  Request request;
  Response response;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  return *rpc::MakeChannel("bench", address, {});
}

// Submits `count` jobs that no host can take, `kCallers` at a time.
absl::Status Submit(v1::JobService::Stub& jobs, size_t count, std::string* last) {
  Mutex mu;
  CondVar changed;
  size_t under_way = 0;
  std::string error;
  for (size_t i = 0; i < count; ++i) {
    auto call = std::make_shared<Call<v1::SubmitJobRequest, v1::SubmitJobResponse>>();
    rpc::SetTimeout(call->context, kPatience);
    *call->request.mutable_spec() = BenchSpec(1, 1);
    call->request.set_request_id(fmt::format("{}-{}", reinterpret_cast<uintptr_t>(&mu), i));
    {
      MutexLock lock(mu);
      while (under_way >= kCallers) changed.Wait(mu);
      ++under_way;
    }
    auto& request = call->request;
    auto& context = call->context;
    auto& response = call->response;
    jobs.async()->SubmitJob(&context, &request, &response,
                            [&, call = std::move(call)](const grpc::Status& status) {
                              MutexLock lock(mu);
                              if (!status.ok()) error = status.error_message();
                              *last = call->response.job().job_id();
                              --under_way;
                              changed.NotifyAll();
                            });
  }
  MutexLock lock(mu);
  while (under_way > 0) changed.Wait(mu);
  return error.empty() ? absl::OkStatus() : absl::InternalError("SubmitJob: " + error);
}

absl::StatusOr<std::string> SubmitOne(v1::JobService::Stub& jobs, const v1::JobSpec& spec) {
  grpc::ClientContext context;
  rpc::SetTimeout(context, kPatience);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  v1::SubmitJobResponse response;
  const grpc::Status status = jobs.SubmitJob(&context, request, &response);
  if (!status.ok()) return Failed("SubmitJob", status);
  return response.job().job_id();
}

double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Rows MeasureSubmits(const std::string& program, size_t queued) {
  Coordinator coordinator;
  if (absl::Status status = coordinator.Start(program); !status.ok()) return status;
  const auto jobs = v1::JobService::NewStub(Connect(coordinator.address()));
  std::string last;
  if (absl::Status status = Submit(*jobs, 200, &last); !status.ok()) return status;
  const size_t before = coordinator.resident();
  if (absl::Status status = Submit(*jobs, queued, &last); !status.ok()) return status;
  const size_t with_jobs = coordinator.resident();
  const size_t measured = 4 * kCallers;
  const auto start = Clock::now();
  if (absl::Status status = Submit(*jobs, measured, &last); !status.ok()) return status;
  const double rate = static_cast<double>(measured) / Since(start);

  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobResponse>>> watches;
  const size_t without = coordinator.resident();
  for (size_t i = 0; i < kWatchers; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    v1::WatchJobRequest request;
    request.set_job_id(last);
    watches.push_back(jobs->WatchJob(contexts.back().get(), request));
    v1::WatchJobResponse first;
    if (!watches.back()->Read(&first)) return absl::InternalError("WatchJob ended");
  }
  const size_t with_watchers = coordinator.resident();
  for (auto& context : contexts) context->TryCancel();
  for (auto& watch : watches) (void)watch->Finish();
  const auto each = [](size_t many, size_t few, size_t count) {
    return many < few ? 0.0 : static_cast<double>(many - few) / static_cast<double>(count);
  };
  return std::vector<Row>{{.name = fmt::format("durable submits with {} queued", queued),
                           .measured = rate,
                           .target = 2000,
                           .unit = "/s",
                           .more = true,
                           .note = fmt::format("{} calls under way at once", kCallers)},
                          {.name = "memory of a queued job",
                           .measured = each(with_jobs, before, queued) / 1024,
                           .unit = "KiB"},
                          {.name = "memory of a watcher",
                           .measured = each(with_watchers, without, kWatchers) / 1024,
                           .unit = "KiB",
                           .note = "its gRPC call is the most of it"}};
}

Rows MeasureGenerationChange(const std::string& program, size_t hosts, int rounds) {
  constexpr uint32_t kRanks = 8;
  Coordinator coordinator;
  if (absl::Status status = coordinator.Start(program); !status.ok()) return status;
  Fleet fleet(hosts, kRanks);
  if (absl::Status status = fleet.Connect(coordinator.address()); !status.ok()) return status;
  const auto jobs = v1::JobService::NewStub(Connect(coordinator.address()));
  v1::JobSpec spec = BenchSpec(hosts, kRanks);
  spec.set_max_restarts(static_cast<uint32_t>(rounds) + 1);
  const auto id = SubmitOne(*jobs, spec);
  if (!id.ok()) return id.status();
  Clock::time_point last;
  if (!fleet.AwaitStarts(hosts, &last)) return absl::DeadlineExceededError("no first generation");
  std::vector<double> times;
  for (int round = 1; round <= rounds; ++round) {
    // A job that gets nowhere waits longer and longer between its generations.
    fleet.worker(hosts / 2).Say([&](FakeWorker& fake) {
      v1::OpenSessionRequest report = fake.Heartbeat();
      report.mutable_fence()->set_job_id(*id);
      report.mutable_fence()->set_generation(static_cast<uint64_t>(round));
      for (const int rank : fake.Running(*id)) {
        (*report.mutable_progress_report()->mutable_progress())[rank].set_step(round);
      }
      return FakeWorker::Requests{report};
    });
    const auto start = Clock::now();
    fleet.worker(hosts / 2).Say([&](FakeWorker& fake) {
      const auto running = fake.Running(*id);
      return running.empty() ? FakeWorker::Requests{}
                             : fake.Exit(*id, *running.begin(), 0, SIGKILL);
    });
    if (!fleet.AwaitStarts(hosts * (round + 1), &last)) {
      return absl::DeadlineExceededError(fmt::format("no generation {}", round + 1));
    }
    times.push_back(std::chrono::duration<double>(last - start).count());
  }
  const double worst = *std::max_element(times.begin(), times.end());
  return std::vector<Row>{{.name = fmt::format("generation change at {} hosts", hosts),
                           .measured = Median(times),
                           .target = 3,
                           .unit = "s",
                           .note = fmt::format("slowest of {}: {:.3f} s", rounds, worst)}};
}

Rows MeasureBarrier(const std::string& program, size_t hosts, size_t ranks, int rounds) {
  Coordinator coordinator;
  if (absl::Status status = coordinator.Start(program); !status.ok()) return status;
  Fleet fleet(hosts, static_cast<uint32_t>(ranks));
  if (absl::Status status = fleet.Connect(coordinator.address()); !status.ok()) return status;
  const auto jobs = v1::JobService::NewStub(Connect(coordinator.address()));
  const auto id = SubmitOne(*jobs, BenchSpec(hosts, static_cast<uint32_t>(ranks)));
  if (!id.ok()) return id.status();
  Clock::time_point last;
  if (!fleet.AwaitStarts(hosts, &last)) return absl::DeadlineExceededError("no generation");
  // As daemons do: one channel a host, and one call for all its ranks.
  std::vector<std::unique_ptr<v1::StoreService::Stub>> stubs;
  for (size_t host = 0; host < hosts; ++host) {
    stubs.push_back(v1::StoreService::NewStub(Connect(coordinator.address())));
  }
  std::vector<double> released;
  for (int round = 0; round < rounds; ++round) {
    Answers answers;
    Clock::time_point entered;
    for (size_t host = 0; host < hosts; ++host) {
      auto call = std::make_shared<Call<v1::EnterBarrierRequest, v1::EnterBarrierResponse>>();
      rpc::SetTimeout(call->context, kPatience);
      call->request.mutable_fence()->set_job_id(*id);
      call->request.mutable_fence()->set_generation(1);
      call->request.set_name("world/bench");
      call->request.mutable_timeout()->set_seconds(kPatience.count());
      for (size_t local = 0; local < ranks; ++local) {
        const int rank = static_cast<int>(host * ranks + local);
        // As long as an agent's.
        std::string request_id = fmt::format("{:020}-{}", rank, round);
        if (local == 0) {
          call->request.set_rank(rank);
          call->request.set_request_id(std::move(request_id));
        } else {
          v1::BarrierEntry& other = *call->request.add_others();
          other.set_rank(rank);
          other.set_request_id(std::move(request_id));
        }
      }
      auto& request = call->request;
      auto& context = call->context;
      auto& response = call->response;
      // The last host comes when all others wait: from there the barrier's own time runs.
      if (host + 1 == hosts) coordinator.AwaitIdle();
      entered = Clock::now();
      stubs[host]->async()->EnterBarrier(
          &context, &request, &response,
          [&answers, call = std::move(call)](const grpc::Status& status) { answers.Add(status); });
    }
    if (absl::Status status = answers.Await(hosts); !status.ok()) return status;
    released.push_back(Since(entered));
  }
  fleet.EndAll(*id);
  return std::vector<Row>{
      {.name = fmt::format("barrier over {} ranks", hosts * ranks),
       .measured = Median(released),
       .target = 0.3,
       .unit = "s",
       .note = fmt::format("from the last host's call to the last answer, durable; {} calls of {} "
                           "ranks, as daemons make them",
                           hosts, ranks)}};
}

Rows MeasureTeardown(const std::string& program, size_t hosts, size_t ranks) {
  Coordinator coordinator;
  if (absl::Status status = coordinator.Start(program); !status.ok()) return status;
  const size_t before = coordinator.resident();
  Fleet fleet(hosts, static_cast<uint32_t>(ranks));
  if (absl::Status status = fleet.Connect(coordinator.address()); !status.ok()) return status;
  const double worker = static_cast<double>(coordinator.resident() - before) / hosts;
  const auto jobs = v1::JobService::NewStub(Connect(coordinator.address()));
  const auto id = SubmitOne(*jobs, BenchSpec(hosts, static_cast<uint32_t>(ranks)));
  if (!id.ok()) return id.status();
  Clock::time_point last;
  if (!fleet.AwaitStarts(hosts, &last)) return absl::DeadlineExceededError("no generation");
  const double running = static_cast<double>(coordinator.resident()) / (1 << 20);
  grpc::ClientContext context;
  rpc::SetTimeout(context, kPatience);
  v1::CancelJobRequest request;
  request.set_job_id(*id);
  v1::CancelJobResponse response;
  const auto start = Clock::now();
  const grpc::Status status = jobs->CancelJob(&context, request, &response);
  if (!status.ok()) return Failed("CancelJob", status);
  if (absl::Status status = AwaitEnd(*jobs, *id, v1::JOB_STATE_CANCELLED); !status.ok()) {
    return status;
  }
  const double took = Since(start);
  return std::vector<Row>{
      {.name = fmt::format("teardown of {} ranks on {} hosts", hosts * ranks, hosts),
       .measured = took,
       .unit = "s",
       .note = "from the cancel to CANCELLED; simulated ranks end at once"},
      {.name = "memory of a connected worker",
       .measured = worker / 1024,
       .unit = "KiB",
       .note = "its session's stream is the most of it"},
      {.name = fmt::format("memory of the coordinator, {} ranks running", hosts * ranks),
       .measured = running,
       .target = 1024,
       .unit = "MiB"}};
}

}  // namespace meshrun::bench
