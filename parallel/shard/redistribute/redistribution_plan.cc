#include "parallel/shard/redistribute/redistribution_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/redistribute/axis_layout.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
using Step = RedistributionStep;
using Kind = RedistributionStep::Kind;

// A box within another one, counted from where that begins.
Box within(const Box& box, const Box& origin) {
  Box relative = box;
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    relative.offsets[d] = box.sizes[d] == 0 ? 0 : box.offsets[d] - origin.offsets[d];
  }
  return relative;
}

bool is_linear(PartialOp op) { return op == PartialOp::kSum || op == PartialOp::kAvg; }

// "[Shard(0), Replicate] in pieces [3, 2] of dim 0".
std::string described(const ShardLayout& layout) {
  std::string text = to_string(layout.placements());
  for (size_t dim = 0; dim < layout.cuts().size(); ++dim) {
    const DimCut& cut = layout.cuts()[dim];
    if (!cut.axes.empty()) {
      text += fmt::format(" in pieces [{}] of dim {}", fmt::join(cut.sizes, ", "), dim);
    }
  }
  return text;
}

class Planner {
 public:
  Planner(const ShardLayout& from, const ShardLayout& to, const Lengths& coordinate)
      : to_(without_axes_of_one(to)),
        coordinate_(coordinate),
        all_(all_coordinates(from.mesh_shape())),
        present_(without_axes_of_one(from)) {}

  std::vector<Step> steps() && {
    slice();
    reduce();
    slice();
    if (!(present_ == to_)) move();
    return std::move(steps_);
  }

 private:
  size_t num_axes() const { return coordinate_.size(); }
  int64_t extent(size_t axis) const { return to_.mesh_shape()[axis]; }

