#include "core/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace meshrun {
namespace {

constexpr std::string_view kExample = "write for example --mesh dp=-1,spatial=2";

bool IsAxisName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

// Product of the fixed axes; saturates far above any world.
int64_t FixedProduct(const std::vector<Axis>& axes) {
  int64_t product = 1;
  for (const Axis& axis : axes) {
    if (axis.size > 0) product = std::min<int64_t>(product * axis.size, int64_t{1} << 40);
  }
  return product;
}

bool HasFreeAxis(const std::vector<Axis>& axes) {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& a) { return a.size == -1; });
}

}  // namespace

absl::StatusOr<std::vector<Axis>> ParseMesh(std::string_view text) {
  std::vector<Axis> axes;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("mesh axis '{}' has no '=size': {}", part, kExample));
    }
    Axis axis{std::string(part.substr(0, equals)), 0};
    const std::string_view size = part.substr(equals + 1);
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), axis.size);
    if (error != std::errc{} || end != size.data() + size.size() || size.empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "size '{}' of mesh axis '{}' is not an integer: {}", size, axis.name, kExample));
    }
    axes.push_back(std::move(axis));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (absl::Status status = CheckMesh(axes); !status.ok()) return status;
  return axes;
}

std::string FormatMesh(const std::vector<Axis>& axes) {
  std::string out;
  for (const Axis& axis : axes) {
    out += fmt::format("{}{}={}", out.empty() ? "" : ",", axis.name, axis.size);
  }
  return out;
}

absl::Status CheckMesh(const std::vector<Axis>& axes) {
  const Axis* free = nullptr;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (!IsAxisName(axis.name)) {
      return absl::InvalidArgumentError(
          fmt::format("mesh axis name '{}' is not a letter followed by letters, digits or '_': {}",
                      axis.name, kExample));
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        return absl::InvalidArgumentError(fmt::format("mesh axis '{}' is named twice", axis.name));
      }
    }
    if (axis.size == -1) {
      if (free != nullptr) {
        return absl::InvalidArgumentError(
            fmt::format("mesh axes '{}' and '{}' are both -1: at most one size can be left open",
                        free->name, axis.name));
      }
      free = &axis;
    } else if (axis.size < 1) {
      return absl::InvalidArgumentError(
          fmt::format("mesh axis '{}' has size {}: sizes are positive, or -1 for one of them",
                      axis.name, axis.size));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Axis>> ResolveMesh(const std::vector<Axis>& axes, int64_t world_size) {
  if (absl::Status status = CheckMesh(axes); !status.ok()) return status;
  const int64_t fixed = FixedProduct(axes);
  if (!HasFreeAxis(axes)) {
    if (fixed != world_size) {
      return absl::InvalidArgumentError(fmt::format(
          "mesh {} needs {} ranks, but the job has {}: change the mesh or the number of "
          "ranks, or leave one size open with -1",
          FormatMesh(axes), fixed, world_size));
    }
    return axes;
  }
  if (world_size % fixed != 0) {
    return absl::InvalidArgumentError(
        fmt::format("mesh {} needs a multiple of {} ranks, but the job has {}", FormatMesh(axes),
                    fixed, world_size));
  }
  std::vector<Axis> resolved = axes;
  for (Axis& axis : resolved) {
    if (axis.size == -1) axis.size = world_size / fixed;
  }
  return resolved;
}

int64_t LargestMeshWorld(const std::vector<Axis>& axes, int64_t world_size, int64_t unit) {
  const int64_t fixed = FixedProduct(axes);
  for (int64_t world = world_size - world_size % unit; world > 0; world -= unit) {
    if (HasFreeAxis(axes) || axes.empty() ? world % fixed == 0 : world == fixed) return world;
  }
  return 0;
}

std::vector<int64_t> MeshCoordinates(const std::vector<Axis>& resolved, int64_t rank) {
  std::vector<int64_t> coordinates(resolved.size());
  for (size_t i = resolved.size(); i-- > 0;) {
    coordinates[i] = rank % resolved[i].size;
    rank /= resolved[i].size;
  }
  return coordinates;
}

std::vector<int> AxisGroup(const std::vector<Axis>& resolved, size_t axis, int64_t rank) {
  int64_t stride = 1;
  for (size_t i = axis + 1; i < resolved.size(); ++i) stride *= resolved[i].size;
  const int64_t first = rank - MeshCoordinates(resolved, rank)[axis] * stride;
  std::vector<int> ranks;
  for (int64_t i = 0; i < resolved[axis].size; ++i) {
    ranks.push_back(static_cast<int>(first + i * stride));
  }
  return ranks;
}

}  // namespace meshrun
