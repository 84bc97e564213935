#include "coordinator/state_machine/hangs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/proto_time.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

constexpr int kIntervalsToLearn = 2;
constexpr size_t kNamed = 8;
// Most bytes of a place, and of why there is none.
constexpr size_t kMostPlace = 300;
constexpr size_t kMostProblem = 500;

std::string NameRanks(const std::vector<int>& ranks) {
  const std::vector<int> named(ranks.begin(), ranks.begin() + std::min(ranks.size(), kNamed));
  return fmt::format(
      "{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(named, ", "),
      ranks.size() > kNamed ? fmt::format(" and {} more", ranks.size() - kNamed) : "");
}

// "rank 1 is in step (train.py:12); ranks 0, 2 are in ...", the fewest ranks first: whatever is
// odd about one of them stands out. Then one reason why others are not known. Empty where there is
// nothing to say.
std::string DescribePlaces(const std::map<int, std::string>& places,
                           const std::map<int, std::string>& problems) {
  std::map<std::string, std::vector<int>> by_place;
  for (const auto& [rank, place] : places) by_place[place].push_back(rank);
  std::vector<std::pair<std::string, std::vector<int>>> groups(by_place.begin(), by_place.end());
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), a.second.front()) <
           std::pair(b.second.size(), b.second.front());
  });
  std::string text;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i == kNamed) return text + fmt::format("; and {} more places", groups.size() - i);
    const auto& [place, ranks] = groups[i];
    text += fmt::format("{}{} {} in {}", i == 0 ? "" : "; ", NameRanks(ranks),
                        ranks.size() == 1 ? "is" : "are", place);
  }
  if (!problems.empty()) {
    const auto& [rank, why] = *problems.begin();
    text +=
        fmt::format("{}where rank {} stands is not known: {}", text.empty() ? "" : "; ", rank, why);
  }
  return text;
}

// Whether `step` is the job's last one.
bool IsAtEnd(const Job& job, int64_t step) {
  const v1::Progress& progress = job.view.progress();
  return progress.has_total_steps() && step >= progress.total_steps();
}

// Whether ranks that run and report their steps have not come to this one.
bool HasRanksBefore(const Job& job, int64_t step) {
  return std::any_of(job.view.ranks().begin(), job.view.ranks().end(), [&](const auto& rank) {
    return rank.state() == v1::RANK_STATE_RUNNING && rank.progress().has_step() &&
           rank.progress().step() < step;
  });
}

}  // namespace

void Hangs::OnProgress(const StepChange& change) {
  Job& job = *change.job;
  if (watches_.size() > 2 * jobs_.active_count() + 100) {
    std::erase_if(watches_, [&](const auto& entry) {
      const Job* watched = jobs_.Find(entry.first);
      return watched == nullptr || watched->ended();
    });
  }
  Watch& watch = watches_[job.id()];
  if (watch.generation != job.view.generation()) {
    watch = Watch();
    watch.generation = job.view.generation();
    if (job.longest_step().count() > 0) {
      // An earlier term has learned it.
      watch.intervals = kIntervalsToLearn;
      watch.longest = job.longest_step();
    }
  }
  int64_t step = change.highest;
  if (step <= watch.step && !change.fell) {
    // Once some ranks have taken their last step, each step of the others counts.
    if (!IsAtEnd(job, watch.step) || step < 0) return;
    step = watch.step;
  }
  if (watch.step >= 0) {
    ++watch.intervals;
    watch.longest = std::max(watch.longest, context_.now - WaitsSince(job, watch));
    KeepLongest(job, watch);
  }
  if (watch.suspicion.has_value()) {
    context_.Record("StepsGoOn", job.id(), "",
                    fmt::format("step {} after {} without one", step,
                                FormatDuration(context_.now - WaitsSince(job, watch))));
  }
  // An earlier term may have suspected it.
  if (watch.suspicion.has_value() || watch.step >= 0) SetHang(job, "");
  watch.step = step;
  watch.at = context_.now;
  watch.suspicion.reset();
  const auto limit = Limit(job, watch);
  if (limit.has_value()) {
    deadlines_.Set(job.id(), context_.now + *limit);
  } else {
    deadlines_.Clear(job.id());
  }
}

