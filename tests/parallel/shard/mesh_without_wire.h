// A mesh whose ranks are all in this process, over a backend without wire (loopback_backend.h), and
// what one of its ranks receives, sends and reduces.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#include "fmt/format.h"
#include "parallel/shard/tensor/shard_mesh.h"
#include "tests/parallel/support/loopback_backend.h"

namespace meshrun {

// The mesh as one of its ranks has it.
inline ShardMesh::Ptr mesh_without_wire(const std::vector<int64_t>& shape, int rank) {
  MeshLayout layout{{}, shape, {}};
  int size = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    layout.names.push_back(fmt::format("axis{}", axis));
    size *= static_cast<int>(shape[axis]);
  }
  for (int other = 0; other < size; ++other) layout.ranks.push_back(other);
  const DeviceMesh mesh(layout, rank);
  std::vector<ShardMesh::Group> axes;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    axes.push_back(LoopbackBackend::make_group(static_cast<int>(mesh.get_coordinate()[axis]),
                                               static_cast<int>(shape[axis])));
  }
  return c10::make_intrusive<ShardMesh>(mesh, axes, LoopbackBackend::make_group(rank, size));
}

struct Traffic {
  int64_t received = 0;  // bytes that others had
  int64_t sent = 0;      // in all-to-alls
  int64_t reduced = 0;   // bytes in all-reduces
  int64_t calls = 0;

  bool operator==(const Traffic&) const = default;
  friend void PrintTo(const Traffic& traffic, std::ostream* out) {
    *out << fmt::format("{} received, {} sent, {} reduced, in {} calls", traffic.received,
                        traffic.sent, traffic.reduced, traffic.calls);
  }
};

inline Traffic traffic_of(const ShardMesh& mesh) {
  Traffic all;
  const auto add = [&](const ShardMesh::Group& group) {
    const LoopbackBackend& wire = LoopbackBackend::of(group);
    all.received += wire.bytes_received();
    all.sent += wire.bytes_sent();
    all.reduced += wire.bytes_reduced();
    all.calls += wire.num_calls();
  };
  add(mesh.group());
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) add(mesh.axis_group(axis));
  return all;
}

// The call's alone.
inline Traffic traffic_of(const ShardMesh::Ptr& mesh, const std::function<void()>& call) {
  const Traffic before = traffic_of(*mesh);
  call();
  const Traffic after = traffic_of(*mesh);
  return {after.received - before.received, after.sent - before.sent,
          after.reduced - before.reduced, after.calls - before.calls};
}

}  // namespace meshrun
