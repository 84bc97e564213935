// Mesh arithmetic, for the control plane and for parallel/: the text of --mesh, the resolution of
// -1, coordinates, slices and axis groups. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

struct Axis {
  std::string name;
  // -1 until resolved, on one axis at most.
  int64_t size = 0;
  bool operator==(const Axis&) const = default;
};

// "dp=-1,spatial=2". INVALID_ARGUMENT names the part that is wrong and shows a right one.
absl::StatusOr<std::vector<Axis>> ParseMesh(std::string_view text);
std::string FormatMesh(const std::vector<Axis>& axes);

// Names are distinct and of [a-zA-Z_][a-zA-Z0-9_]*, sizes positive, at most one -1.
// INVALID_ARGUMENT.
absl::Status CheckMesh(const std::vector<Axis>& axes);

// Replaces -1. Axes may have any distinct names. INVALID_ARGUMENT: a size is wrong, or the product
// and the world size, both named, do not fit.
absl::StatusOr<std::vector<Axis>> ResolveMesh(const std::vector<Axis>& axes, int64_t world_size);

// The largest world of at most `world_size` ranks, in steps of `unit` ranks, that the mesh divides;
// 0 when there is none. Without -1 that is the product itself.
int64_t LargestMeshWorld(const std::vector<Axis>& axes, int64_t world_size, int64_t unit);

// One coordinate per axis; the last axis varies fastest.
std::vector<int64_t> MeshCoordinates(const std::vector<Axis>& resolved, int64_t rank);

// The positions that have `position`'s coordinates on every axis not `along` (one bool per axis),
// in order.
std::vector<int64_t> MeshSlice(const std::vector<Axis>& resolved, const std::vector<bool>& along,
                               int64_t position);

// The ranks that differ from `rank` along `axis` alone, in order of that coordinate.
std::vector<int> AxisGroup(const std::vector<Axis>& resolved, size_t axis, int64_t rank);

}  // namespace meshrun
