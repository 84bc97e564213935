// The queued jobs in the order in which they are placed, and by what they ask for: where one job
// does not fit, no other that asks for the same does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

// Minus the priority, then the order of submission: smaller is earlier.
using QueuePlace = std::pair<int64_t, uint64_t>;

class QueueIndex {
 public:
  // Jobs that ask for the same.
  struct Shape {
    std::string key;
    std::map<QueuePlace, std::string> jobs;
    // Why the first of them got no nodes when it was last looked at.
    std::string refusal;
  };
  struct Entry {
    QueuePlace place;
    std::string job_id;
    Shape* shape = nullptr;
  };

  // `alone`: the job shares its shape with no other.
  void Insert(const QueuePlace& place, const std::string& job_id, const v1::JobSpec& spec,
              bool alone);
  void Erase(const std::string& job_id);

  const Entry* Find(const std::string& job_id) const;
  // The earliest job after `place` that is the first of its shape.
  std::optional<Entry> NextFront(const QueuePlace& place) const;
  // Those inserted since the last call that are still here, in order.
  std::vector<Entry> TakeNew();
  size_t size() const { return entries_.size(); }

 private:
  void Reindex(Shape& shape, const std::optional<QueuePlace>& old_front);

  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<std::string, std::unique_ptr<Shape>> shapes_;
  std::map<QueuePlace, Shape*> fronts_;
  std::vector<std::string> new_;
};

}  // namespace meshrun::coordinator
