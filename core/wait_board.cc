#include "core/wait_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>

namespace meshrun {
namespace {

// What a sentence lists of ranks and of operations.
constexpr size_t kNamed = 8;

std::string RanksInWords(const std::vector<int>& ranks) {
  std::string words = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    const bool is_last = i > 0 && i + 1 == ranks.size();
    words += fmt::format("{} {}", is_last ? " and" : i > 0 ? "," : "", ranks[i]);
  }
  if (ranks.size() > kNamed) words += fmt::format(" and {} more", ranks.size() - kNamed);
  return words;
}

const char* Verb(const std::vector<int>& ranks, const char* of_one, const char* of_many) {
  return ranks.size() == 1 ? of_one : of_many;
}

bool IsCollective(const WaitCall& call) { return call.peers.empty(); }

uint64_t Called(const WaitReport& report, const std::string& group) {
  const auto found = report.called.find(group);
  return found == report.called.end() ? 0 : found->second;
}

bool Exchange(const WaitReport& a, const WaitReport& b) {
  return (a.sending_to.count(b.rank) > 0 && b.receiving_from.count(a.rank) > 0) ||
         (b.sending_to.count(a.rank) > 0 && a.receiving_from.count(b.rank) > 0);
}

// From the first report of the wait, which comes kReportAfter after its start.
SteadyNanos ErrorAfter(const WaitReport& report) {
  return std::max<SteadyNanos>(report.deadlock_after - WaitBoard::kReportAfter, WaitBoard::kSettle);
}

double Seconds(SteadyNanos time) { return std::chrono::duration<double>(time).count(); }

// The ranks that each call of a rank waits for. A rank is in it only if each of its calls waits for
// one.
using Waits = std::map<int, std::vector<std::vector<int>>>;

// The first strongly connected component that Tarjan's algorithm ends: one that waits for none but
// its own.
class ClosedComponent {
 public:
  explicit ClosedComponent(const Waits& waits) : waits_(waits) {}

  std::vector<int> Find() {
    if (!waits_.empty()) Visit(waits_.begin()->first);
    std::sort(found_.begin(), found_.end());
    return found_;
  }

 private:
  // The earliest that `rank` leads back to.
  int Visit(int rank) {
    const int own = static_cast<int>(path_.size());
    order_[rank] = own;
    path_.push_back(rank);
    int earliest = own;
    for (const std::vector<int>& call : waits_.at(rank)) {
      for (const int next : call) {
        // Until the first has ended, all that were seen are on the path.
        const auto seen = order_.find(next);
        earliest = std::min(earliest, seen == order_.end() ? Visit(next) : seen->second);
        if (!found_.empty()) return earliest;
      }
    }
    if (earliest == own) found_.assign(path_.begin() + own, path_.end());
    return earliest;
  }

  const Waits& waits_;
  std::map<int, int> order_;
  std::vector<int> path_, found_;
};

}  // namespace

// What the reports say at one time.
class WaitBoard::Moment {
 public:
  Moment(const WaitBoard& board, SteadyNanos now);

  std::optional<WaitVerdict> DecideLeft() const;
  std::optional<WaitVerdict> DecideDeadlock() const;
  std::vector<std::string> Suspect() const;

 private:
  // One collective: the ranks that are blocked in it, and what the first of them says of it.
  struct Collective {
    const WaitCall* call = nullptr;
    std::vector<int> ranks;
    bool is_settled = false;  // one of the reports is
    bool is_moving = false;   // to one of them
    std::vector<int> uncalled;
  };
  using Key = std::tuple<std::string, GroupMembers, uint64_t>;

