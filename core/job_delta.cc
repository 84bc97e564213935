#include "core/job_delta.h"

#include <map>
#include <utility>

namespace meshrun {

void Fold(const v1::JobDelta& delta, v1::Job* job) {
  v1::Job next = delta.head();
  next.mutable_spec()->Swap(job->mutable_spec());
  next.mutable_ranks()->Swap(job->mutable_ranks());
  if (delta.has_groups()) {
    *next.mutable_groups() = delta.groups();
  } else {
    next.mutable_groups()->Swap(job->mutable_groups());
  }
  for (const v1::RankStatus& rank : delta.ranks()) {
    const int number = rank.assignment().rank();
    if (number < 0 || number >= next.ranks_size()) continue;
    v1::RankStatus& known = *next.mutable_ranks(number);
    const v1::Progress progress = known.progress();
    known = rank;
    if (progress.ByteSizeLong() > 0) *known.mutable_progress() = progress;
  }
  job->Swap(&next);
}

void Merge(const v1::WatchJobResponse& later, v1::WatchJobResponse* earlier) {
  if (later.has_job()) {
    *earlier = later;
    return;
  }
  *earlier->mutable_curve() = [&] {
    auto curve = earlier->curve();
    curve.MergeFrom(later.curve());
    return curve;
  }();
  if (earlier->has_job()) {
    Fold(later.delta(), earlier->mutable_job());
    return;
  }
  v1::JobDelta& delta = *earlier->mutable_delta();
  *delta.mutable_head() = later.delta().head();
  if (later.delta().has_groups()) {
    delta.set_has_groups(true);
    *delta.mutable_groups() = later.delta().groups();
  }
  std::map<int, v1::RankStatus> ranks;
  for (const v1::RankStatus& rank : delta.ranks()) ranks[rank.assignment().rank()] = rank;
  for (const v1::RankStatus& rank : later.delta().ranks()) ranks[rank.assignment().rank()] = rank;
  delta.clear_ranks();
  for (auto& [number, rank] : ranks) *delta.add_ranks() = std::move(rank);
}

}  // namespace meshrun
