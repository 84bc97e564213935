#include "coordinator/elected_server.h"

#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "coordinator/http_routes.h"
#include "coordinator/leadership/not_leading.h"
#include "coordinator/metrics/coordinator_metrics.h"
#include "coordinator/standby_server.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// Between two attempts to take over.
constexpr std::chrono::milliseconds kPause(200);

// Notes that wait for a leadership; more of other kinds push out the oldest.
constexpr size_t kMostNotes = 32;

// UNIMPLEMENTED is not among them: a newer meshrun has written the state.
bool MayPass(const absl::Status& why) {
  return absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || absl::IsAborted(why) ||
         absl::IsResourceExhausted(why) || absl::IsFailedPrecondition(why) ||
         absl::IsOutOfRange(why);  // what it read was compacted meanwhile
}

class RunningElectedServer : public ElectedServer {
 public:
  explicit RunningElectedServer(Options options)
      : options_(std::move(options)), leadership_(*options_.leadership), door_(*options_.door) {}
  ~RunningElectedServer() override {
    Stop();
    // Its thread may still tell us of the loss.
    options_.leadership.reset();
  }

  absl::Status Begin() {
    leadership_.OnLost([this](const std::string& why) {
      MutexLock lock(mu_);
      why_ = why;
      changed_.NotifyAll();
    });
    MESHRUN_RETURN_IF_ERROR(StandBy());
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return door_.address(); }
  int port() const override { return door_.port(); }
  uint64_t term() const override {
    MutexLock lock(mu_);
    return leader_ == nullptr ? 0 : leader_->term();
  }
  std::string http_address() const override {
    if (options_.front != nullptr) return options_.front->address();
    MutexLock lock(mu_);
    return leader_ == nullptr ? "" : leader_->http_address();
  }
  void SetPolicy(v1::Policy policy) override {
    MutexLock lock(mu_);
    policy_ = std::move(policy);
    PassOn();
  }
  void ReopenAuditFile() override {
    MutexLock lock(mu_);
    reopens_ = true;
    PassOn();
  }
  void Note(const std::string& kind, const std::string& message) override {
    MutexLock lock(mu_);
    std::erase_if(notes_, [&kind](const auto& note) { return note.first == kind; });
    if (notes_.size() == kMostNotes) notes_.pop_front();
    notes_.emplace_back(kind, message);
    PassOn();
  }

