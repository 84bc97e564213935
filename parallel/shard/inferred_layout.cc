#include "parallel/shard/inferred_layout.h"

#include <algorithm>
#include <string>

#include "ATen/ops/tensor.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/sharded_key.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/plans/transpose_plan.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

enum class State : int64_t { kPlain, kUndefined, kSharded };

// What a rank says of its part. On the wire it is a list of numbers, each list behind its length: a
// rank's placements may be more or fewer than another's.
struct Part {
  State state = State::kPlain;
  at::ScalarType dtype = at::kFloat;
  Placements placements;
  std::optional<Placements> grad_placements;
  Lengths shape;
  std::optional<Lengths> global_shape;

  // What all ranks have alike.
  std::string to_string() const {
    std::string text = fmt::format("{}, {} dimensions and {}", c10::toString(dtype), shape.size(),
                                   meshrun::to_string(placements));
    if (grad_placements) text += ", gradients " + meshrun::to_string(*grad_placements);
    return text;
  }
};

Part part_of(const at::Tensor& local, const Placements& placements,
             const std::optional<Lengths>& global_shape,
             const std::optional<Placements>& grad_placements) {
  Part part;
  part.placements = placements;
  part.grad_placements = grad_placements;
  part.global_shape = global_shape;
  if (!local.defined()) {
    part.state = State::kUndefined;
  } else if (is_sharded(local)) {
    part.state = State::kSharded;
  } else {
    part.dtype = local.scalar_type();
    part.shape = local.sizes().vec();
  }
  return part;
}

Lengths to_numbers(const Part& part) {
  Lengths numbers = {static_cast<int64_t>(part.state), static_cast<int64_t>(part.dtype)};
  const auto append = [&](const Lengths& list) {
    numbers.push_back(static_cast<int64_t>(list.size()));
    numbers.insert(numbers.end(), list.begin(), list.end());
  };
  const auto append_placements = [&](const Placements& placements) {
    Lengths list;
    for (const Placement& placement : placements) {
      list.push_back(static_cast<int64_t>(placement.kind()));
      list.push_back(placement.is_partial() ? static_cast<int64_t>(placement.op())
                                            : placement.dim());
    }
    append(list);
  };
  append_placements(part.placements);
  numbers.push_back(part.grad_placements.has_value() ? 1 : 0);
  append_placements(part.grad_placements.value_or(Placements{}));
  append(part.shape);
  numbers.push_back(part.global_shape.has_value() ? 1 : 0);
  append(part.global_shape.value_or(Lengths{}));
  return numbers;
}

Placement placement_of(int64_t kind, int64_t value) {
  switch (static_cast<Placement::Kind>(kind)) {
    case Placement::Kind::kShard:
      return Placement::shard(value);
    case Placement::Kind::kPartial:
      return Placement::partial(static_cast<PartialOp>(value));
    case Placement::Kind::kReplicate:
      break;
  }
  return Replicate();
}

// Moves `numbers` behind what it reads.
Part from_numbers(const int64_t*& numbers) {
  Part part;
  part.state = static_cast<State>(*numbers++);
  part.dtype = static_cast<at::ScalarType>(*numbers++);
  const auto list = [&] {
    const int64_t size = *numbers++;
    Lengths values(numbers, numbers + size);
    numbers += size;
    return values;
  };
  const auto placements = [&] {
    const Lengths values = list();
    Placements read;
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
      read.push_back(placement_of(values[i], values[i + 1]));
    }
    return read;
  };
  part.placements = placements();
  const bool has_grad_placements = *numbers++ != 0;
  Placements grad_placements = placements();
  if (has_grad_placements) part.grad_placements = std::move(grad_placements);
  part.shape = list();
  const bool has_global_shape = *numbers++ != 0;
  Lengths global_shape = list();
  if (has_global_shape) part.global_shape = std::move(global_shape);
  return part;
}

// Parts of all ranks of the mesh, in row-major order.
std::vector<Part> gather_parts(const Part& own, const at::Tensor& local, const ShardMesh& mesh) {
  const GroupArgument group(mesh.group());
  // No device of its own where the tensor is wrong: that of the other ranks, most likely.
  const at::Device device = own.state == State::kUndefined ? mesh.device() : local.device();
  const at::Tensor numbers = at::tensor(to_numbers(own), at::kLong).to(device);
  const Lengths lengths = gather_extents(numbers.numel(), "", group, numbers);
  const at::Tensor all = all_gather_v(numbers, Sizes(lengths), 0, true, group).cpu();
  const auto* next = all.const_data_ptr<int64_t>();
  std::vector<Part> parts;
  for (size_t rank = 0; rank < lengths.size(); ++rank) parts.push_back(from_numbers(next));
  return parts;
}

void check_state(State state, const Lengths& coordinate) {
  if (state == State::kPlain) return;
  throw ShardLayoutError(fmt::format(
      "from_local takes a plain local tensor, and at mesh coordinate [{}] it is {}",
      fmt::join(coordinate, ", "), state == State::kUndefined ? "undefined" : "a ShardTensor"));
}

}  // namespace

ShardLayout inferred_layout(const at::Tensor& local, const ShardMesh& mesh,
                            const Placements& placements,
                            const std::optional<Lengths>& global_shape,
                            const std::optional<Placements>& grad_placements) {
  const std::vector<Part> parts =
      gather_parts(part_of(local, placements, global_shape, grad_placements), local, mesh);
  const auto coordinates = all_coordinates(mesh.shape());
  std::vector<Lengths> shapes;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    check_state(parts[rank].state, coordinates[rank]);
    shapes.push_back(parts[rank].shape);
  }
  const std::string first = parts.front().to_string();
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const std::string said = parts[rank].to_string();
    if (said == first) continue;
    throw ShardLayoutError(fmt::format(
        "from_local: ranks have other dtypes, another number of dimensions or other "
        "placements: {} at mesh coordinate [{}], {} at [{}]",
        first, fmt::join(coordinates.front(), ", "), said, fmt::join(coordinates[rank], ", ")));
  }
  ShardLayout layout = ShardLayout::infer(mesh.shape(), parts.front().placements, shapes);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const std::optional<Lengths>& given = parts[rank].global_shape;
    if (!given || *given == layout.global_shape()) continue;
    throw ShardLayoutError(fmt::format(
        "from_local: the parts make [{}], and the global shape is said to be [{}] at mesh "
        "coordinate [{}]",
        fmt::join(layout.global_shape(), ", "), fmt::join(*given, ", "),
        fmt::join(coordinates[rank], ", ")));
  }
  return layout;
}

}  // namespace meshrun
