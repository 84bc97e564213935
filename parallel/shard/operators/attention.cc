// scaled_dot_product_attention of sharded queries, keys and values.
//
// Along an axis of the mesh, batches or heads are cut alike and attended apart; or the sequence is
// cut:
//
//   queries and keys           ring attention
//   keys, queries whole        every rank its keys, merged by logsumexp
//   queries, keys whole        nothing moves
//
// What lies otherwise is brought to one of these first, keys before queries. An operand that has
// one batch or one head for all of another's is whole where that is cut, and its gradient is
// Partial. A sequence that all axes of the mesh cut is one ring of all ranks; if only some of
// several axes cut the keys, all but one of those are gathered. Weights are dropped by their place
// in the whole tensor of scores.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "parallel/shard/attention/ring_attention.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/aligned.h"

namespace meshrun {
namespace {

using at::Tensor;
using Axes = std::vector<int64_t>;

int64_t rows_dim(const Tensor& tensor) { return tensor.dim() - 2; }

Axes axes_cutting(const Placements& placements, int64_t dim) {
  Axes axes;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(dim)) axes.push_back(static_cast<int64_t>(axis));
  }
  return axes;
}

bool contains(const Axes& axes, int64_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

struct Operands {
  Tensor query;
  Tensor key;
  Tensor value;
  // Batch of the result; with enable_gqa its heads are the query's.
  std::vector<int64_t> batch;

  // One for all of the result's along `dim`.
  bool is_broadcast(const Tensor& tensor, int64_t dim) const {
    return dim < static_cast<int64_t>(batch.size()) && tensor.size(dim) == 1 &&
           batch[static_cast<size_t>(dim)] != 1;
  }
};

std::vector<int64_t> result_batch(const Operands& operands, bool enable_gqa) {
  const int64_t kept = enable_gqa ? 3 : 2;
  const auto leading = [&](const Tensor& t) { return t.sizes().slice(0, t.dim() - kept); };
  std::vector<int64_t> batch = at::infer_size(
      at::infer_size(leading(operands.query), leading(operands.key)), leading(operands.value));
  if (enable_gqa) batch.push_back(operands.query.size(-3));
  return batch;
}

// Operands with equal numbers of dims. Reduces Partial, and makes the last dim of each operand
// whole, and batch dims that are broadcast; all batch dims if `whole_batches`.
Operands prepared(const Tensor& query, const Tensor& key, const Tensor& value,
                  const ShardMesh::Ptr& mesh, bool enable_gqa, bool whole_batches) {
  Operands operands{promote(query, mesh), promote(key, mesh), promote(value, mesh), {}};
  const int64_t ndim = std::max({query.dim(), key.dim(), value.dim()});
  const int64_t least = enable_gqa ? 3 : 2;
  for (Tensor* tensor : {&operands.query, &operands.key, &operands.value}) {
    TORCH_CHECK(tensor->dim() >= least, "scaled_dot_product_attention takes tensors of ", least,
                " or more dimensions, not ", tensor->sizes());
    while (tensor->dim() < ndim) *tensor = tensor->unsqueeze(0);
  }
  operands.batch = result_batch(operands, enable_gqa);
  for (Tensor* tensor : {&operands.query, &operands.key, &operands.value}) {
    Axes whole = {ndim - 1};
    for (int64_t dim = 0; dim < ndim - 2; ++dim) {
      if (whole_batches || operands.is_broadcast(*tensor, dim)) whole.push_back(dim);
    }
    *tensor = redistribute(*tensor, with_whole_dims(spec_of(*tensor), whole));
  }
  return operands;
}

// Placements along each axis, made to fit each other.
struct Agreed {
  Placements scores;  // batches and queries; Replicate where keys are cut
  Placements keys;    // batches, and keys and values
};

Agreed agree(const Operands& operands) {
  const int64_t rows = rows_dim(operands.query);
  Agreed agreed{spec_of(operands.query)->placements(), spec_of(operands.key)->placements()};
  const Placements& values = spec_of(operands.value)->placements();
  for (size_t axis = 0; axis < agreed.scores.size(); ++axis) {
    Placement& scores = agreed.scores[axis];
    Placement& keys = agreed.keys[axis];
    if (keys.is_replicate()) keys = values[axis];  // cut where it lies
    if (scores.is_shard() && !scores.is_shard(rows)) {
      keys = scores;  // batches
    } else if (keys.is_shard() && !keys.is_shard(rows)) {
      if (scores.is_replicate()) {
        scores = keys;
      } else {
        keys = Replicate();  // queries stay
      }
    }
  }
  return agreed;
}

// `placements` for one operand: whole where it is broadcast.
Placements placements_of(const Operands& operands, const Tensor& tensor, Placements placements) {
  for (Placement& placement : placements) {
    if (placement.is_shard() && operands.is_broadcast(tensor, placement.dim())) {
      placement = Replicate();
    }
  }
  return placements;
}

// Cut of a batch dim with each piece times / divisor as large; absent if that is not a whole number
// for some piece.
std::optional<DimCut> scaled(DimCut cut, int64_t times, int64_t divisor) {
  for (int64_t& size : cut.sizes) {
    if (size * times % divisor != 0) return std::nullopt;
    size = size * times / divisor;
  }
  return cut;
}

// The layout of `tensor` with these placements. A dim that keeps its axes keeps its cut; else it
// takes that of `others`, scaled to its extent, if they have it on these axes.
SpecPtr laid_out(const Tensor& tensor, const Placements& placements,
                 const std::vector<Tensor>& others) {
  const SpecPtr spec = target_spec(spec_of(tensor), placements);
  std::vector<DimCut> cuts = spec->layout().cuts();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    DimCut& cut = cuts[static_cast<size_t>(dim)];
    for (const Tensor& other : others) {
      if (cut.axes.empty() || other.size(dim) == 0) continue;
      const DimCut& theirs = spec_of(other)->layout().cuts()[static_cast<size_t>(dim)];
      if (theirs.axes != cut.axes) continue;
      if (auto same = scaled(theirs, tensor.size(dim), other.size(dim))) {
        cut = *std::move(same);
        break;
      }
    }
  }
  return make_spec(spec->mesh(),
                   ShardLayout::with_cuts(spec->mesh()->shape(), placements, std::move(cuts)));
}

