#include "coordinator/state_machine/queue_index.h"

#include <algorithm>

namespace meshrun::coordinator {
namespace {

// What decides where a job fits, and for how long it stays there.
std::string ShapeKey(const v1::JobSpec& spec) {
  v1::JobSpec key;
  key.set_shipped_job(spec.shipped_job());
  key.set_min_nodes(spec.min_nodes());
  key.set_max_nodes(spec.max_nodes());
  *key.mutable_procs_per_node() = spec.procs_per_node();
  if (spec.has_gpus_per_proc()) key.set_gpus_per_proc(spec.gpus_per_proc());
  key.set_cpus_per_proc(spec.cpus_per_proc());
  key.set_memory_bytes(spec.memory_bytes());
  *key.mutable_mesh() = spec.mesh();
  if (spec.has_kill_grace()) *key.mutable_kill_grace() = spec.kill_grace();
  if (spec.has_time_limit()) *key.mutable_time_limit() = spec.time_limit();
  *key.mutable_constraints() = spec.constraints();
  *key.mutable_exclude_nodes() = spec.exclude_nodes();
  return key.SerializeAsString();
}

}  // namespace

void QueueIndex::Insert(const QueuePlace& place, const std::string& job_id, const v1::JobSpec& spec,
                        const std::string& apart) {
  Erase(job_id);
  const std::string key = ShapeKey(spec) + apart;
  std::unique_ptr<Shape>& shape = shapes_[key];
  if (shape == nullptr) shape = std::make_unique<Shape>(Shape{.key = key});
  std::optional<QueuePlace> old_front;
  if (!shape->jobs.empty()) old_front = shape->jobs.begin()->first;
  shape->jobs[place] = job_id;
  Reindex(*shape, old_front);
  entries_[job_id] = Entry{place, job_id, shape.get()};
  new_.push_back(job_id);
}

void QueueIndex::Erase(const std::string& job_id) {
  const auto it = entries_.find(job_id);
  if (it == entries_.end()) return;
  Shape& shape = *it->second.shape;
  const QueuePlace old_front = shape.jobs.begin()->first;
  shape.jobs.erase(it->second.place);
  entries_.erase(it);
  Reindex(shape, old_front);
  if (!shape.jobs.empty()) return;
  parked_.erase(&shape);
  shapes_.erase(std::string(shape.key));
}

void QueueIndex::Park(Shape& shape) {
  if (std::exchange(shape.parked, true)) return;
  fronts_.erase(shape.jobs.begin()->first);
  parked_.insert(&shape);
}

void QueueIndex::UnparkAll() {
  for (Shape* const shape : std::exchange(parked_, {})) {
    shape->parked = false;
    Reindex(*shape, std::nullopt);
  }
}

void QueueIndex::Reindex(Shape& shape, const std::optional<QueuePlace>& old_front) {
  if (shape.parked) return;
  if (old_front.has_value()) fronts_.erase(*old_front);
  if (!shape.jobs.empty()) fronts_[shape.jobs.begin()->first] = &shape;
}

const QueueIndex::Entry* QueueIndex::Find(const std::string& job_id) const {
  const auto it = entries_.find(job_id);
  return it == entries_.end() ? nullptr : &it->second;
}

std::optional<QueueIndex::Entry> QueueIndex::NextFront(const QueuePlace& place) const {
  const auto it = fronts_.upper_bound(place);
  if (it == fronts_.end()) return std::nullopt;
  return Entry{it->first, it->second->jobs.begin()->second, it->second};
}

std::vector<QueueIndex::Entry> QueueIndex::TakeNew() {
  std::vector<Entry> out;
  for (const std::string& job_id : std::exchange(new_, {})) {
    if (const Entry* entry = Find(job_id)) out.push_back(*entry);
  }
  const auto earlier = [](const Entry& a, const Entry& b) { return a.place < b.place; };
  std::sort(out.begin(), out.end(), earlier);
  const auto same = [](const Entry& a, const Entry& b) { return a.place == b.place; };
  out.erase(std::unique(out.begin(), out.end(), same), out.end());
  return out;
}

}  // namespace meshrun::coordinator
