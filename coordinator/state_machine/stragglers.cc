#include "coordinator/state_machine/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

// An event names so many ranks one by one.
constexpr size_t kNamed = 8;

// If two values are in the middle, the lower one counts: with two ranks the faster one is the
// measure.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Stragglers::Watch& Stragglers::WatchOf(const Job& job) {
  if (watches_.size() > 2 * jobs_.active_count() + 100) {
    std::erase_if(watches_, [&](const auto& entry) {
      const Job* const watched = jobs_.Find(entry.first);
      return watched == nullptr || watched->ended();
    });
  }
  Watch& watch = watches_[job.id()];
  if (watch.generation == job.view.generation() && !watch.ranks.empty()) return watch;
  watch = Watch();
  watch.generation = job.view.generation();
  watch.began = context_.now;
  watch.ranks.resize(job.view.ranks_size());
  // An earlier term has named them.
  for (const v1::Straggler& straggler : job.view.stragglers()) {
    const auto rank = static_cast<size_t>(straggler.rank());
    if (rank < watch.ranks.size()) watch.ranks[rank].named = true;
  }
  return watch;
}

void Stragglers::Add(Watch& watch, int rank, const v1::Progress& progress) {
  if (!progress.has_step() || !progress.has_step_at_nanos() || progress.step() < 0) return;
  Sample sample{progress.step(), static_cast<double>(progress.step_at_nanos()) * 1e-9,
                std::nullopt};
  if (progress.has_waited_seconds()) {
    if (!std::isfinite(progress.waited_seconds())) return;
    sample.waited = progress.waited_seconds();
  }
  Rank& known = watch.ranks[rank];
  const bool was_done = IsDone(known);
  if (!known.first.has_value()) ++watch.reporting;
  // It counts anew: its steps, its host's clock, or what it has waited.
  const bool anew = !known.first.has_value() || sample.step < known.last.step ||
                    sample.at < known.last.at ||
                    sample.waited.has_value() != known.last.waited.has_value() ||
                    sample.waited < known.last.waited;
  if (anew) known.first = sample;
  known.last = sample;
  watch.done += IsDone(known);
  watch.done -= was_done;
}

void Stragglers::OnProgress(const StepChange& change) {
  Job& job = *jobs_.Find(change.job->id());
  Watch& watch = WatchOf(job);
  for (const int rank : change.ranks) Add(watch, rank, job.view.ranks(rank).progress());
  if (watch.done < watch.reporting || context_.now < watch.began + kLeast) return;
  Judge(job, watch);
  watch.began = context_.now;
  watch.done = 0;
  for (Rank& rank : watch.ranks) {
    if (rank.first.has_value()) rank.first = rank.last;
  }
}

std::vector<Stragglers::Pace> Stragglers::Paces(const Watch& watch) const {
  const bool any_waits = std::any_of(watch.ranks.begin(), watch.ranks.end(), [](const Rank& rank) {
    return rank.first.has_value() && rank.last.waited.has_value();
  });
  std::vector<Pace> paces;
  for (size_t i = 0; i < watch.ranks.size(); ++i) {
    const Rank& rank = watch.ranks[i];
    if (!rank.first.has_value() || (any_waits && !rank.last.waited.has_value())) continue;
    const double steps = static_cast<double>(rank.last.step - rank.first->step);
    const double took = rank.last.at - rank.first->at;
    const double waited = any_waits ? *rank.last.waited - *rank.first->waited : 0;
    if (waited > (1 + kBeyond) * took) continue;
    paces.push_back({static_cast<int>(i), std::max(took - waited, 0.0) / steps, took / steps});
  }
  return paces;
}

void Stragglers::Judge(Job& job, Watch& watch) {
  const std::vector<Pace> paces = Paces(watch);
  std::vector<double> computes, steps;
  std::vector<bool> has_pace(watch.ranks.size());
  for (const Pace& pace : paces) {
    computes.push_back(pace.computes);
    steps.push_back(pace.step);
    has_pace[pace.rank] = true;
  }
  const double median = paces.empty() ? 0 : Median(computes);
  const bool judges = paces.size() >= 2 && median > 0;
  // A window in which a rank is not judged ends its row of slow or other ones.
  for (size_t i = 0; i < watch.ranks.size(); ++i) {
    if (!judges || !has_pace[i]) watch.ranks[i].slow = watch.ranks[i].fine = 0;
  }
  if (!judges) return;
  const double step = Median(steps);
  for (double& value : computes) value = std::abs(value - median);
  const double excess = std::max(
      {kOfMedian * median, kOfDeviation * Median(computes), kOfStep * step, kFloorSeconds});
  std::vector<Pace> found;
  bool recovered = false;
  for (const Pace& pace : paces) {
    Rank& rank = watch.ranks[pace.rank];
    const bool slow = pace.computes > median + excess;
    rank.slow = slow ? rank.slow + 1 : 0;
    rank.fine = slow ? 0 : rank.fine + 1;
    if (!rank.named && rank.slow >= kWindows) {
      rank.named = true;
      found.push_back(pace);
    } else if (rank.named && rank.fine >= kWindows) {
      rank.named = false;
      recovered = true;
    }
  }
  if (found.empty() && !recovered) return;
  if (recovered) {
    auto& named = *job.view.mutable_stragglers();
    for (auto it = named.begin(); it != named.end();) {
      if (watch.ranks[it->rank()].named) {
        ++it;
        continue;
      }
      context_.Record("StragglerRecovered", job.id(), it->node_id(),
                      fmt::format("rank {} on {} keeps pace with the others again", it->rank(),
                                  it->node_name()));
      it = named.erase(it);
    }
  }
  Tell(job, found, median, step);
  jobs_.Changed(job);
}

void Stragglers::Tell(Job& job, const std::vector<Pace>& found, double median, double step) {
  for (size_t i = 0; i < found.size(); ++i) {
    const Pace& pace = found[i];
    const v1::RankStatus& status = job.view.ranks(pace.rank);
    v1::Straggler& straggler = *job.view.add_stragglers();
    straggler.set_rank(pace.rank);
    straggler.set_node_id(status.assignment().node_id());
    straggler.set_node_name(status.node_name());
    straggler.set_computes_seconds(pace.computes);
    straggler.set_median_seconds(median);
    straggler.set_step_seconds(step);
    *straggler.mutable_since() = ToProtoTimestamp(context_.wall);
    if (i > kNamed) continue;
    if (i == kNamed) {
      context_.Record(
          "StragglerFound", job.id(), "",
          fmt::format("{} more ranks compute for longer than the others", found.size() - kNamed));
      continue;
    }
    context_.Record(
        "StragglerFound", job.id(), straggler.node_id(),
        fmt::format("rank {} on {} computes {:.3g} s of each step, the median of all ranks is "
                    "{:.3g} s: a step takes {:.3g} s, in which the others wait for it",
                    pace.rank, straggler.node_name(), pace.computes, median, step));
  }
}

}  // namespace meshrun::coordinator