// Where and how a sequence is attended.
struct Course {
  enum class Kind { kWholeKeys, kMerged, kRing } kind = Kind::kWholeKeys;
  int64_t axis = 0;  // -1: all ranks of the mesh
};

// Also makes the keys Replicate on the axes that cannot stay.
Course choose(const Operands& operands, Agreed& agreed) {
  const Axes query_axes = axes_cutting(agreed.scores, rows_dim(operands.query));
  const Axes key_axes = axes_cutting(agreed.keys, rows_dim(operands.key));
  if (key_axes.empty()) return {};
  const auto kind = query_axes.empty() ? Course::Kind::kMerged : Course::Kind::kRing;
  if (key_axes.size() > 1 && key_axes.size() == agreed.keys.size() &&
      (query_axes.empty() || query_axes == key_axes)) {
    return {kind, -1};
  }
  Course course;
  if (query_axes.empty()) {
    course = {kind, key_axes.back()};
  } else if (contains(key_axes, query_axes.back())) {
    // The last one of several axes has consecutive pieces.
    course = {kind, query_axes.back()};
  } else {
    for (const int64_t axis : key_axes) {
      if (!contains(query_axes, axis)) course = {Course::Kind::kMerged, axis};
    }
  }
  for (const int64_t axis : key_axes) {
    if (course.kind == Course::Kind::kWholeKeys || axis != course.axis) {
      agreed.keys[static_cast<size_t>(axis)] = Replicate();
    }
  }
  return course;
}

// Sizes of the pieces of `dim` on the ranks of a group, in its order.
std::vector<int64_t> pieces(const SpecPtr& spec, int64_t dim, const Course& course) {
  if (course.axis < 0) return spec->layout().cuts()[static_cast<size_t>(dim)].sizes;
  std::vector<int64_t> coordinate = spec->mesh()->coordinate();
  std::vector<int64_t> sizes;
  const int64_t ranks = spec->mesh()->shape()[static_cast<size_t>(course.axis)];
  for (int64_t rank = 0; rank < ranks; ++rank) {
    coordinate[static_cast<size_t>(course.axis)] = rank;
    sizes.push_back(spec->layout().box(coordinate).sizes[static_cast<size_t>(dim)]);
  }
  return sizes;
}

// Where the queries of the course's first rank begin.
int64_t first_query(const SpecPtr& spec, int64_t dim, const Course& course) {
  std::vector<int64_t> coordinate = spec->mesh()->coordinate();
  if (course.kind == Course::Kind::kRing && course.axis >= 0) {
    coordinate[static_cast<size_t>(course.axis)] = 0;
  } else if (course.kind == Course::Kind::kRing) {
    return 0;
  }
  return spec->layout().box(coordinate).offsets[static_cast<size_t>(dim)];
}

