// The `sizes` argument of collectives: how large each rank's piece is along the dimension.
//
//   {}                          all pieces as large as this rank's
//   {3, 2, 4}                   one extent per rank
//   {{3, 8}, {2, 8}, {4, 8}}    one full shape per rank; extents beside dim must equal the tensor's
//
// Pure. No errors here: pieces.h reports sizes that do not fit, to all ranks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "c10/util/ArrayRef.h"

namespace meshrun {

class Sizes {
 public:
  using Shape = std::vector<int64_t>;

  Sizes() = default;
  Sizes(std::nullopt_t) {}             // NOLINT(google-explicit-constructor)
  Sizes(std::vector<int64_t> extents)  // NOLINT(google-explicit-constructor)
      : is_absent_(false), extents_(std::move(extents)) {}
  Sizes(std::initializer_list<int64_t> extents) : Sizes(std::vector<int64_t>(extents)) {}
  Sizes(at::IntArrayRef extents) : Sizes(extents.vec()) {}  // NOLINT(google-explicit-constructor)
  Sizes(std::vector<Shape> shapes)                          // NOLINT(google-explicit-constructor)
      : is_absent_(false), is_full_(true), shapes_(std::move(shapes)) {}
  Sizes(std::initializer_list<Shape> shapes) : Sizes(std::vector<Shape>(shapes)) {}

  bool is_absent() const { return is_absent_; }
  // Full shapes: shapes(); else extents().
  bool is_full() const { return is_full_; }
  const std::vector<int64_t>& extents() const { return extents_; }
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  bool is_absent_ = true;
  bool is_full_ = false;
  std::vector<int64_t> extents_;
  std::vector<Shape> shapes_;
};

}  // namespace meshrun
