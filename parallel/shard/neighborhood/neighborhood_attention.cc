#include "parallel/shard/neighborhood/neighborhood_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/ops/softmax.h"
#include "c10/util/Exception.h"
#include "parallel/base/split.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/plans/range_exchange.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/windows.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr int64_t kNoNeighbor = -1;

// What positions along one dimension attend to.
class Line {
 public:
  Line(int64_t extent, int64_t kernel, int64_t dilation, bool is_causal)
      : extent_(extent), kernel_(kernel), dilation_(dilation), is_causal_(is_causal) {}

  int64_t kernel() const { return kernel_; }

  // In order; kNoNeighbor for those before the first position.
  std::vector<int64_t> neighbors(int64_t position) const {
    // Positions of one remainder are a line of their own.
    const int64_t remainder = position % dilation_;
    const int64_t place = position / dilation_;
    const int64_t count = (extent_ - remainder + dilation_ - 1) / dilation_;
    const int64_t first = is_causal_ ? place - kernel_ + 1
                                     : std::clamp<int64_t>(place - kernel_ / 2, 0, count - kernel_);
    std::vector<int64_t> found;
    for (int64_t at = first; at < first + kernel_; ++at) {
      found.push_back(at < 0 ? kNoNeighbor : remainder + at * dilation_);
    }
    return found;
  }

  // The positions that those of a piece attend to.
  SplitRange read_by(const SplitRange& piece) const {
    SplitRange read{extent_, 0};
    for (int64_t position = piece.begin; position < piece.end; ++position) {
      for (const int64_t neighbor : neighbors(position)) {
        if (neighbor == kNoNeighbor) continue;
        read = {std::min(read.begin, neighbor), std::max(read.end, neighbor + 1)};
      }
    }
    return read.size() < 0 ? SplitRange{0, 0} : read;
  }

 private:
  int64_t extent_;
  int64_t kernel_;
  int64_t dilation_;
  bool is_causal_;
};

// This rank's part of a dimension: its queries, and where its keys begin.
struct Piece {
  SplitRange queries;
  int64_t keys_begin = 0;
};

std::vector<Line> lines_of(const Tensor& query, const Neighborhood& how) {
  const size_t count = how.kernel_size.size();
  TORCH_CHECK_VALUE(count == 1 || count == 2, "neighborhood_attention: kernel_size has ", count,
                    " elements; 1 or 2 are expected");
  TORCH_CHECK_VALUE(query.dim() == static_cast<int64_t>(count) + 3,
                    "neighborhood_attention: query has ", query.dim(), " dimensions; batch, ",
                    count, " of positions, heads and features are expected");
  TORCH_CHECK_VALUE(how.dilation.empty() || how.dilation.size() == count,
                    "neighborhood_attention: dilation has ", how.dilation.size(), " elements for ",
                    count, " dimensions");
  TORCH_CHECK_VALUE(how.is_causal.empty() || how.is_causal.size() == count,
                    "neighborhood_attention: is_causal has ", how.is_causal.size(),
                    " elements for ", count, " dimensions");
  std::vector<Line> lines;
  for (size_t i = 0; i < count; ++i) {
    const int64_t extent = query.size(static_cast<int64_t>(i) + 1);
    const int64_t kernel = how.kernel_size[i];
    const int64_t dilation = how.dilation.empty() ? 1 : how.dilation[i];
    TORCH_CHECK_VALUE(kernel > 0 && dilation > 0, "neighborhood_attention: kernel_size is ", kernel,
                      " and dilation ", dilation, "; both should be positive");
    TORCH_CHECK_VALUE(extent == 0 || kernel * dilation <= extent,
                      "neighborhood_attention: kernel_size ", kernel, " times dilation ", dilation,
                      " is more than the ", extent, " positions of dimension ", i + 1);
    lines.emplace_back(extent, kernel, dilation, !how.is_causal.empty() && how.is_causal[i]);
  }
  return lines;
}

void check_shapes(const Tensor& query, const Tensor& key, const Tensor& value) {
  const int64_t features = query.dim() - 1;
  TORCH_CHECK_VALUE(key.sizes() == query.sizes(), "neighborhood_attention: key is ", key.sizes(),
                    " and query ", query.sizes(), "; they should be equal");
  TORCH_CHECK_VALUE(
      value.dim() == query.dim() && value.sizes().slice(0, static_cast<size_t>(features)) ==
                                        query.sizes().slice(0, static_cast<size_t>(features)),
      "neighborhood_attention: value is ", value.sizes(), " and query ", query.sizes(),
      "; all but the last dimension should be equal");
  TORCH_CHECK_VALUE(
      key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type(),
      "neighborhood_attention: query is ", query.scalar_type(), ", key ", key.scalar_type(),
      " and value ", value.scalar_type(), "; one dtype is expected");
}