SteadyNanos Hangs::WaitsSince(const Job& job, const Watch& watch) {
  return std::max(watch.at, job.resumed_at);
}

void Hangs::KeepLongest(Job& job, const Watch& watch) {
  if (watch.intervals < kIntervalsToLearn) return;
  // By doubling, so that it is seldom written, and from the longest time with the least limit on.
  std::chrono::nanoseconds kept = kFloor;
  kept = std::max(kept / kTimesLongest, job.longest_step());
  while (kept < watch.longest) kept *= 2;
  if (kept == job.longest_step()) return;
  *job.record.mutable_longest_step() = ToProtoDuration(kept);
  jobs_.Changed(job);
}

std::optional<std::chrono::nanoseconds> Hangs::Limit(const Job& job, const Watch& watch) const {
  const bool is_given = job.view.spec().has_hang_timeout();
  // Ranks that are behind then may be where no step is reported: only who has named a limit means
  // them too.
  if (IsAtEnd(job, watch.step) && !(is_given && HasRanksBefore(job, watch.step))) {
    return std::nullopt;
  }
  if (is_given) {
    const std::chrono::nanoseconds given = FromProto(job.view.spec().hang_timeout());
    return given.count() == 0 ? std::nullopt : std::optional(given);
  }
  if (watch.intervals < kIntervalsToLearn) return std::nullopt;
  return std::max<std::chrono::nanoseconds>(kFloor, kTimesLongest * watch.longest);
}

std::pair<int, std::string> Hangs::Evidence(const Job& job, const Watch& watch) const {
  std::vector<int> waiting, silent;
  int64_t lowest = watch.step;
  int behind = -1;
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.state() != v1::RANK_STATE_RUNNING) continue;
    const int number = rank.assignment().rank();
    (blocked_.IsBlocked(job, number) ? waiting : silent).push_back(number);
    if (rank.progress().has_step() && rank.progress().step() < lowest) {
      lowest = rank.progress().step();
      behind = number;
    }
  }
  std::string text = fmt::format("no step after step {} for {}", watch.step,
                                 FormatDuration(context_.now - WaitsSince(job, watch)));
  int culprit = -1;
  if (!waiting.empty() && !silent.empty()) {
    text +=
        fmt::format("; {} {} in an operation for the others, {} on {} {} not", NameRanks(waiting),
                    waiting.size() == 1 ? "waits" : "wait", NameRanks(silent),
                    job.view.ranks(silent.front()).node_name(), silent.size() == 1 ? "does" : "do");
    if (silent.size() == 1) culprit = silent.front();
  }
  if (behind >= 0) {
    text += fmt::format("; rank {} on {} is at step {}", behind, job.view.ranks(behind).node_name(),
                        lowest);
    if (culprit < 0) culprit = behind;
  }
  return {culprit, std::move(text)};
}

void Hangs::Suspect(Job& job, Watch& watch) {
  const auto [rank, text] = Evidence(job, watch);
  Suspicion& suspicion = watch.suspicion.emplace();
  suspicion.at = context_.now;
  suspicion.text = text;
  context_.Record("HangSuspected", job.id(),
                  rank < 0 ? "" : job.view.ranks(rank).assignment().node_id(), text);
  for (const Member& member : job.members) {
    const Node* node = nodes_.Find(member.node_id);
    if (member.ended || node == nullptr || node->session_id == 0) continue;
    v1::OpenSessionResponse message = MessageTo(*node, job.id(), job.view.generation());
    message.mutable_dump()->set_reason(text);
    message.mutable_dump()->set_request(kRequest);
    context_.Send(node->session_id, std::move(message));
    for (int at = member.first_rank; at < member.first_rank + member.rank_count; ++at) {
      if (job.view.ranks(at).state() == v1::RANK_STATE_RUNNING) suspicion.missing.insert(at);
    }
  }
  SetHang(job, text);
  context_.tallies.OnHang(job.tally, job.view.generation());
  deadlines_.Set(job.id(), context_.now + kStackTime);
}

