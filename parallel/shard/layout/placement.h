// How a global tensor lies along one axis of a mesh.
//
//   Shard(dim)     the ranks along the axis hold consecutive pieces of dimension `dim`; pieces may
//                  be uneven and empty
//   Replicate()    they hold the same values
//   Partial(op)    each holds a summand (or factor, or candidate): the tensor is their reduction
//
// Values, without LibTorch. A negative dim counts from the back of the tensor; a ShardLayout counts
// from the front. Corresponds to torch.distributed.tensor's Shard, Replicate and Partial.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

enum class PartialOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax };

class Placement {
 public:
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };

  constexpr Placement() = default;  // Replicate
  static constexpr Placement shard(IntArgument dim) { return {Kind::kShard, dim, PartialOp::kSum}; }
  static constexpr Placement partial(PartialOp op) { return {Kind::kPartial, 0, op}; }
  // Partial(sum) whose summands are zeros, except that of the rank at `coordinate` along the axis:
  // one row of a sharded dimension is such a tensor, and may share that rank's memory.
  static constexpr Placement held_by(IntArgument coordinate) {
    return {Kind::kPartial, coordinate + 1, PartialOp::kSum};
  }

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_replicate() const { return kind_ == Kind::kReplicate; }
  constexpr bool is_shard() const { return kind_ == Kind::kShard; }
  constexpr bool is_shard(IntArgument dim) const { return is_shard() && dim_ == dim; }
  constexpr bool is_partial() const { return kind_ == Kind::kPartial; }
  // Dimension that a Shard cuts.
  constexpr int64_t dim() const { return dim_; }
  // Operation that reduces a Partial.
  constexpr PartialOp op() const { return op_; }
  // Coordinate that held_by() gave a Partial; -1: any rank may have a summand.
  constexpr int64_t holder() const { return dim_ - 1; }

  constexpr bool operator==(const Placement&) const = default;

 private:
  constexpr Placement(Kind kind, int64_t dim, PartialOp op) : kind_(kind), op_(op), dim_(dim) {}

  Kind kind_ = Kind::kReplicate;
  PartialOp op_ = PartialOp::kSum;
  int64_t dim_ = 0;
};

// One for each axis of a mesh.
using Placements = std::vector<Placement>;

inline Placement Shard(IntArgument dim) { return Placement::shard(dim); }
inline Placement Replicate() { return {}; }
inline Placement Partial(PartialOp op = PartialOp::kSum) { return Placement::partial(op); }

// Placements that a call may leave out. A list stands for itself: from_local(x, mesh, {Shard(0)}).
class OptionalPlacements {
 public:
  OptionalPlacements() = default;
  OptionalPlacements(std::nullopt_t) {}  // NOLINT(google-explicit-constructor)
  OptionalPlacements(std::initializer_list<Placement> placements)
      : placements_(Placements(placements)) {}
  OptionalPlacements(Placements placements)  // NOLINT(google-explicit-constructor)
      : placements_(std::move(placements)) {}
  OptionalPlacements(std::optional<Placements> placements)  // NOLINT(google-explicit-constructor)
      : placements_(std::move(placements)) {}

  explicit operator bool() const { return placements_.has_value(); }
  // Where there are any.
  const Placements& operator*() const { return *placements_; }
  Placements value_or(Placements otherwise) const {
    return placements_.value_or(std::move(otherwise));
  }

 private:
  std::optional<Placements> placements_;
};

// "sum", "avg", "product", "min", "max".
const char* to_string(PartialOp op);
// "Shard(1)", "Replicate", "Partial(sum)".
std::string to_string(const Placement& placement);
// "[Shard(1), Replicate]".
std::string to_string(const Placements& placements);

}  // namespace meshrun