  static Key KeyOf(const WaitCall& call) { return {call.group, call.members, call.sequence}; }
  const WaitReport& ReportOf(int rank) const { return board_.waiting_.at(rank).report; }
  bool IsSettled(int rank, SteadyNanos time = kSettle) const {
    const auto found = board_.waiting_.find(rank);
    return found != board_.waiting_.end() && found->second.since + time <= now_;
  }
  bool IsWaiting(int rank) const { return board_.waiting_.count(rank) > 0; }
  // Whether a cycle through the rank is an error by now.
  bool IsStuck(int rank) const {
    if (!IsWaiting(rank)) return false;
    const WaitReport& report = ReportOf(rank);
    return report.other_threads == 0 && report.deadlock_after > SteadyNanos::zero() &&
           IsSettled(rank, ErrorAfter(report));
  }
  bool HasLeft(int rank) const {
    const auto found = board_.left_.find(rank);
    return found != board_.left_.end() && found->second + kSettle <= now_;
  }
  // Whether a thread of a member may still call the operation.
  bool MayBeCalled(const Collective& collective) const;
  // The blocked ranks that `call` waits for; none where another may still come. `counts`: whether a
  // rank is blocked.
  template <typename Counts>
  std::vector<int> WaitsFor(const WaitReport& report, const WaitCall& call, Counts counts) const;
  // Ranks, of those that count, that wait for none but each other.
  template <typename Counts>
  Waits WaitsAmong(Counts counts) const;
  // Takes out the ranks that may go on.
  void Prune(Waits& waits) const;
  WaitVerdict::Group GroupOf(const WaitCall& call) const;
  // "rank 0 is in ..., which rank 1 has not called; ..."
  std::string CycleInWords(const std::vector<int>& ranks) const;
  std::string WhatFollows(const std::vector<int>& ranks) const;

  const WaitBoard& board_;
  const SteadyNanos now_;
  std::map<Key, Collective> collectives_;
};

WaitBoard::Moment::Moment(const WaitBoard& board, SteadyNanos now) : board_(board), now_(now) {
  for (const auto& [rank, entry] : board.waiting_) {
    for (const WaitCall& call : entry.report.calls) {
      if (!IsCollective(call)) continue;
      Collective& collective = collectives_[KeyOf(call)];
      if (collective.call == nullptr) collective.call = &call;
      collective.ranks.push_back(rank);
      collective.is_settled = collective.is_settled || IsSettled(rank);
      collective.is_moving = collective.is_moving || call.is_moving;
    }
  }
  for (auto& [key, collective] : collectives_) {
    const auto& [group, members, sequence] = key;
    for (const int member : members) {
      if (!IsWaiting(member) || Called(ReportOf(member), group) < sequence) {
        collective.uncalled.push_back(member);
      }
    }
  }
}

bool WaitBoard::Moment::MayBeCalled(const Collective& collective) const {
  if (!board_.Silent(collective.call->members.ranks()).empty()) return true;
  return std::any_of(collective.uncalled.begin(), collective.uncalled.end(), [this](int rank) {
    return IsWaiting(rank) && ReportOf(rank).other_threads > 0;
  });
}

// A rank that has left may have called the operation before, as long as it can have finished it.
std::optional<WaitVerdict> WaitBoard::Moment::DecideLeft() const {
  for (const auto& [key, collective] : collectives_) {
    const std::vector<int>& members = collective.call->members.ranks();
    if (!collective.is_settled || collective.is_moving || MayBeCalled(collective)) continue;
    WaitVerdict verdict;
    std::copy_if(members.begin(), members.end(), std::back_inserter(verdict.ranks),
                 [this](int member) { return HasLeft(member); });
    if (verdict.ranks.empty()) continue;
    std::sort(verdict.ranks.begin(), verdict.ranks.end());
    verdict.message =
        fmt::format("{} left without calling {}, in which {} {}.", RanksInWords(verdict.ranks),
                    collective.call->operation, RanksInWords(collective.ranks),
                    Verb(collective.ranks, "waits", "wait"));
    verdict.groups.push_back(GroupOf(*collective.call));
    return verdict;
  }
  return std::nullopt;
}

std::optional<WaitVerdict> WaitBoard::Moment::DecideDeadlock() const {
  WaitVerdict verdict;
  verdict.ranks = ClosedComponent(WaitsAmong([this](int rank) { return IsStuck(rank); })).Find();
  if (verdict.ranks.empty()) return std::nullopt;
  verdict.deadlock = true;
  SteadyNanos limit{0};
  std::map<std::pair<std::string, GroupMembers>, WaitVerdict::Group> groups;
  for (const int rank : verdict.ranks) {
    const WaitReport& report = ReportOf(rank);
    limit = std::max(limit, kReportAfter + ErrorAfter(report));
    for (const WaitCall& call : report.calls) {
      WaitVerdict::Group& group = groups[{call.group, call.members}];
      if (group.resume_at == 0) group = GroupOf(call);
    }
  }
  verdict.message = fmt::format(
      "{} wait for each other in vain: {}. All ranks must call what they share in one order. Such "
      "a "
      "wait is an error after {:g} s: MESHRUN_DEADLOCK_SECONDS sets this time (0: only the timeout "
      "of the operations ends them).",
      RanksInWords(verdict.ranks), CycleInWords(verdict.ranks), Seconds(limit));
  for (const auto& [key, group] : groups) verdict.groups.push_back(group);
  return verdict;
}

