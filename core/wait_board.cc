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

bool IsCollective(const WaitReport& report) { return report.peers.empty(); }

uint64_t Called(const WaitReport& report, const std::string& group) {
  const auto found = report.called.find(group);
  return found == report.called.end() ? 0 : found->second;
}

bool Exchange(const WaitReport& a, const WaitReport& b) {
  return (a.sending_to.count(b.rank) > 0 && b.receiving_from.count(a.rank) > 0) ||
         (b.sending_to.count(a.rank) > 0 && a.receiving_from.count(b.rank) > 0);
}

using Waits = std::map<int, std::vector<int>>;

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
    for (const int next : waits_.at(rank)) {
      // Until the first has ended, all that were seen are on the path.
      const auto seen = order_.find(next);
      earliest = std::min(earliest, seen == order_.end() ? Visit(next) : seen->second);
      if (!found_.empty()) return earliest;
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

 private:
  // Of one collective.
  struct Collective {
    std::vector<const WaitReport*> reports;
    bool is_settled = false;  // one of them is
    std::vector<int> uncalled;
  };
  using Key = std::tuple<std::string, std::vector<int>, uint64_t>;

  static Key KeyOf(const WaitReport& report) {
    return {report.group, report.members, report.sequence};
  }
  const WaitReport& ReportOf(int rank) const { return board_.waiting_.at(rank).report; }
  bool IsSettled(int rank) const {
    const auto found = board_.waiting_.find(rank);
    return found != board_.waiting_.end() && found->second.since + kSettle <= now_;
  }
  bool HasLeft(int rank) const {
    const auto found = board_.left_.find(rank);
    return found != board_.left_.end() && found->second + kSettle <= now_;
  }
  // Whom `report` waits for that is blocked; none where another may still come.
  std::vector<int> WaitsFor(const WaitReport& report) const;
  // Of ranks that wait for none but each other.
  Waits Stuck() const;
  WaitVerdict::Group GroupOf(const WaitReport& report) const;
  std::string DeadlockInWords(const std::vector<int>& ranks) const;

  const WaitBoard& board_;
  const SteadyNanos now_;
  std::map<Key, Collective> collectives_;
};

WaitBoard::Moment::Moment(const WaitBoard& board, SteadyNanos now) : board_(board), now_(now) {
  for (const auto& [rank, entry] : board.waiting_) {
    if (!IsCollective(entry.report)) continue;
    Collective& collective = collectives_[KeyOf(entry.report)];
    collective.reports.push_back(&entry.report);
    collective.is_settled = collective.is_settled || IsSettled(rank);
  }
  for (auto& [key, collective] : collectives_) {
    const auto& [group, members, sequence] = key;
    for (const int member : members) {
      const auto found = board.waiting_.find(member);
      if (found == board.waiting_.end() || Called(found->second.report, group) < sequence) {
        collective.uncalled.push_back(member);
      }
    }
  }
}

// A rank that has left may have called the operation before, as long as it can have finished it.
std::optional<WaitVerdict> WaitBoard::Moment::DecideLeft() const {
  for (const auto& [key, collective] : collectives_) {
    const std::vector<int>& members = std::get<1>(key);
    const auto is_moving = [](const WaitReport* report) { return report->is_moving; };
    if (!collective.is_settled || !board_.Silent(members).empty() ||
        std::any_of(collective.reports.begin(), collective.reports.end(), is_moving)) {
      continue;
    }
    WaitVerdict verdict;
    std::copy_if(members.begin(), members.end(), std::back_inserter(verdict.ranks),
                 [this](int member) { return HasLeft(member); });
    if (verdict.ranks.empty()) continue;
    std::sort(verdict.ranks.begin(), verdict.ranks.end());
    std::vector<int> waiting;
    for (const WaitReport* report : collective.reports) waiting.push_back(report->rank);
    verdict.message =
        fmt::format("{} left without calling {}, in which {} {}.", RanksInWords(verdict.ranks),
                    collective.reports.front()->operation, RanksInWords(waiting),
                    Verb(waiting, "waits", "wait"));
    verdict.groups.push_back(GroupOf(*collective.reports.front()));
    return verdict;
  }
  return std::nullopt;
}

std::optional<WaitVerdict> WaitBoard::Moment::DecideDeadlock() const {
  WaitVerdict verdict;
  verdict.ranks = ClosedComponent(Stuck()).Find();
  if (verdict.ranks.empty()) return std::nullopt;
  verdict.deadlock = true;
  verdict.message = DeadlockInWords(verdict.ranks);
  std::map<std::pair<std::string, std::vector<int>>, WaitVerdict::Group> groups;
  for (const int rank : verdict.ranks) {
    const WaitReport& report = ReportOf(rank);
    WaitVerdict::Group& group = groups[{report.group, report.members}];
    if (group.resume_at == 0) group = GroupOf(report);
  }
  for (const auto& [key, group] : groups) verdict.groups.push_back(group);
  return verdict;
}