  // Coordinates of the ranks along the axis, in the order of the axis's group.
  std::vector<Lengths> ranks_along(int64_t axis) const {
    if (axis == Step::kWholeMesh) return all_;
    std::vector<Lengths> ranks(static_cast<size_t>(extent(static_cast<size_t>(axis))), coordinate_);
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i][static_cast<size_t>(axis)] = static_cast<int64_t>(i);
    }
    return ranks;
  }

  Lengths sizes_along(const ShardLayout& layout, int64_t dim, int64_t axis) const {
    Lengths sizes;
    for (const Lengths& rank : ranks_along(axis)) {
      sizes.push_back(layout.box(rank).sizes[static_cast<size_t>(dim)]);
    }
    return sizes;
  }

  // What this rank's piece of `dim` has in common with each rank's.
  Lengths common_along(const ShardLayout& own, const ShardLayout& others, int64_t dim,
                       int64_t axis) const {
    const Box piece = own.box(coordinate_);
    Lengths sizes;
    for (const Lengths& rank : ranks_along(axis)) {
      sizes.push_back(intersect(piece, others.box(rank)).sizes[static_cast<size_t>(dim)]);
    }
    return sizes;
  }

  void push(Step step, ShardLayout after) {
    step.shape = after.box(coordinate_).sizes;
    steps_.push_back(std::move(step));
    present_ = std::move(after);
  }

  // All axes that become Shard, and are Replicate, where pieces nest.
  void slice() {
    const Box before = present_.box(coordinate_);
    bool any = false;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (!present_.placements()[axis].is_replicate() || !to_.placements()[axis].is_shard()) {
        continue;
      }
      if (auto after = placed(present_, to_, axis)) {
        present_ = *std::move(after);
        any = true;
      }
    }
    if (!any) return;
    Step step{.is_on_wire = false};
    step.own_from = within(present_.box(coordinate_), before);
    push(std::move(step), present_);
  }

  bool is_reduced(size_t axis) const {
    return present_.placements()[axis].is_partial() && !to_.placements()[axis].is_partial();
  }

  void reduce() {
    bool linear = true;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (is_reduced(axis)) linear &= is_linear(present_.placements()[axis].op());
    }
    for (size_t axis = 0; linear && axis < num_axes(); ++axis) {
      if (!is_reduced(axis) || !to_.placements()[axis].is_shard()) continue;
      if (auto after = placed(present_, to_, axis)) reduce_scatter(axis, *std::move(after));
    }
    if (reduce_everywhere()) return;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (is_reduced(axis)) all_reduce(static_cast<int64_t>(axis), extent(axis), {axis});
    }
  }

  void reduce_scatter(size_t axis, ShardLayout after) {
    Step step{.kind = Kind::kReduceScatter, .axis = static_cast<int64_t>(axis)};
    step.op = present_.placements()[axis].op();
    step.sent_dim = to_.placements()[axis].dim();
    step.sent_sizes = sizes_along(after, step.sent_dim, step.axis);
    step.received_elements = (extent(axis) - 1) * numel(after.box(coordinate_));
    push(std::move(step), std::move(after));
  }

  void all_reduce(int64_t group, int64_t ranks, const std::vector<size_t>& axes) {
    Step step{.kind = Kind::kAllReduce, .axis = group};
    Placements placements = present_.placements();
    step.op = placements[axes.front()].op();
    for (const size_t axis : axes) placements[axis] = Replicate();
    const int64_t elements = numel(present_.box(coordinate_));
    step.received_elements = 2 * (ranks - 1) * ((elements + ranks - 1) / ranks);
    push(std::move(step), present_.with_placements(placements));
  }

  // One all-reduce of all ranks, where each axis has the same reduction.
  bool reduce_everywhere() {
    std::vector<size_t> axes;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (extent(axis) == 1) continue;
      if (!is_reduced(axis)) return false;
      axes.push_back(axis);
      if (present_.placements()[axis] != present_.placements()[axes.front()]) return false;
    }
    if (axes.size() < 2) return false;
    all_reduce(Step::kWholeMesh, static_cast<int64_t>(all_.size()), axes);
    return true;
  }

  // Along single axes where that costs no byte more, else all at once.
  void move() {
    const ShardLayout start = present_;
    const size_t kept = steps_.size();
    std::vector<ShardLayout> passed = {start};
    if (!gather_everywhere()) {
      while (!(present_ == to_) && move_along_an_axis()) passed.push_back(present_);
    }
    const bool arrives = present_ == to_;
    const bool is_least =
        passed.size() <= 2 || std::all_of(all_.begin(), all_.end(), [&](const Lengths& rank) {
          int64_t received = 0;
          for (size_t i = 1; i < passed.size(); ++i) {
            received += lacking_elements(passed[i - 1], passed[i], rank);
          }
          return received == lacking_elements(start, to_, rank);
        });
    if (arrives && is_least) return;
    steps_.resize(kept);
    present_ = start;
    exchange();
  }

  // One dimension cut by all axes, and whole afterwards.
  bool gather_everywhere() {
    int64_t dim = -1;
    int axes = 0;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (extent(axis) == 1) continue;
      const Placement placement = present_.placements()[axis];
      if (!placement.is_shard() || !to_.placements()[axis].is_replicate()) return false;
      if (dim >= 0 && placement.dim() != dim) return false;
      dim = placement.dim();
      ++axes;
    }
    if (axes < 2) return false;
    all_gather(Step::kWholeMesh, dim, to_);
    return true;
  }

  bool move_along_an_axis() {
    // Gathers last: what they move is the smaller.
    for (const bool gathers : {false, true}) {
      for (size_t i = num_axes(); i-- > 0;) {
        const Placement before = present_.placements()[i];
        const Placement after = to_.placements()[i];
        if (!before.is_shard() && !after.is_shard()) continue;
        if (after.is_replicate() != gathers) continue;
        auto next = placed(present_, to_, i);
        if (!next || *next == present_) continue;
        const auto axis = static_cast<int64_t>(i);
        if (gathers) {
          all_gather(axis, before.dim(), *std::move(next));
        } else if (before.is_shard()) {
          all_to_all(axis, before.dim(), after.dim(), *std::move(next));
        } else {
          slice();
        }
        return true;
      }
    }
    return false;
  }

  void all_gather(int64_t axis, int64_t dim, ShardLayout after) {
    Step step{.kind = Kind::kAllGather, .axis = axis};
    step.sent_dim = dim;
    step.sent_sizes = sizes_along(present_, dim, axis);
    step.received_elements = lacking_elements(present_, after, coordinate_);
    push(std::move(step), std::move(after));
  }

  void all_to_all(int64_t axis, int64_t before, int64_t after_dim, ShardLayout after) {
    Step step{.kind = Kind::kAllToAll, .axis = axis};
    step.sent_dim = after_dim;
    step.received_dim = before;
    if (before == after_dim) {
      step.sent_sizes = common_along(present_, after, before, axis);
      step.received_sizes = common_along(after, present_, before, axis);
    } else {
      step.sent_sizes = sizes_along(after, after_dim, axis);
      step.received_sizes = sizes_along(present_, before, axis);
    }
    step.received_elements = lacking_elements(present_, after, coordinate_);
    push(std::move(step), std::move(after));
  }

  // The one axis along which anything moves, or the whole mesh; absent where nothing moves.
  std::optional<int64_t> moving_axis() const {
    std::vector<bool> moves(num_axes());
    for (const Lengths& a : all_) {
      const Box box = to_.box(a);
      for (const Lengths& b : all_) {
        if (!share_copies(present_, a, b) || numel(intersect(present_.box(b), box)) == 0) continue;
        for (size_t axis = 0; axis < num_axes(); ++axis) {
          if (a[axis] != b[axis]) moves[axis] = true;
        }
      }
    }
    const auto count = std::count(moves.begin(), moves.end(), true);
    if (count == 0) return std::nullopt;
    if (count > 1) return Step::kWholeMesh;
    return std::find(moves.begin(), moves.end(), true) - moves.begin();
  }

  void exchange() {
    const auto axis = moving_axis();
    Step step{.kind = Kind::kExchange, .axis = axis.value_or(Step::kWholeMesh)};
    step.is_on_wire = axis.has_value();
    const Box held = present_.box(coordinate_);
    const Box wanted = to_.box(coordinate_);
    const Box nothing{Lengths(held.sizes.size()), Lengths(held.sizes.size())};
    for (const Lengths& rank : ranks_along(step.axis)) {
      const bool is_peer = rank != coordinate_ && share_copies(present_, rank, coordinate_);
      step.sent.push_back(is_peer ? within(intersect(held, to_.box(rank)), held) : nothing);
      step.received.push_back(is_peer ? within(intersect(present_.box(rank), wanted), wanted)
                                      : nothing);
      step.sent_sizes.push_back(is_peer ? numel(step.sent.back()) : 0);
      step.received_sizes.push_back(is_peer ? numel(step.received.back()) : 0);
      step.received_elements += step.received_sizes.back();
    }
    const Box own = intersect(held, wanted);
    step.own_from = within(own, held);
    step.own_to = within(own, wanted);
    push(std::move(step), to_);
  }

  const ShardLayout to_;
  const Lengths& coordinate_;
  const std::vector<Lengths> all_;
  ShardLayout present_;
  std::vector<Step> steps_;
};