void Hangs::SetHang(Job& job, std::string text) {
  if (job.view.hang() == text) return;
  job.view.set_hang(std::move(text));
  jobs_.Changed(job);
}

void Hangs::Upload(uint64_t call_id, const v1::UploadStackRequest& request) {
  Job* const job = jobs_.Find(request.fence().job_id());
  const auto found = watches_.find(request.fence().job_id());
  const int rank = request.stack().rank();
  Suspicion* const suspicion =
      found == watches_.end() || !found->second.suspicion ? nullptr : &*found->second.suspicion;
  if (job == nullptr || suspicion == nullptr ||
      found->second.generation != request.fence().generation() ||
      !job->IsOn(rank, request.fence().node_id()) || suspicion->missing.erase(rank) == 0) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format(
                                "job {} does not hang, or the place of rank {} is known",
                                request.fence().job_id(), rank)));
    return;
  }
  const v1::RankStack& stack = request.stack();
  if (!stack.place().empty()) {
    suspicion->places[rank] = std::string(Utf8Prefix(stack.place(), kMostPlace));
  } else if (!stack.error().empty()) {
    suspicion->problems[rank] = std::string(Utf8Prefix(stack.error(), kMostProblem));
  }
  context_.Reply(call_id, v1::UploadStackResponse());
  if (suspicion->missing.empty()) TellPlaces(*job, *suspicion);
}

void Hangs::TellPlaces(Job& job, const Suspicion& suspicion) {
  const std::string places = DescribePlaces(suspicion.places, suspicion.problems);
  if (places.empty()) return;
  context_.Record("HangStacks", job.id(), "", places);
  SetHang(job, fmt::format("{}; {}", suspicion.text, places));
}

std::optional<Hangs::Verdict> Hangs::NextHung() {
  while (const auto job_id = deadlines_.PopDue(context_.now)) {
    Job* job = jobs_.Find(*job_id);
    const auto found = watches_.find(*job_id);
    // Ranks whose work is finished take no more steps.
    if (job == nullptr || found == watches_.end() || job->view.state() != v1::JOB_STATE_RUNNING ||
        found->second.generation != job->view.generation() || job->finished()) {
      watches_.erase(*job_id);
      continue;
    }
    Watch& watch = found->second;
    if (PutOff(*job, watch)) continue;
    if (!watch.suspicion.has_value()) {
      Suspect(*job, watch);
      continue;
    }
    Suspicion& suspicion = *watch.suspicion;
    if (!suspicion.told) {
      suspicion.told = true;
      if (!suspicion.missing.empty()) TellPlaces(*job, suspicion);
      deadlines_.Set(job->id(), suspicion.at + kDumpTime);
      continue;
    }
    const bool may_kill =
        job->view.spec().has_hang_timeout() || job->view.spec().max_restarts() > 0;
    if (!may_kill) continue;
    auto [rank, text] = Evidence(*job, watch);
    if (const std::string places = DescribePlaces(suspicion.places, {}); !places.empty()) {
      text += "; " + places;
    }
    watches_.erase(found);
    return Verdict{job, rank, "the job hangs: " + std::move(text)};
  }
  return std::nullopt;
}

bool Hangs::PutOff(Job& job, Watch& watch) {
  const auto limit = Limit(job, watch);
  if (!limit.has_value()) return false;
  const SteadyNanos since = job.view.has_paused_since() ? context_.now : WaitsSince(job, watch);
  if (since + *limit <= context_.now) return false;
  watch.suspicion.reset();
  SetHang(job, "");
  deadlines_.Set(job.id(), since + *limit);
  return true;
}

void Hangs::Postpone() { deadlines_.PostponeTo(context_.now + kFloor); }

}  // namespace meshrun::coordinator
