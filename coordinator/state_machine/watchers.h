// Who watches which job, and what each of them has been told.
//
// A watcher that asked for deltas is told a change of the job's state or generation at once,
// everything else at most once a second: the ranks that have changed since its last answer. Any
// other gets the whole job, at each change where the job has few ranks. Watchers that are told the
// same share one message.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/curve.h"
#include "coordinator/state_machine/deadline_index.h"

namespace meshrun::coordinator {

struct Job;

class Watchers {
 public:
  explicit Watchers(Context& context) : context_(context) {}

  // The job as a client sees it: with its ranks, or without ranks and groups.
  using View = std::function<v1::Job(const Job& job, bool with_ranks)>;

  // Tells the job as it is; a job that has ended is not watched. What the caller may not see of a
  // private job he is not told.
  void Add(const Job& job, uint64_t call_id, const v1::WatchJobRequest& request, const View& view);
  void Remove(uint64_t call_id);

  void RanksChanged(const Job& job, int first, int count);
  // At the end of a batch: the job has changed.
  void Tell(const Job& job, const View& view);
  // Watchers whose second is over.
  std::vector<std::string> PopDue();
  std::optional<SteadyNanos> NextDeadline() const { return due_.Next(); }

 private:
  static constexpr std::chrono::seconds kInterval{1};

  struct Watcher {
    bool deltas = false;
    bool curve = false;
    bool concealed = false;
    // What it was told last.
    SteadyNanos at{0};
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    uint64_t generation = 0;
    uint64_t version = 0;
    size_t groups = 0;
    uint64_t points = 0;
    std::string head;
  };
  struct Watched {
    uint64_t generation = 0;
    uint64_t version = 1;
    // By rank: the version of its last change.
    std::vector<uint64_t> ranks;
    std::map<uint64_t, Watcher> by_call;
  };

  // What is made once for all watchers of a job that are told at the same time.
  struct Shared {
    std::optional<size_t> groups;
    std::shared_ptr<const v1::WatchJobResponse> whole;
    // By the version that the watcher knows, and whether its groups are old.
    std::map<std::pair<uint64_t, bool>, std::shared_ptr<const v1::WatchJobResponse>> deltas;
  };

  void Send(const Job& job, uint64_t call_id, Watched& watched, Watcher& watcher, const View& view,
            Shared* shared);
  std::shared_ptr<const v1::WatchJobResponse> Whole(const Job& job, const View& view,
                                                    Shared* shared);
  std::shared_ptr<const v1::WatchJobResponse> Delta(const Job& job, const Watched& watched,
                                                    uint64_t known, bool with_groups,
                                                    const View& view, Shared* shared);

  Context& context_;
  std::map<std::string, Watched> jobs_;
  // Jobs with watchers that have not been told all.
  DeadlineIndex<std::string> due_;
};

}  // namespace meshrun::coordinator
