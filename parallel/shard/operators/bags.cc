#include "parallel/shard/operators/bags.h"

#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/_embedding_bag_forward_only.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/embedding_bag.h"
#include "ATen/ops/full_like.h"
#include "ATen/ops/gather.h"
#include "ATen/ops/nan_to_num.h"
#include "ATen/ops/searchsorted.h"
#include "ATen/ops/sort.h"
#include "ATen/ops/take.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/lookup.h"

namespace meshrun {
namespace {

using at::Tensor;

std::optional<Tensor> as_optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional<Tensor>(tensor) : std::optional<Tensor>();
}

// LibTorch's kernels expect columns: one of zeros where a rank has none. What is computed with it
// has the history that it has on other ranks.
Tensor with_a_column(const Tensor& table) {
  return table.size(1) > 0 ? table : table.sum(1, /*keepdim=*/true);
}

// Elements of bags whose rows this rank has.
struct FoundElements {
  Tensor places;  // among all elements of the bags
  Tensor rows;    // of the rank's piece of the table
  Tensor bags;
  Tensor counts;  // of elements, by bags

  Tensor offsets() const { return counts.cumsum(0) - counts; }
};

// Where the largest elements of bags are.
struct LargestElements {
  Tensor rows;  // of the rank's piece; 0 where it has none
  Tensor is_own;
};

// Where in all bags the row of each largest element comes first in its bag; `none`: nowhere.
Tensor first_places(const Tensor& rows, const FoundElements& found, int64_t table_rows,
                    int64_t none) {
  if (found.places.numel() == 0) return at::full_like(rows, none);
  const auto [keys, order] =
      at::sort(found.bags * table_rows + found.rows, /*stable=*/true, 0, /*descending=*/false);
  const Tensor bags = at::arange(rows.size(0), rows.options()).unsqueeze(1);
  const Tensor at_key =
      at::searchsorted(keys, bags * table_rows + rows).clamp_max(keys.numel() - 1);
  return at::take(found.places.index_select(0, order), at_key);
}

// Among equal elements the first one in the bag counts, as in LibTorch. A rank whose own first
// element is NaN has the largest one.
LargestElements largest_elements(const Tensor& table, const FoundElements& found, int64_t elements,
                                 const SpecPtr& spec) {
  const at::NoGradGuard no_history;
  const auto own = at::_embedding_bag_forward_only(table, found.rows, found.offsets(),
                                                   /*scale_grad_by_freq=*/false, kMaxOfBag);
  const Tensor has_any = found.counts.gt(0).unsqueeze(1);
  Tensor values = std::get<0>(own);
  LargestElements largest;
  // What LibTorch has for an empty bag differs by device.
  largest.rows = std::get<3>(own).masked_fill(has_any.logical_not(), 0);
  if (at::isReducedFloatingType(values.scalar_type())) values = values.to(at::kFloat);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor candidates = at::nan_to_num(values, kInfinity, kInfinity, -kInfinity)
                                .masked_fill(has_any.logical_not(), -kInfinity);
  const Tensor best = candidates.clone(at::MemoryFormat::Contiguous);
  all_reduce_over(spec, {0}, best, PartialOp::kMax);

  const Tensor is_candidate = candidates.eq(best).logical_and(has_any);
  const Tensor first = first_places(largest.rows, found, table.size(0), elements)
                           .masked_fill(is_candidate.logical_not(), elements);
  const Tensor of_all = first.neg();
  all_reduce_over(spec, {0}, of_all, PartialOp::kMax);
  largest.is_own = is_candidate.logical_and(first.eq(of_all.neg()));
  return largest;
}

}  // namespace

BagsOfRows bags_of_whole_rows(const Tensor& table, const OwnBags& own, int64_t mode) {
  const auto padding = own.padding < 0 ? std::optional<int64_t>() : own.padding;
  BagsOfRows bags;
  std::tie(bags.values, bags.bag_of, bags.sizes, bags.rows) = at::embedding_bag(
      with_a_column(table), own.elements, own.offsets, /*scale_grad_by_freq=*/false, mode,
      /*sparse=*/false, as_optional(own.sample_weights), own.has_last_offset, padding);
  bags.values = bags.values.narrow(1, 0, table.size(1));
  if (mode != kSumOfBag) bags.sizes = bags.sizes.narrow(0, 0, own.count());
  if (mode == kMaxOfBag) bags.rows = bags.rows.narrow(1, 0, table.size(1));
  return bags;
}

BagsOfRows bags_of_cut_rows(const Tensor& local, const SpecPtr& spec, const OwnBags& own,
                            int64_t mode) {
  const int64_t count = own.count();
  const PieceOf piece = {spec->box().offsets[0], spec->box().sizes[0], spec->global_shape()[0]};
  const Tensor table = with_a_column(piece.extent > 0 ? local : with_spare_row(local, 0));
  const Tensor elements = own.elements.to(at::kLong);
  const Lookup looked_up = lookup(elements, piece, /*wraps=*/false);
  const Tensor counts = elements.ne(own.padding);
  BagsOfRows bags;
  bags.bag_of = elements;
  if (count > 0) {
    const Tensor places = at::arange(elements.numel(), elements.options());
    bags.bag_of = at::searchsorted(own.offsets.to(at::kLong).contiguous(), places,
                                   /*out_int32=*/false, /*right=*/true) -
                  1;
  }
  if (mode != kSumOfBag) {
    bags.sizes = at::bincount(bags.bag_of.masked_select(counts), {}, count);
  }
  FoundElements found;
  found.places = counts.logical_and(looked_up.absent.logical_not()).nonzero().squeeze(1);
  found.rows = looked_up.index.index_select(0, found.places);
  found.bags = bags.bag_of.index_select(0, found.places);
  found.counts = at::bincount(found.bags, {}, count);

  if (mode == kMaxOfBag) {
    const LargestElements largest = largest_elements(table, found, elements.numel(), spec);
    const Tensor is_other = largest.is_own.logical_not();
    bags.values = at::gather(table, 0, largest.rows).masked_fill(is_other, 0);
    bags.rows = (largest.rows + piece.offset).masked_fill(is_other, 0);
    bags.rows = bags.rows.narrow(1, 0, local.size(1));
  } else {
    Tensor weights = own.sample_weights;
    if (weights.defined()) weights = weights.index_select(0, found.places);
    bags.values = std::get<0>(at::embedding_bag(table, found.rows, found.offsets(),
                                                /*scale_grad_by_freq=*/false, kSumOfBag,
                                                /*sparse=*/false, as_optional(weights)));
  }
  if (mode == kMeanOfBag) {
    bags.values = bags.values / bags.sizes.clamp_min(1).unsqueeze(1).to(bags.values.scalar_type());
  }
  bags.values = bags.values.narrow(1, 0, local.size(1));
  return bags;
}

}  // namespace meshrun
