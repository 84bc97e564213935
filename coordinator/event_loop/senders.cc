#include "coordinator/event_loop/senders.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error_detail.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// First letters of names.
constexpr char kUser = 'u';
constexpr char kNode = 'n';
constexpr char kSession = 's';

// What is not known yet is taken for more than most take.
constexpr std::chrono::microseconds kUnknownCost(500);
// How much is left of the slowest with each event of its kind.
constexpr double kFades = 0.98;
constexpr int kNodeShare = 4;
constexpr std::chrono::milliseconds kLeastWait(20);
constexpr std::chrono::seconds kForget(10);

// One certificate for all hosts: nobody knows which one calls.
bool SpeaksForAll(const v1::Caller& caller) {
  return std::find(caller.nodes().begin(), caller.nodes().end(), "*") != caller.nodes().end();
}
bool IsUser(std::string_view name) { return name.starts_with(kUser); }
int SharesOf(std::string_view name) { return IsUser(name) ? 1 : kNodeShare; }

}  // namespace

Senders::Event Senders::EventOf(const v1::StateEvent& event, size_t bytes) {
  Event out{.kind = event.event_case(), .bytes = bytes};
  if (event.has_session_message()) {
    const v1::SessionMessage& message = event.session_message();
    out.sender = fmt::format("{}{}", kSession, message.session_id());
    out.kind = -message.message().message_case();
  } else if (event.has_caller() && !SpeaksForAll(event.caller())) {
    const char kind = event.caller().nodes().empty() ? kUser : kNode;
    out.sender = fmt::format("{}{}", kind, event.caller().user());
  }
  return out;
}

// `part`: whether it is full to 1/part.
bool Senders::IsFull(std::string_view name, const Sender& sender, int part) const {
  const int shares = SharesOf(name);
  if (sender.waiting * part >= limits_.most * shares) return true;
  if (sender.bytes * part >= limits_.bytes * shares) return true;
  return sender.waiting * part >= limits_.least * shares &&
         sender.cost * part >= limits_.time * shares;
}

absl::Status Senders::Admit(const Event& event) const {
  if (!IsFull(event.sender)) return absl::OkStatus();
  const Sender& sender = by_name_.at(event.sender);
  return TryAgainLater(
      fmt::format("{} {} has {} calls with {} waiting at the coordinator, and no more are taken",
                  IsUser(event.sender) ? "user" : "node", event.sender.substr(1), sender.waiting,
                  FormatBytes(sender.bytes)),
      std::max<SteadyNanos>(sender.cost, kLeastWait));
}

bool Senders::IsFull(const std::string& sender) const {
  const auto found = by_name_.find(sender);
  return found != by_name_.end() && IsFull(sender, found->second, 1);
}

bool Senders::HasRoom(const std::string& sender) const {
  const auto found = by_name_.find(sender);
  return found == by_name_.end() || !IsFull(sender, found->second, 2);
}

void Senders::OnQueued(Event& event, SteadyNanos now) {
  if (event.sender.empty()) return;
  Sender& sender = by_name_[event.sender];
  const auto slowest = sender.slowest.find(event.kind);
  event.cost = slowest == sender.slowest.end() ? SteadyNanos(kUnknownCost) : slowest->second;
  ++sender.waiting;
  sender.bytes += event.bytes;
  sender.cost += event.cost;
  sender.last = now;
}

void Senders::OnTaken(const Event& event) {
  if (event.sender.empty()) return;
  Sender& sender = by_name_.at(event.sender);
  --sender.waiting;
  sender.bytes -= event.bytes;
  sender.cost -= event.cost;
}

void Senders::OnStepped(const Event& event, SteadyNanos took) {
  const auto found = by_name_.find(event.sender);
  if (found == by_name_.end()) return;
  const auto [slowest, is_new] = found->second.slowest.try_emplace(event.kind, took);
  if (is_new) return;
  const auto faded = static_cast<int64_t>(static_cast<double>(slowest->second.count()) * kFades);
  slowest->second = std::max(took, SteadyNanos(faded));
}

void Senders::Forget(SteadyNanos now) {
  std::erase_if(by_name_, [&](const auto& entry) {
    return entry.second.waiting == 0 && now - entry.second.last > kForget;
  });
}

}  // namespace meshrun::coordinator