std::vector<int> WaitBoard::Moment::WaitsFor(const WaitReport& report) const {
  std::vector<int> blocked;
  const bool is_collective = IsCollective(report);
  for (const int rank : is_collective ? collectives_.at(KeyOf(report)).uncalled : report.peers) {
    if (rank != report.rank && IsSettled(rank) &&
        (is_collective || !Exchange(report, ReportOf(rank)))) {
      blocked.push_back(rank);
    } else if (!is_collective && !HasLeft(rank)) {
      return {};
    }
  }
  return blocked;
}

Waits WaitBoard::Moment::Stuck() const {
  Waits waits;
  for (const auto& [rank, entry] : board_.waiting_) {
    if (IsSettled(rank)) waits[rank] = WaitsFor(entry.report);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (auto it = waits.begin(); it != waits.end();) {
      const auto goes_on = [&waits](int rank) { return waits.count(rank) == 0; };
      const bool one_will_do = !IsCollective(ReportOf(it->first));
      const bool one_goes_on = std::erase_if(it->second, goes_on) > 0;
      if (it->second.empty() || (one_will_do && one_goes_on)) {
        it = waits.erase(it);
        changed = true;
      } else {
        ++it;
      }
    }
  }
  return waits;
}

WaitVerdict::Group WaitBoard::Moment::GroupOf(const WaitReport& report) const {
  WaitVerdict::Group group{report.group, report.members, 0};
  if (!IsCollective(report)) return group;
  group.resume_at = report.sequence + 1;
  for (const int member : report.members) {
    const auto found = board_.waiting_.find(member);
    if (found == board_.waiting_.end()) continue;
    group.resume_at = std::max(group.resume_at, Called(found->second.report, report.group) + 1);
  }
  return group;
}

std::string WaitBoard::Moment::DeadlockInWords(const std::vector<int>& ranks) const {
  const auto is_one = [&ranks](int rank) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  std::vector<std::string> parts;
  std::set<Key> told;
  for (const int rank : ranks) {
    const WaitReport& report = ReportOf(rank);
    if (!IsCollective(report)) {
      parts.push_back(fmt::format("rank {} is in {} and waits for {}", rank, report.operation,
                                  RanksInWords(report.peers)));
      continue;
    }
    if (!told.insert(KeyOf(report)).second) continue;
    const Collective& collective = collectives_.at(KeyOf(report));
    std::vector<int> in_it, not_in_it;
    for (const WaitReport* other : collective.reports) {
      if (is_one(other->rank)) in_it.push_back(other->rank);
    }
    std::copy_if(collective.uncalled.begin(), collective.uncalled.end(),
                 std::back_inserter(not_in_it), is_one);
    std::sort(not_in_it.begin(), not_in_it.end());
    parts.push_back(fmt::format("{} {} in {}, which {} {} not called", RanksInWords(in_it),
                                Verb(in_it, "is", "are"), report.operation, RanksInWords(not_in_it),
                                Verb(not_in_it, "has", "have")));
  }
  const size_t more = parts.size() > kNamed ? parts.size() - kNamed : 0;
  parts.resize(parts.size() - more);
  return fmt::format(
      "{} wait for each other in vain: {}{}. All ranks must call what they share in one order.",
      RanksInWords(ranks), fmt::join(parts, "; "),
      more > 0 ? fmt::format("; and {} more", more) : "");
}

void WaitBoard::Report(const WaitReport& report, SteadyNanos now) {
  const auto [entry, is_new] = waiting_.try_emplace(report.rank, Entry{report, now});
  if (is_new || entry->second.report == report) return;
  entry->second = {report, now};
}

void WaitBoard::Withdraw(int rank) { waiting_.erase(rank); }

void WaitBoard::Left(int rank, SteadyNanos now) {
  waiting_.erase(rank);
  left_.emplace(rank, now);
}

std::vector<WaitVerdict> WaitBoard::Decide(SteadyNanos now) {
  std::vector<WaitVerdict> verdicts;
  while (true) {
    const Moment moment(*this, now);
    std::optional<WaitVerdict> verdict = moment.DecideLeft();
    if (!verdict) verdict = moment.DecideDeadlock();
    if (!verdict) return verdicts;
    Forget(*verdict);
    verdicts.push_back(*std::move(verdict));
  }
}

void WaitBoard::Forget(const WaitVerdict& verdict) {
  std::erase_if(waiting_, [&verdict](const auto& entry) {
    const WaitReport& report = entry.second.report;
    if (std::binary_search(verdict.ranks.begin(), verdict.ranks.end(), report.rank)) return true;
    return IsCollective(report) &&
           std::any_of(verdict.groups.begin(), verdict.groups.end(), [&report](const auto& group) {
             return group.name == report.group && group.members == report.members &&
                    report.sequence < group.resume_at;
           });
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
