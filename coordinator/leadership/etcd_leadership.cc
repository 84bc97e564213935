#include "coordinator/leadership/etcd_leadership.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// While a member of etcd is replaced, or elects its leader, several of these fit into a lease.
constexpr milliseconds kRenewal(300);
// Between two looks of a standby.
constexpr milliseconds kLook(100);
// After a turn of the leader that has failed.
constexpr milliseconds kRetry(20);
// After a refusal: a login costs etcd a tenth of a second.
constexpr milliseconds kRefused(500);
constexpr milliseconds kAttempt(500);
// A call fits into the time that is left to lead, but is given this.
constexpr milliseconds kLeastCall(50);
constexpr milliseconds kGiveBack(450);
// Two clocks differ by less: so much earlier the leader stops.
constexpr int kDriftPercent = 2;

bool IsRefusal(const absl::Status& why) {
  return absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why) ||
         absl::IsInvalidArgument(why);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdLeadership>> EtcdLeadership::Start(Options options) {
  if (options.name.empty() || options.name.find('/') != std::string::npos ||
      !IsUtf8(options.name)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' cannot be the name of a coordinator: it is empty, has a slash or is not UTF-8",
        options.name));
  }
  options.client.attempt = kAttempt;
  options.client.prefix = options.prefix;
  MESHRUN_ASSIGN_OR_RETURN(auto client, etcd::Client::Make(options.client));
  std::unique_ptr<EtcdLeadership> made(new EtcdLeadership(std::move(options), std::move(client)));
  made->thread_ = std::thread([it = made.get()] { it->Run(); });
  return made;
}

EtcdLeadership::EtcdLeadership(Options options, std::unique_ptr<etcd::Client> client)
    : options_(std::move(options)),
      client_(std::move(client)),
      election_(*client_, {options_.prefix, options_.name, options_.address}, options_.ttl) {}

EtcdLeadership::~EtcdLeadership() { Stop(); }

absl::Status EtcdLeadership::Campaign() {
  MutexLock lock(mu_);
  while (!stopping_ && !(leads_ && Leads()) && hopeless_.ok()) {
    if (!std::exchange(campaigning_, true)) changed_.NotifyAll();
    changed_.Wait(mu_);
  }
  campaigning_ = false;
  if (stopping_) return absl::CancelledError("the campaign was stopped");
  return leads_ ? absl::OkStatus() : hopeless_;
}

bool EtcdLeadership::Leads() const { return options_.boot_time().count() < leads_until_.load(); }

void EtcdLeadership::OnLost(std::function<void(const std::string&)> lost) {
  MutexLock lock(mu_);
  lost_ = std::move(lost);
}

std::optional<Leadership::Candidate> EtcdLeadership::Leader() const {
  MutexLock lock(mu_);
  return leader_;
}

std::vector<Leadership::Candidate> EtcdLeadership::Candidates() const {
  MutexLock lock(mu_);
  return candidates_;
}

std::optional<etcd::OwnKey> EtcdLeadership::Held() const {
  MutexLock lock(mu_);
  if (!leads_ || !Leads()) return std::nullopt;
  return etcd::OwnKey{election_.leader_key(), held_};
}

EtcdElection::Seen EtcdLeadership::seen() const {
  MutexLock lock(mu_);
  return seen_;
}