// A part of the global tensor that goes from one rank to another.
struct Transfer {
  size_t sender;
  size_t receiver;
  Box box;
};

// All ranks' transfers, the same on all of them. Ranks are numbers of `from`'s mesh.
std::vector<Transfer> transfers(const ShardLayout& from, const std::vector<Lengths>& from_ranks,
                                const std::vector<Box>& wanted) {
  struct Piece {
    Box box;
    std::vector<size_t> owners;
  };
  std::map<Lengths, Piece> pieces;  // by place along every dimension
  std::vector<const Piece*> held;
  for (size_t rank = 0; rank < from_ranks.size(); ++rank) {
    Lengths place;
    for (int64_t dim = 0; dim < from.ndim(); ++dim) {
      place.push_back(from.piece(dim, from_ranks[rank]));
    }
    Piece& piece = pieces[place];
    if (piece.owners.empty()) piece.box = from.box(from_ranks[rank]);
    piece.owners.push_back(rank);
    held.push_back(&piece);
  }
  std::vector<Transfer> all;
  Lengths sent(from_ranks.size());
  for (size_t receiver = 0; receiver < from_ranks.size(); ++receiver) {
    for (const auto& [place, piece] : pieces) {
      if (held[receiver] == &piece) continue;
      Box box = intersect(piece.box, wanted[receiver]);
      const int64_t elements = numel(box);
      if (elements == 0) continue;
      const size_t sender =
          *std::min_element(piece.owners.begin(), piece.owners.end(),
                            [&](size_t a, size_t b) { return sent[a] < sent[b]; });
      sent[sender] += elements;
      all.push_back({sender, receiver, std::move(box)});
    }
  }
  return all;
}