  void Stop() override {
    bool leads = false;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      leads = leads_;
      changed_.NotifyAll();
    }
    // A leader commits until its server has ended.
    if (!leads) leadership_.Stop();
    if (thread_.joinable()) thread_.join();
    if (options_.front != nullptr) options_.front->Stop();
  }

 private:
  void Run() {
    while (true) {
      const absl::Status elected = leadership_.Campaign();
      {
        MutexLock lock(mu_);
        if (stopping_ || absl::IsCancelled(elected)) break;
        leads_ = elected.ok();
        if (leads_) why_.clear();
      }
      if (!elected.ok()) {
        options_.on_useless(elected);
        break;
      }
      log::Info("elected: takes over");
      const absl::Status led = Lead();
      MutexLock lock(mu_);
      leads_ = false;
      if (stopping_) break;
      if (!led.ok()) {
        options_.on_useless(led);
        break;
      }
    }
    if (standby_ != nullptr) standby_->Stop();
    // What a leader gives back lets the next one begin at once.
    leadership_.Stop();
  }

  // To the leader, where this coordinator leads; else it is kept for the end of a takeover.
  void PassOn() MESHRUN_REQUIRES(mu_) {
    if (leader_ == nullptr) return;
    if (policy_.has_value()) leader_->SetPolicy(*std::exchange(policy_, std::nullopt));
    if (std::exchange(reopens_, false)) leader_->ReopenAuditFile();
    for (const auto& [kind, message] : std::exchange(notes_, {})) leader_->Note(kind, message);
  }

  // Until the leadership is lost, or Stop is called. An error: it can never lead.
  absl::Status Lead() {
    {
      // Options::prepare reads and opens them anew. What changes from here on it may have missed.
      MutexLock lock(mu_);
      policy_.reset();
      reopens_ = false;
    }
    std::unique_ptr<Server> server;
    std::string told;
    while (server == nullptr) {
      auto taken = TakeOver();
      if (taken.ok()) {
        server = *std::move(taken);
        break;
      }
      if (leadership_.Leads() && !MayPass(taken.status())) return taken.status();
      if (std::string why(taken.status().message()); why != told) {
        log::Error("cannot take over yet", {{"why", why}});
        told = std::move(why);
      }
      if (AwaitEnd(kPause)) break;
    }
    if (server != nullptr) {
      log::Info("leads", {{"term", server->term()}});
      {
        MutexLock lock(mu_);
        leader_ = server.get();
        PassOn();
      }
      AwaitEnd(std::nullopt);
      {
        MutexLock lock(mu_);
        leader_ = nullptr;
      }
      server->Stop();
      server.reset();
    }
    const std::string why = WhyLost();
    {
      MutexLock lock(mu_);
      if (stopping_) return absl::OkStatus();
    }
    log::Warning("leads no longer", {{"why", why}});
    return standby_ == nullptr ? StandBy() : absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Server>> TakeOver() {
    MESHRUN_ASSIGN_OR_RETURN(
        Server::Options options,
        options_.prepare(
            [this](const std::string& kind, const std::string& message) { Note(kind, message); }));
    options.door = &door_;
    options.front = options_.front.get();
    options.leadership = &leadership_;
    options.name = options_.name;
    options.metrics = &metrics_;
    // This is as late as possible: until then callers get an answer.
    options.before_serving = [this] {
      standby_->Stop();
      standby_.reset();
    };
    auto server = Server::Start(std::move(options));
    if (!server.ok() && standby_ == nullptr) MESHRUN_RETURN_IF_ERROR(StandBy());
    return server;
  }

  absl::Status StandBy() {
    const auto answer = [this] {
      std::string why;
      {
        MutexLock lock(mu_);
        why = why_;
      }
      return NotLeading(options_.name, leadership_, why);
    };
    MESHRUN_ASSIGN_OR_RETURN(standby_, StandbyServer::Start(door_, answer));
    if (options_.front != nullptr) {
      options_.front->Serve(MakeStandbyRoutes(metrics_, *options_.front, door_.acceptor(),
                                              door_.security().tls, answer));
    }
    log::Info("stands by", {{"address", door_.address()}, {"name", options_.name}});
    return absl::OkStatus();
  }

  // True: the leadership is lost, or Stop was called; false after `timeout`.
  bool AwaitEnd(std::optional<std::chrono::milliseconds> timeout) {
    const auto begun = std::chrono::steady_clock::now();
    MutexLock lock(mu_);
    while (!stopping_ && leadership_.Leads()) {
      const auto now = std::chrono::steady_clock::now();
      if (timeout.has_value() && now - begun >= *timeout) return false;
      changed_.WaitUntil(mu_, now + kPause);
    }
    return true;
  }

  // Our clock ends a leadership a moment before its thread says why.
  std::string WhyLost() {
    const auto end = std::chrono::steady_clock::now() + kPause;
    MutexLock lock(mu_);
    while (!stopping_ && why_.empty() && changed_.WaitUntil(mu_, end)) {
    }
    if (why_.empty()) why_ = "its time to lead has ended";
    return why_;
  }

  Options options_;
  Leadership& leadership_;
  Door& door_;
  // They count through all its terms: a counter that fell would look like a new process.
  CoordinatorMetrics metrics_;
  std::thread thread_;
  // Only on the thread, once that has begun.
  std::unique_ptr<StandbyServer> standby_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  // It is elected, and has not given up yet.
  bool leads_ MESHRUN_GUARDED_BY(mu_) = false;
  // Why the leadership was lost last.
  std::string why_ MESHRUN_GUARDED_BY(mu_);
  Server* leader_ MESHRUN_GUARDED_BY(mu_) = nullptr;
  // What was said while there was no leader to hear it; kind and message.
  std::optional<v1::Policy> policy_ MESHRUN_GUARDED_BY(mu_);
  bool reopens_ MESHRUN_GUARDED_BY(mu_) = false;
  std::deque<std::pair<std::string, std::string>> notes_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ElectedServer>> ElectedServer::Start(Options options) {
  auto server = std::make_unique<RunningElectedServer>(std::move(options));
  MESHRUN_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace meshrun::coordinator