// With enable_gqa, heads of queries must be cut where those of keys can be.
SpecPtr cut_between_groups(const SpecPtr& query, const Tensor& key, const Placements& keys) {
  const int64_t heads = query->ndim() - 3;
  std::vector<DimCut> cuts = query->layout().cuts();
  DimCut& cut = cuts[static_cast<size_t>(heads)];
  const int64_t num_heads = query->global_shape()[static_cast<size_t>(heads)];
  if (scaled(cut, key.size(heads), num_heads)) return query;
  const ShardLayout split =
      ShardLayout::split(query->mesh()->shape(), keys, spec_of(key)->global_shape());
  cut = *scaled(split.cuts()[static_cast<size_t>(heads)], num_heads, key.size(heads));
  return make_spec(query->mesh(), ShardLayout::with_cuts(query->mesh()->shape(),
                                                         query->placements(), std::move(cuts)));
}

// The layout of the result: batches as all operands that have them are cut, rows as the query's.
SpecPtr result_spec(const Operands& operands, const Placements& scores) {
  const SpecPtr& spec = spec_of(operands.query);
  std::vector<DimCut> cuts;
  for (size_t dim = 0; dim < operands.batch.size(); ++dim) {
    cuts.push_back({{}, {operands.batch[dim]}});
    for (const Tensor* tensor : {&operands.query, &operands.key, &operands.value}) {
      const DimCut& cut = spec_of(*tensor)->layout().cuts()[dim];
      const bool is_all = tensor->size(static_cast<int64_t>(dim)) == operands.batch[dim];
      if (is_all && !cut.axes.empty() && cuts.back().axes.empty()) cuts.back() = cut;
    }
  }
  cuts.push_back(spec->layout().cuts()[operands.batch.size()]);
  cuts.push_back({{}, {operands.value.size(-1)}});
  return make_spec(spec->mesh(),
                   ShardLayout::with_cuts(spec->mesh()->shape(), scores, std::move(cuts)));
}

// Rows of this rank's queries, columns of all keys.
Tensor local_mask(const Tensor& mask, const SpecPtr& result) {
  const Tensor promoted = promote(mask, result->mesh());
  const int64_t more = result->ndim() - mask.dim();
  TORCH_CHECK(more >= 0, "attn_mask ", mask.sizes(), " does not broadcast to scores of ",
              result->ndim(), " dimensions");
  Placements placements = result->placements();
  std::vector<DimCut> cuts;
  for (int64_t dim = 0; dim < mask.dim(); ++dim) {
    const DimCut& cut = result->layout().cuts()[static_cast<size_t>(dim + more)];
    const bool is_cut = !cut.axes.empty() && mask.size(dim) != 1;
    cuts.push_back(is_cut ? cut : DimCut{{}, {mask.size(dim)}});
  }
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim() - more;
    placement = dim >= 0 && mask.size(dim) != 1 ? Shard(dim) : Replicate();
  }
  const SpecPtr spec = with_shard_errors([&] {
    return make_spec(
        result->mesh(),
        ShardLayout::with_cuts(result->mesh()->shape(), std::move(placements), std::move(cuts)));
  });
  return to_local(redistribute(promoted, spec), partial_where_replicated(spec, result));
}

std::optional<AttentionDropout> dropout_of(double probability, const SpecPtr& result,
                                           int64_t num_keys) {
  TORCH_CHECK(probability >= 0 && probability <= 1,
              "dropout probability has to be between 0 and 1, but got ", probability);
  if (probability == 0) return std::nullopt;
  AttentionDropout dropout{probability, next_random_operation(), {1, 1, 1, num_keys}, {}};
  // (..., heads, queries): what lies before the heads is whole, or is one dimension.
  const int64_t ndim = result->ndim();
  for (int64_t dim = 0; dim < ndim - 1; ++dim) {
    const auto place = static_cast<size_t>(std::max<int64_t>(dim - (ndim - 4), 0));
    const auto d = static_cast<size_t>(dim);
    dropout.global_sizes[place] *= result->global_shape()[d];
    dropout.offsets[place] += result->box().offsets[d];
  }
  return dropout;
}