std::vector<std::string> WaitBoard::Moment::Suspect() const {
  std::vector<std::string> sentences;
  Waits waits = WaitsAmong([this](int rank) { return IsWaiting(rank); });
  while (true) {
    const std::vector<int> ranks = ClosedComponent(waits).Find();
    if (ranks.empty()) return sentences;
    sentences.push_back(fmt::format("{} seem to wait for each other in vain: {}. {}",
                                    RanksInWords(ranks), CycleInWords(ranks), WhatFollows(ranks)));
    for (const int rank : ranks) waits.erase(rank);
    Prune(waits);
  }
}

template <typename Counts>
std::vector<int> WaitBoard::Moment::WaitsFor(const WaitReport& report, const WaitCall& call,
                                             Counts counts) const {
  std::vector<int> blocked;
  const bool is_collective = IsCollective(call);
  for (const int rank : is_collective ? collectives_.at(KeyOf(call)).uncalled : call.peers) {
    if (rank != report.rank && counts(rank) &&
        (is_collective || !Exchange(report, ReportOf(rank)))) {
      blocked.push_back(rank);
    } else if (!is_collective && !HasLeft(rank)) {
      return {};
    }
  }
  return blocked;
}

template <typename Counts>
Waits WaitBoard::Moment::WaitsAmong(Counts counts) const {
  Waits waits;
  for (const auto& [rank, entry] : board_.waiting_) {
    if (!counts(rank)) continue;
    std::vector<std::vector<int>>& calls = waits[rank];
    for (const WaitCall& call : entry.report.calls) {
      calls.push_back(WaitsFor(entry.report, call, counts));
    }
  }
  Prune(waits);
  return waits;
}

void WaitBoard::Moment::Prune(Waits& waits) const {
  const auto goes_on = [&waits](int rank) { return waits.count(rank) == 0; };
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = waits.begin(); it != waits.end();) {
      const std::vector<WaitCall>& calls = ReportOf(it->first).calls;
      bool may_go_on = calls.empty();
      for (size_t i = 0; i < calls.size(); ++i) {
        const bool one_goes_on = std::erase_if(it->second[i], goes_on) > 0;
        const bool one_will_do = !IsCollective(calls[i]);
        may_go_on = may_go_on || it->second[i].empty() || (one_will_do && one_goes_on);
      }
      if (may_go_on) {
        it = waits.erase(it);
        changed = true;
      } else {
        ++it;
      }
    }
  }
}

WaitVerdict::Group WaitBoard::Moment::GroupOf(const WaitCall& call) const {
  WaitVerdict::Group group{call.group, call.members.ranks(), 0};
  if (!IsCollective(call)) return group;
  group.resume_at = call.sequence + 1;
  for (const int member : call.members) {
    if (!IsWaiting(member)) continue;
    group.resume_at = std::max(group.resume_at, Called(ReportOf(member), call.group) + 1);
  }
  return group;
}

std::string WaitBoard::Moment::CycleInWords(const std::vector<int>& ranks) const {
  const auto is_one = [&ranks](int rank) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  std::vector<std::string> parts;
  std::set<Key> told;
  for (const int rank : ranks) {
    for (const WaitCall& call : ReportOf(rank).calls) {
      if (!IsCollective(call)) {
        parts.push_back(fmt::format("rank {} is in {} and waits for {}", rank, call.operation,
                                    RanksInWords(call.peers)));
        continue;
      }
      if (!told.insert(KeyOf(call)).second) continue;
      const Collective& collective = collectives_.at(KeyOf(call));
      std::vector<int> in_it, not_in_it;
      std::copy_if(collective.ranks.begin(), collective.ranks.end(), std::back_inserter(in_it),
                   is_one);
      std::copy_if(collective.uncalled.begin(), collective.uncalled.end(),
                   std::back_inserter(not_in_it), is_one);
      std::sort(not_in_it.begin(), not_in_it.end());
      parts.push_back(fmt::format("{} {} in {}, which {} {} not called", RanksInWords(in_it),
                                  Verb(in_it, "is", "are"), call.operation, RanksInWords(not_in_it),
                                  Verb(not_in_it, "has", "have")));
    }
  }
  const size_t more = parts.size() > kNamed ? parts.size() - kNamed : 0;
  parts.resize(parts.size() - more);
  return fmt::format("{}{}", fmt::join(parts, "; "),
                     more > 0 ? fmt::format("; and {} more", more) : "");
}

