// The queued jobs in the order in which they are placed, and by what they ask for: where one job
// does not fit, no other that asks for the same does. Shapes that no node of the cluster could ever
// satisfy are parked: they are no fronts until the nodes change.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

// Smaller is earlier.
struct QueuePlace {
  // Minus the priority.
  int64_t level = 0;
  // When its user's turn begins: turns.h.
  uint64_t turn = 0;
  // Order of submission.
  uint64_t sequence = 0;

  auto operator<=>(const QueuePlace&) const = default;
};

class QueueIndex {
 public:
  // Jobs that ask for the same.
  struct Shape {
    std::string key;
    std::map<QueuePlace, std::string> jobs;
    // Why the first of them got no nodes when it was last looked at; of parked ones, why none of
    // them could run here even alone.
    std::string refusal;
    bool parked = false;
    // The refusal is for a quota: the job waits behind no other.
    bool over_quota = false;
    // Which pass looked at it last, and which nodes it could use if nothing else ran
    // (NodeTable::composition); 0: none.
    uint64_t pass = 0;
    uint64_t fits = 0;
  };
  struct Entry {
    QueuePlace place;
    std::string job_id;
    Shape* shape = nullptr;
  };

  // `apart`: the job shares its shape only with those that have the same.
  void Insert(const QueuePlace& place, const std::string& job_id, const v1::JobSpec& spec,
              const std::string& apart);
  void Erase(const std::string& job_id);

  const Entry* Find(const std::string& job_id) const;
  // The earliest job after `place` that is the first of its shape.
  std::optional<Entry> NextFront(const QueuePlace& place) const;
  // Those inserted since the last call that are still here, in order.
  std::vector<Entry> TakeNew();
  // Its jobs are no fronts until UnparkAll.
  void Park(Shape& shape);
  void UnparkAll();
  size_t size() const { return entries_.size(); }

 private:
  void Reindex(Shape& shape, const std::optional<QueuePlace>& old_front);

  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::string, std::unique_ptr<Shape>> shapes_;
  // Fronts of shapes that are not parked.
  std::map<QueuePlace, Shape*> fronts_;
  std::unordered_set<Shape*> parked_;
  std::vector<std::string> new_;
};

}  // namespace meshrun::coordinator