// From a layout without Partial. Rank `self` holds the box from.box(from_ranks[self]).
Step mesh_change(const ShardLayout& from, const std::vector<Lengths>& from_ranks,
                 const std::vector<Box>& wanted, size_t self) {
  Step step{.kind = Kind::kExchange, .axis = Step::kWholeMesh};
  const Box held = from.box(from_ranks[self]);
  const Box& own = wanted[self];
  const Box nothing{Lengths(held.sizes.size()), Lengths(held.sizes.size())};
  step.sent.assign(from_ranks.size(), nothing);
  step.received.assign(from_ranks.size(), nothing);
  step.sent_sizes.resize(from_ranks.size());
  step.received_sizes.resize(from_ranks.size());
  const std::vector<Transfer> all = transfers(from, from_ranks, wanted);
  step.is_on_wire = !all.empty();
  for (const Transfer& transfer : all) {
    if (transfer.sender == self) {
      step.sent[transfer.receiver] = within(transfer.box, held);
      step.sent_sizes[transfer.receiver] = numel(transfer.box);
    }
    if (transfer.receiver == self) {
      step.received[transfer.sender] = within(transfer.box, own);
      step.received_sizes[transfer.sender] = numel(transfer.box);
      step.received_elements += numel(transfer.box);
    }
  }
  const Box kept = intersect(held, own);
  step.own_from = within(kept, held);
  step.own_to = within(kept, own);
  step.shape = own.sizes;
  return step;
}

}  // namespace

int64_t RedistributionPlan::received_elements() const {
  int64_t elements = 0;
  for (const RedistributionStep& step : steps) elements += step.received_elements;
  return elements;
}

int64_t lacking_elements(const ShardLayout& from, const ShardLayout& to,
                         const std::vector<int64_t>& coordinate) {
  const Box wanted = to.box(coordinate);
  return numel(wanted) - numel(intersect(from.box(coordinate), wanted));
}

RedistributionPlan plan_redistribution(const ShardLayout& from, const ShardLayout& to,
                                       const std::vector<int64_t>& coordinate) {
  RedistributionPlan plan;
  plan.steps = Planner(from, to, coordinate).steps();
  plan.digest = (from.hash() * 0x9e37'79b9'7f4a'7c15 + to.hash()) | 1;  // 0: nothing to compare
  plan.words = fmt::format(" (redistribution of [{}] from {} to {})",
                           fmt::join(from.global_shape(), ", "), described(from), described(to));
  return plan;
}

RedistributionPlan plan_mesh_change(const ShardLayout& from, const ShardLayout& to,
                                    const std::vector<int64_t>& numbers,
                                    const std::vector<int64_t>& coordinate) {
  Placements placements = from.placements();
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  const ShardLayout reduced = from.with_placements(placements);
  const std::vector<Lengths> from_ranks = all_coordinates(from.mesh_shape());
  const std::vector<Lengths> to_ranks = all_coordinates(to.mesh_shape());
  std::vector<Box> wanted;
  for (const int64_t number : numbers) {
    wanted.push_back(to.box(to_ranks[static_cast<size_t>(number)]));
  }
  const auto self = static_cast<size_t>(
      std::find(from_ranks.begin(), from_ranks.end(), coordinate) - from_ranks.begin());
  RedistributionPlan plan;
  plan.steps = Planner(from, reduced, coordinate).steps();
  plan.steps.push_back(mesh_change(reduced, from_ranks, wanted, self));
  plan.digest = from.hash() * 0x9e37'79b9'7f4a'7c15 + to.hash();
  for (const int64_t number : numbers) {
    plan.digest = (plan.digest ^ static_cast<uint64_t>(number)) * 0x9e37'79b9'7f4a'7c15;
  }
  plan.digest |= 1;  // 0: nothing to compare
  plan.words = fmt::format(
      " (redistribution of [{}] from {} on a mesh of {} to {} on a mesh of {}, where its ranks are "
      "[{}])",
      fmt::join(from.global_shape(), ", "), described(from), fmt::join(from.mesh_shape(), "x"),
      described(to), fmt::join(to.mesh_shape(), "x"), fmt::join(numbers, ", "));
  return plan;
}

}  // namespace meshrun