void EtcdLeadership::Stop() {
  {
    MutexLock lock(mu_);
    if (std::exchange(stopping_, true)) {
      // By another thread, or earlier.
      while (!stopped_) changed_.Wait(mu_);
      return;
    }
    campaigning_ = false;
    changed_.NotifyAll();
    // Under the lock: the thread sees `stopping_`, and begins to give back, after it.
    if (!gives_back_) client_->Interrupt();
  }
  if (thread_.joinable()) thread_.join();
  MutexLock lock(mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool EtcdLeadership::IsCampaigning() const {
  MutexLock lock(mu_);
  return campaigning_ && !stopping_;
}

EtcdLeadership::TimePoint EtcdLeadership::WakeAt() const {
  const TimePoint now = steady_clock::now();
  const milliseconds refused = IsRefusal(failure_) ? kRefused : milliseconds(0);
  if (leads_until_ == 0) return now + std::max(kLook, refused);
  const milliseconds pause = failure_.ok() ? kRenewal : std::max(kRetry, refused);
  // At the end of our time at the latest, to say so.
  return now + std::clamp<std::chrono::nanoseconds>(TimeLeft(), milliseconds(0), pause);
}

std::chrono::nanoseconds EtcdLeadership::TimeLeft() const {
  return std::chrono::nanoseconds(leads_until_) - options_.boot_time();
}

void EtcdLeadership::Run() {
  while (true) {
    OnTurn(Turn());
    const TimePoint until = WakeAt();
    MutexLock lock(mu_);
    const bool wanted = campaigning_;
    while (!stopping_ && campaigning_ == wanted && changed_.WaitUntil(mu_, until)) {
    }
    if (stopping_) break;
  }
  Lose("this coordinator stops");
  GiveBack();
}

void EtcdLeadership::OnTurn(const absl::Status& status) {
  const bool hopeless = absl::IsAlreadyExists(status) || (IsRefusal(status) && !was_let_in_);
  failure_ = status;
  const TimePoint now = steady_clock::now();
  if (status.ok()) {
    answered_ = now;
    was_let_in_ = true;
    if (!std::exchange(told_, absl::OkStatus()).ok()) log::Info("etcd answers again");
  } else if (!hopeless && !absl::IsCancelled(status)) {
    Tell(status);
  }
  MutexLock lock(mu_);
  if (status.ok()) {
    problem_.clear();
  } else if (now - answered_ >= options_.ttl) {
    // Whoever led then leads no more.
    problem_ = std::string(status.message());
    leader_.reset();
    for (Candidate& candidate : candidates_) candidate.leads = false;
    told_leader_.clear();
  }
  hopeless_ = hopeless ? status : absl::OkStatus();
  if (hopeless) changed_.NotifyAll();
}

void EtcdLeadership::Tell(const absl::Status& failure) {
  const TimePoint now = steady_clock::now();
  if (failure == told_ || (failure.code() == told_.code() && now - told_at_ < options_.ttl)) return;
  told_ = failure;
  told_at_ = now;
  log::Warning("who leads is not known", {{"why", std::string(failure.message())}});
}

void EtcdLeadership::SetCallTime() {
  milliseconds time = 2 * kAttempt;
  if (leads_until_ != 0) {
    time = std::clamp(std::chrono::duration_cast<milliseconds>(TimeLeft()), kLeastCall, time);
  }
  client_->SetTimeout(time);
}

absl::Status EtcdLeadership::Turn() {
  if (leads_until_ != 0 && !Leads()) {
    Lose(fmt::format("its lease in etcd was not renewed in time{}{}", failure_.ok() ? "" : ": ",
                     std::string(failure_.message())));
  }
  SetCallTime();
  if (leads_until_ != 0) {
    MESHRUN_RETURN_IF_ERROR(Renew());
    SetCallTime();
    return election_.KeepLease(kRenewal);
  }
  MESHRUN_RETURN_IF_ERROR(election_.KeepLease(kRenewal));
  MESHRUN_RETURN_IF_ERROR(election_.Look());
  Show();
  if (!IsCampaigning()) return absl::OkStatus();
  // Ours: by a transaction whose answer was lost.
  if (election_.IsOurs()) return Renew();
  if (!election_.IsFree()) return election_.FindWhetherFull(2 * kRenewal);
  const auto sent = options_.boot_time();
  MESHRUN_ASSIGN_OR_RETURN(const bool leads, election_.Take());
  if (leads) Lead(sent);
  return absl::OkStatus();
}

absl::Status EtcdLeadership::Renew() {
  const auto sent = options_.boot_time();
  MESHRUN_ASSIGN_OR_RETURN(bool leads, election_.Renew());
  // Where etcd is full nobody can take over either, as long as our key is there.
  leads |= election_.IsOurs();
  if (!leads && election_.IsTakenAway() && Leads()) {
    log::Info("etcd has ended our lease too early: its key is made again");
    MESHRUN_RETURN_IF_ERROR(election_.KeepLease(milliseconds(0)));
    MESHRUN_ASSIGN_OR_RETURN(leads, election_.Remake());
  }
  Show();
  if (leads) {
    Lead(sent);
  } else {
    Lose(election_.HasLeader() ? "another coordinator has taken over"
                               : "its keys in etcd are gone");
  }
  return absl::OkStatus();
}

std::string EtcdLeadership::Problem() const {
  MutexLock lock(mu_);
  return problem_;
}

void EtcdLeadership::Show() {
  const std::optional<Candidate>& leader = election_.leader();
  {
    MutexLock lock(mu_);
    leader_ = leader;
    candidates_ = election_.candidates();
    seen_ = election_.seen();
  }
  const std::string name = leader ? leader->name : "";
  if (std::exchange(told_leader_, name) == name || name == options_.name) return;
  if (leader) {
    log::Info("another coordinator leads", {{"name", name}, {"address", leader->address}});
  } else {
    log::Info("no coordinator leads now");
  }
}

void EtcdLeadership::Lead(std::chrono::nanoseconds sent) {
  const auto counts = std::chrono::nanoseconds(options_.ttl) * (100 - kDriftPercent) / 100;
  MutexLock lock(mu_);
  // Once our time has ended it does not begin again: whoever has seen that may rely on it.
  if (stopping_ || (leads_ ? !Leads() : !campaigning_) || sent + counts <= options_.boot_time()) {
    return;
  }
  leads_until_ = (sent + counts).count();
  held_ = election_.value();
  if (std::exchange(leads_, true)) return;
  leader_ = {.name = options_.name, .address = options_.address, .leads = true};
  for (Candidate& candidate : candidates_) candidate.leads = candidate.name == options_.name;
  changed_.NotifyAll();
}

void EtcdLeadership::Lose(const std::string& why) {
  std::function<void(const std::string&)> lost;
  {
    MutexLock lock(mu_);
    leads_until_ = 0;
    if (!std::exchange(leads_, false)) return;
    leader_.reset();
    lost = lost_;
  }
  if (lost) lost(why);
  // The others need not wait for the end of our time.
  GiveBack();
}

void EtcdLeadership::GiveBack() {
  {
    MutexLock lock(mu_);
    gives_back_ = true;
  }
  client_->SetTimeout(kGiveBack);
  if (const absl::Status status = election_.GiveBack(); !status.ok()) {
    log::Warning("the next leader waits for the end of our lease", {{"error", status}});
  }
  MutexLock lock(mu_);
  gives_back_ = false;
}

}  // namespace meshrun::coordinator
