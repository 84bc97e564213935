#include "parallel/collectives/call/pieces.h"

#include <cstddef>
#include <utility>

namespace meshrun {
namespace {

std::string number(int64_t value) { return std::to_string(value); }

// The extents that `sizes` give, or a problem.
std::string read_sizes(const Sizes& sizes, at::IntArrayRef shape, int64_t dim, Extents& extents) {
  if (!sizes.is_full()) {
    extents.append(sizes.extents().begin(), sizes.extents().end());
    return {};
  }
  for (size_t r = 0; r < sizes.shapes().size(); ++r) {
    const Sizes::Shape& full = sizes.shapes()[r];
    bool fits = full.size() == shape.size();
    for (size_t d = 0; fits && d < full.size(); ++d) {
      fits = static_cast<int64_t>(d) == dim || full[d] == shape[d];
    }
    if (!fits) {
      return "sizes[" + std::to_string(r) + "] is the shape " + to_words(full) +
             ", which differs from the tensor's " + to_words(shape) + " beside dim " + number(dim);
    }
    extents.push_back(full[static_cast<size_t>(dim)]);
  }
  return {};
}

// Without sizes: all alike.
std::string equal_sizes(Role role, int64_t extent, int64_t dim, int world, Extents& extents) {
  switch (role) {
    case Role::kPiece:
      extents.assign(static_cast<size_t>(world), extent);
      return {};
    case Role::kWhole:
      if (extent % world != 0) {
        return "the tensor has " + number(extent) + " along dim " + number(dim) +
               ", which cannot be cut into " + number(world) +
               " equal pieces; pass sizes for uneven ones";
      }
      extents.assign(static_cast<size_t>(world), extent / world);
      return {};
    case Role::kTemplate:
      break;
  }
  return "sizes is absent, and cannot be told from a template";
}

}  // namespace

std::string wrap_dim(std::string_view name, int64_t& dim, int64_t ndim) {
  if (ndim == 0) return "the tensor has no dimensions; at least one is needed to cut it along";
  if (dim < -ndim || dim >= ndim) {
    return std::string(name) + " is " + number(dim) + " for a tensor of " + number(ndim) +
           (ndim == 1 ? " dimension; " : " dimensions; ") + number(-ndim) + " to " +
           number(ndim - 1) + " is expected";
  }
  if (dim < 0) dim += ndim;
  return {};
}

std::string check_piece(std::string_view name, at::IntArrayRef sizes, int rank, int64_t extent,
                        int64_t dim) {
  const int64_t own = sizes[static_cast<size_t>(rank)];
  if (own == extent) return {};
  return std::string(name) + "[" + number(rank) + "] is " + number(own) + " on rank " +
         number(rank) + ", whose tensor has " + number(extent) + " along dim " + number(dim);
}

Pieces cut(Role role, const Sizes& sizes, at::IntArrayRef shape, int64_t dim, int rank, int world) {
  Pieces pieces;
  pieces.problem = wrap_dim("dim", dim, static_cast<int64_t>(shape.size()));
  if (!pieces.problem.empty()) return pieces;
  pieces.dim = dim;
  const int64_t extent = shape[static_cast<size_t>(dim)];
  pieces.problem = sizes.is_absent() ? equal_sizes(role, extent, dim, world, pieces.extents)
                                     : read_sizes(sizes, shape, dim, pieces.extents);
  if (!pieces.problem.empty()) return pieces;
  pieces.problem =
      check_extents("sizes", pieces.extents, role == Role::kWhole ? extent : -1, world);
  if (!pieces.problem.empty()) return pieces;
  if (role == Role::kPiece) {
    pieces.problem = check_piece("sizes", pieces.extents, rank, extent, dim);
    if (!pieces.problem.empty()) return pieces;
  }
  for (const int64_t piece : pieces.extents) pieces.total += piece;
  return pieces;
}

}  // namespace meshrun
