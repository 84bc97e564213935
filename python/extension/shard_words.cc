#include "python/extension/shard_words.h"

#include <array>

#include "core/parse_integer.h"
#include "fmt/format.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun::python {
namespace {

constexpr std::array kOps = {PartialOp::kSum, PartialOp::kAvg, PartialOp::kProduct, PartialOp::kMin,
                             PartialOp::kMax};

Placement placement_of(const std::string& word) {
  if (word == "R") return Replicate();
  const std::string rest = word.substr(1);
  if (word.starts_with('S')) {
    if (const auto dim = ParseInteger<int64_t>(rest)) return Shard(*dim);
  }
  if (word.starts_with('P')) {
    for (const PartialOp op : kOps) {
      if (rest == to_string(op)) return Partial(op);
    }
  }
  throw ShardTensorError(
      fmt::format("\"{}\" is no placement of a ShardTensor: Shard(dim), Replicate(), or Partial of "
                  "sum, avg, product, min or max",
                  word));
}

std::string word_of(const Placement& placement) {
  if (placement.is_replicate()) return "R";
  if (placement.is_shard()) return fmt::format("S{}", placement.dim());
  return fmt::format("P{}", to_string(placement.op()));
}

}  // namespace

Placements placements_of(const Words& words) {
  Placements placements;
  for (const std::string& word : words) placements.push_back(placement_of(word));
  return placements;
}

Words words_of(const Placements& placements) {
  Words words;
  for (const Placement& placement : placements) words.push_back(word_of(placement));
  return words;
}

MeshParts parts_of(const DeviceMesh& mesh) {
  return {mesh.shape(), mesh.mesh_dim_names(), mesh.ranks()};
}

}  // namespace meshrun::python
