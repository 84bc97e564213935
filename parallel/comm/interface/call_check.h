// What is wrong with the arguments of a collective: the first thing, in the same words on every
// backend.
//
//   CallCheck check(std::move(call.problem));   // what the caller has found
//   if (check.are_sizes(sizes, world) && check.is_dense(input, "the input") &&
//       check.has_extent(input, dim, sizes[rank], "the input")) { ... }
//
// A problem is a text and never an exception: the other ranks wait for the call and must learn of
// it. After the first one nothing more is looked at, and every check says false. Names are those of
// the caller's arguments, and begin the sentence.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ATen/core/Tensor.h"
#include "parallel/comm/interface/collective_spec.h"

namespace meshrun {

class CallCheck {
 public:
  explicit CallCheck(std::string problem = {}) : problem_(std::move(problem)) {}

  // Empty: none.
  const std::string& problem() const { return problem_; }
  std::string take_problem() { return std::move(problem_); }
  bool is_wrong() const { return !problem_.empty(); }
  void wrong(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
  }
  // `text` is a function, called where the condition does not hold.
  template <typename Text>
  bool require(bool holds, const Text& text) {
    if (problem_.empty() && !holds) problem_ = text();
    return problem_.empty();
  }

  // Defined, strided, with memory, not quantized.
  bool is_dense(const at::Tensor& tensor, std::string_view name);
  // No two of its elements are the same memory. Defined.
  bool has_own_elements(const at::Tensor& tensor, std::string_view name);
  // Has `extent` along `dim`, which counts from the front.
  bool has_extent(const at::Tensor& tensor, int64_t dim, int64_t extent, std::string_view name);
  // One for each of `world` ranks, none negative.
  bool are_sizes(at::IntArrayRef sizes, int world, std::string_view name = "sizes");
  bool is_rank(int64_t rank, int world, std::string_view name);
  // Tensors, sizes and root as `spec` has them on `rank` of `world`: a tensor of the root alone is
  // not looked at elsewhere. Says nothing of dtype and device.
  bool fits(const CollectiveSpec& spec, int rank, int world, const at::Tensor& output,
            const at::Tensor& input);
  // Have one shape, except along `dim`.
  bool are_equal_beside(const at::Tensor& input, const at::Tensor& output, int64_t dim);
  bool have_equal_ndim(const at::Tensor& input, const at::Tensor& output);
  bool are_of_one_kind(const at::Tensor& input, const at::Tensor& output);  // dtype and device

 private:
  std::string problem_;
};

}  // namespace meshrun