// `tensor` with its neighbors along dimension `dim`: dimensions dim + 1 are those of the window.
Tensor windows_of(const Tensor& tensor, int64_t dim, const Line& line, const Piece& piece) {
  std::vector<int64_t> places;
  for (int64_t position = piece.queries.begin; position < piece.queries.end; ++position) {
    for (const int64_t neighbor : line.neighbors(position)) {
      places.push_back(neighbor == kNoNeighbor ? 0 : neighbor - piece.keys_begin);
    }
  }
  const Tensor picked = tensor.index_select(dim, constant(places).to(tensor.device()));
  std::vector<int64_t> shape = picked.sizes().vec();
  const auto at = shape.begin() + dim;
  *at = piece.queries.size();
  shape.insert(at + 1, line.kernel());
  return picked.reshape(shape);
}

// Added to scores [queries, kernel] along one dimension: minus infinity for what is no neighbor.
std::optional<Tensor> mask_of(const Line& line, const Piece& piece, const Tensor& like) {
  std::vector<double> mask;
  bool hides = false;
  for (int64_t position = piece.queries.begin; position < piece.queries.end; ++position) {
    for (const int64_t neighbor : line.neighbors(position)) {
      hides |= neighbor == kNoNeighbor;
      mask.push_back(neighbor == kNoNeighbor ? -std::numeric_limits<double>::infinity() : 0);
    }
  }
  if (!hides) return std::nullopt;
  return constant(mask).to(like.options()).view({piece.queries.size(), line.kernel()});
}

// On this rank's queries, with the keys and values that they need.
Tensor attend(const Tensor& query, Tensor key, Tensor value, const std::vector<Line>& lines,
              const std::vector<Piece>& pieces, double scale) {
  // [batch, (queries, kernel) for each dimension, heads, features]
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto dim = static_cast<int64_t>(2 * i + 1);
    key = windows_of(key, dim, lines[i], pieces[i]);
    value = windows_of(value, dim, lines[i], pieces[i]);
  }
  Tensor wide = query;
  for (size_t i = 0; i < lines.size(); ++i) wide = wide.unsqueeze(static_cast<int64_t>(2 * i + 2));
  Tensor scores = (wide * key).sum(-1) * scale;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto mask = mask_of(lines[i], pieces[i], scores);
    if (!mask) continue;
    std::vector<int64_t> shape(static_cast<size_t>(scores.dim()), 1);
    shape[2 * i + 1] = mask->size(0);
    shape[2 * i + 2] = mask->size(1);
    scores = scores + mask->view(shape);
  }
  if (lines.size() == 1) {  // [batch, L, k, heads]
    return (at::softmax(scores, 2).unsqueeze(-1) * value).sum(2);
  }
  // [batch, H, k, W, k, heads]
  const Tensor flat = scores.transpose(2, 3).flatten(3, 4);
  const Tensor weights = at::softmax(flat, 3).unsqueeze(-1);
  return (weights * value.transpose(2, 3).flatten(3, 4)).sum(3);
}

}  // namespace

Tensor neighborhood_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const Neighborhood& neighborhood) {
  const std::vector<Line> lines = lines_of(query, neighborhood);
  check_shapes(query, key, value);
  const double scale =
      neighborhood.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  std::vector<Piece> pieces;
  for (size_t i = 0; i < lines.size(); ++i) {
    pieces.push_back({{0, query.size(static_cast<int64_t>(i) + 1)}, 0});
  }
  if (!is_shard_tensor(query) && !is_shard_tensor(key) && !is_shard_tensor(value)) {
    return attend(query, key, value, lines, pieces, scale);
  }
  const ShardMesh::Ptr mesh = mesh_of({&query, &key, &value}, "neighborhood_attention");
  const SpecPtr spec = windowed_spec(spec_of(promote(query, mesh)), {query.dim() - 1});
  const auto local = [&](const Tensor& tensor) {
    const SpecPtr as =
        tensor.sizes() == query.sizes()
            ? spec
            : make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), spec->placements(), [&] {
                          std::vector<DimCut> cuts = spec->layout().cuts();
                          cuts.back() = {{}, {tensor.size(-1)}};
                          return cuts;
                        }()));
    return std::pair(to_local(redistribute(promote(tensor, mesh), as)), as);
  };
  Tensor own_query = local(query).first;
  Tensor own_key = local(key).first;
  auto [own_value, result] = local(value);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 1;
    const auto cut = cut_of(*spec, dim);
    if (!cut) continue;
    std::vector<SplitRange> read;
    int64_t begin = 0;
    for (const int64_t size : cut->sizes) {
      read.push_back(lines[i].read_by({begin, begin + size}));
      begin += size;
    }
    const RangeExchange exchange(dim, cut->sizes, read, cut->group);
    own_key = exchange.gather(own_key);
    own_value = exchange.gather(own_value);
    pieces[i] = {cut->own_range(), read[static_cast<size_t>(cut->own)].begin};
  }
  return from_local(attend(own_query, own_key, own_value, lines, pieces, scale), result);
}

}  // namespace meshrun