std::string WaitBoard::Moment::WhatFollows(const std::vector<int>& ranks) const {
  std::vector<int> with_others;
  SteadyNanos limit{0};
  bool is_error = true;
  for (const int rank : ranks) {
    const WaitReport& report = ReportOf(rank);
    if (report.other_threads > 0) with_others.push_back(rank);
    is_error = is_error && report.deadlock_after > SteadyNanos::zero();
    limit = std::max(limit, kReportAfter + ErrorAfter(report));
  }
  if (!with_others.empty()) {
    return fmt::format(
        "No error follows, since {} {} another thread that has called operations before and may "
        "call the missing one; the timeout of the operations decides.",
        RanksInWords(with_others), Verb(with_others, "has", "have"));
  }
  if (!is_error) {
    return "MESHRUN_DEADLOCK_SECONDS is 0, so the timeout of the operations decides.";
  }
  return fmt::format("That is an error after {:g} s (MESHRUN_DEADLOCK_SECONDS).", Seconds(limit));
}

void WaitBoard::DecideAt(SteadyNanos time) {
  if (!next_ || time < *next_) next_ = time;
}

void WaitBoard::Report(WaitReport report, SteadyNanos now) {
  for (WaitCall& call : report.calls) call.members = *members_.insert(call.members).first;
  const auto [entry, is_new] = waiting_.try_emplace(report.rank);
  if (!is_new && entry->second.report == report) return;
  entry->second = {std::move(report), now};
  DecideAt(now + std::max<SteadyNanos>(kGather, waiting_.size() * kGatherPerRank));
}

void WaitBoard::Withdraw(int rank) { waiting_.erase(rank); }

void WaitBoard::Left(int rank, SteadyNanos now) {
  waiting_.erase(rank);
  if (left_.emplace(rank, now).second) DecideAt(now + kSettle);
}

std::vector<std::string> WaitBoard::Suspect(SteadyNanos now) {
  std::vector<std::string> sentences = Moment(*this, now).Suspect();
  std::erase_if(sentences, [this](const std::string& sentence) {
    return std::find(said_.begin(), said_.end(), sentence) != said_.end();
  });
  said_.insert(said_.end(), sentences.begin(), sentences.end());
  while (said_.size() > kRemembered) said_.pop_front();
  return sentences;
}

std::vector<WaitVerdict> WaitBoard::Decide(SteadyNanos now) {
  std::vector<WaitVerdict> verdicts;
  while (true) {
    const Moment moment(*this, now);
    std::optional<WaitVerdict> verdict = moment.DecideLeft();
    if (!verdict) verdict = moment.DecideDeadlock();
    if (!verdict) break;
    Forget(*verdict);
    verdicts.push_back(*std::move(verdict));
  }
  next_.reset();
  const auto once_passed = [&](SteadyNanos time) {
    if (time > now) DecideAt(std::max<SteadyNanos>(time, now + kGather));
  };
  for (const auto& [rank, entry] : waiting_) {
    once_passed(entry.since + kSettle);
    once_passed(entry.since + ErrorAfter(entry.report));
  }
  for (const auto& [rank, since] : left_) once_passed(since + kSettle);
  return verdicts;
}

void WaitBoard::Forget(const WaitVerdict& verdict) {
  const auto is_ended = [&verdict](const WaitCall& call) {
    return IsCollective(call) &&
           std::any_of(verdict.groups.begin(), verdict.groups.end(), [&call](const auto& group) {
             return group.name == call.group && group.members == call.members.ranks() &&
                    call.sequence < group.resume_at;
           });
  };
  std::erase_if(waiting_, [&](const auto& entry) {
    const WaitReport& report = entry.second.report;
    return std::binary_search(verdict.ranks.begin(), verdict.ranks.end(), report.rank) ||
           std::any_of(report.calls.begin(), report.calls.end(), is_ended);
  });
}

std::vector<int> WaitBoard::Silent(const std::vector<int>& members) const {
  std::vector<int> silent;
  std::copy_if(members.begin(), members.end(), std::back_inserter(silent), [this](int member) {
    return waiting_.count(member) == 0 && left_.count(member) == 0;
  });
  return silent;
}

}  // namespace meshrun