// As LibTorch checks, before anything moves.
void check_dtypes(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask) {
  const at::ScalarType dtype = query.scalar_type();
  TORCH_CHECK(dtype == key.scalar_type() && dtype == value.scalar_type(),
              "Expected query, key, and value to have the same dtype, but got query.dtype: ", dtype,
              " key.dtype: ", key.scalar_type(), " and value.dtype: ", value.scalar_type(),
              " instead.");
  if (!mask.defined()) return;
  TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kFloat ||
                  mask.scalar_type() == dtype,
              "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
              "attn_mask.dtype: ",
              mask.scalar_type(), " and query.dtype: ", dtype, " instead.");
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value,
                 const std::optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                 std::optional<double> scale, bool enable_gqa) {
  static const auto* undefined = new Tensor;
  const Tensor& mask = attn_mask ? *attn_mask : *undefined;
  const ShardMesh::Ptr mesh =
      mesh_of({&query, &key, &value, &mask}, "scaled_dot_product_attention");
  check_dtypes(query, key, value, mask);
  const bool whole_batches = dropout_p > 0 && std::max({query.dim(), key.dim(), value.dim()}) > 4;
  Operands operands = prepared(query, key, value, mesh, enable_gqa, whole_batches);
  Agreed agreed = agree(operands);
  const Course course = choose(operands, agreed);
  const auto place = [&](const Tensor& tensor, const Placements& placements,
                         const std::vector<Tensor>& others) {
    return laid_out(tensor, placements_of(operands, tensor, placements), others);
  };
  SpecPtr query_spec =
      place(operands.query, agreed.scores, {operands.query, operands.key, operands.value});
  const int64_t heads = operands.query.dim() - 3;
  if (enable_gqa && key.size(-3) > 0 && query.size(-3) % key.size(-3) == 0 &&
      !operands.is_broadcast(operands.key, heads)) {
    query_spec = cut_between_groups(query_spec, operands.key, agreed.keys);
  }
  operands.query = redistribute(operands.query, query_spec);
  const SpecPtr key_spec =
      place(operands.key, agreed.keys, {operands.query, operands.key, operands.value});
  operands.key = redistribute(operands.key, key_spec);
  const SpecPtr value_spec =
      place(operands.value, agreed.keys, {operands.key, operands.query, operands.value});
  operands.value = redistribute(operands.value, value_spec);

  const SpecPtr result = result_spec(operands, agreed.scores);
  const int64_t num_keys = key.size(-2);
  AttentionOptions options{.is_causal = is_causal,
                           .scale = scale,
                           .enable_gqa = enable_gqa,
                           .first_query = first_query(query_spec, rows_dim(operands.query), course),
                           .dropout = dropout_of(dropout_p, result, num_keys)};
  if (mask.defined()) options.attn_mask = local_mask(mask, result);
  const Tensor q = to_local(operands.query, partial_where_replicated(query_spec, result));
  const Tensor k = to_local(operands.key, partial_where_replicated(key_spec, result));
  const Tensor v = to_local(operands.value, partial_where_replicated(value_spec, result));
  const auto& group = course.axis < 0 ? mesh->group() : mesh->axis_group(course.axis);
  Tensor local;
  switch (course.kind) {
    case Course::Kind::kWholeKeys:
      if (!options.dropout && q.numel() > 0 && k.numel() > 0 &&
          axes_cutting(agreed.scores, rows_dim(operands.query)).empty()) {
        // Nothing of a sequence is cut: LibTorch's own kernels.
        local = at::scaled_dot_product_attention(q, k, v, options.attn_mask, 0, is_causal, scale,
                                                 enable_gqa);
      } else {
        local = whole_keys_attention(q, k, v, options);
      }
      break;
    case Course::Kind::kMerged:
      local = merged_attention(q, k, v, pieces(key_spec, rows_dim(operands.key), course), options,
                               GroupArgument(group));
      break;
    case Course::Kind::kRing:
      local = ring_attention(q, k, v, pieces(query_spec, rows_dim(operands.query), course),
                             pieces(key_spec, rows_dim(operands.key), course), options,
                             GroupArgument(group));
      break;
  }
  return from_local(local, result);
}

const bool kRegistered =
    OperatorFamily("attention")
        .above_autograd(
            "aten::scaled_dot_product_attention", &attention,
            {"any Shard of batches and heads, equal on all that have them; one batch or head "
             "for all is Replicate; any Shard of the sequence of queries, of keys and "
             "values, or of both",
             "sequence of both cut: keys and values, round a ring; of keys alone: the "
             "results, all-reduced; a cut last dimension is gathered",
             "the ring again, with the keys' gradients; of keys alone: the queries' "
             "gradient, all-reduced; keys whole beside cut queries, and one batch or head "
             "for all: Partial(sum)"})
        .registered();

}  // namespace
}  // namespace meshrun
