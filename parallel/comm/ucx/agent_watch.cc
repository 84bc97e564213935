#include "parallel/comm/ucx/agent_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/mutex.h"
#include "parallel/base/process.h"

namespace meshrun::ucx {
namespace {

// A daemon that is being started again is asked once more.
constexpr agent::Milliseconds kCallWithin{500};
constexpr std::chrono::milliseconds kAgain{500};

// Where the agent's news go, until the watch stops. Outlives the watch: the agent keeps it.
class Outlet {
 public:
  // News that `begin` brings come after it.
  void open(PeerWatch::Listener listener, const std::function<void()>& begin) {
    const MutexLock lock(mu_);
    listener_ = std::move(listener);
    begin();
  }
  // Waits for a call under way.
  void close() {
    const MutexLock lock(mu_);
    listener_ = nullptr;
  }
  void tell(const PeerNews& news) {
    const MutexLock lock(mu_);
    if (listener_) listener_(news);
  }

 private:
  Mutex mu_;
  PeerWatch::Listener listener_ MESHRUN_GUARDED_BY(mu_);
};

class AgentWatch final : public PeerWatch {
 public:
  explicit AgentWatch(std::shared_ptr<agent::Agent> agent) : agent_(std::move(agent)) {}
  ~AgentWatch() override {
    stop();
    // A thread that is the parent's cannot be joined here.
    if (is_forked()) new std::thread(std::move(thread_));
  }

  void start(Listener listener) override {
    const int self = agent_->assignment().rank;
    agent::GenerationListener news;
    news.on_lost = [outlet = outlet_, self](int rank, const std::string& reason) {
      if (rank != self) outlet->tell(PeerLost{rank, reason});
    };
    news.on_left = [outlet = outlet_, self](int rank) {
      if (rank != self) outlet->tell(PeerLeft{rank});
    };
    news.on_stopping = [outlet = outlet_](const std::string& reason) {
      outlet->tell(Stopping{reason});
    };
    const uint64_t own = agent_->assignment().generation;
    news.on_superseded = [outlet = outlet_, own](uint64_t generation) {
      outlet->tell(Superseded{fmt::format(
          "generation {} of this job is over: its ranks go on in generation {}", own, generation)});
    };
    news.flight_record = [outlet = outlet_](int most_operations) {
      std::string record;
      outlet->tell(RecordWanted{most_operations, [&](const std::string& json) { record = json; }});
      return record;
    };
    news.on_verdict = [outlet = outlet_](const WaitVerdict& verdict) { outlet->tell(verdict); };
    thread_ = std::thread([this] { run(); });
    agent_->SetCollectives(false, Clock::Real().SteadyNow());
    outlet_->open(std::move(listener), [&] { agent_->Watch(std::move(news)); });
  }
  void report(const WaitReport& report) override { set_blocked(report); }
  bool sees_ends() const override { return true; }
  void withdraw(int) override { set_blocked(std::nullopt); }
  void under_way(bool any, SteadyNanos at, int64_t sent_bytes) override {
    if (std::exchange(any_, any) != any) agent_->SetCollectives(any, at);
    const int64_t more = sent_bytes - std::exchange(sent_bytes_, sent_bytes);
    if (more > 0) agent_->AddSent(static_cast<uint64_t>(more));
  }

  void stop() override {
    if (is_forked()) return;
    outlet_->close();
    {
      const MutexLock lock(mu_);
      is_stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  bool is_forked() const { return fork_count() != forks_; }

  void set_blocked(std::optional<WaitReport> report) {
    const MutexLock lock(mu_);
    blocked_ = std::move(report);
    is_told_ = false;
    changed_.NotifyAll();
  }

  void run() {
    mu_.Lock();
    bool has_reported = false;
    while (true) {
      while (is_told_ && !is_stopping_) changed_.Wait(mu_);
      if (is_stopping_) break;
      is_told_ = true;
      const std::optional<WaitReport> report = blocked_;
      mu_.Unlock();
      const absl::Status status = !report && !has_reported ? absl::OkStatus() : tell(report);
      mu_.Lock();
      if (status.ok()) {
        has_reported = report.has_value();
        continue;
      }
      // The generation is over, or the agent is.
      if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) continue;
      is_told_ = false;
      const auto again = std::chrono::steady_clock::now() + kAgain;
      while (!is_stopping_ && changed_.WaitUntil(mu_, again)) continue;
    }
    const bool withdraws = has_reported;
    mu_.Unlock();
    if (withdraws) static_cast<void>(tell(std::nullopt));
  }

  absl::Status tell(const std::optional<WaitReport>& report) {
    if (report) return agent_->ReportWait(*report, kCallWithin);
    return agent_->WithdrawWait(kCallWithin);
  }

  const int forks_ = fork_count();
  const std::shared_ptr<agent::Agent> agent_;
  const std::shared_ptr<Outlet> outlet_ = std::make_shared<Outlet>();
  std::thread thread_;
  // The engine's lock guards both.
  bool any_ = false;
  int64_t sent_bytes_ = 0;
  Mutex mu_;
  CondVar changed_;
  std::optional<WaitReport> blocked_ MESHRUN_GUARDED_BY(mu_);
  bool is_told_ MESHRUN_GUARDED_BY(mu_) = true;
  bool is_stopping_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<PeerWatch> create_agent_watch(std::shared_ptr<agent::Agent> agent) {
  return std::make_unique<AgentWatch>(std::move(agent));
}

}  // namespace meshrun::ucx
