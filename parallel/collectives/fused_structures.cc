// From structures of tensors to lists of leaves, and back.
#include <algorithm>
#include <utility>

#include "ATen/core/List.h"
#include "ATen/core/ivalue_inl.h"
#include "fmt/format.h"
#include "parallel/collectives/fused_all_reduce.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using detail::FusedLeaf;
using detail::FusedReduction;
using Tensors = std::vector<Tensor>;

struct Leaves {
  std::vector<FusedLeaf> leaves;
  std::string problem;
};

Leaves leaves_of(const Tensor& tensor) { return {{{"", tensor}}, ""}; }

Leaves leaves_of(const Tensors& tensors) {
  Leaves found;
  for (const Tensor& tensor : tensors) found.leaves.push_back({"", tensor});
  return found;
}

Leaves leaves_of(const TensorMap& tensors) {
  Leaves found;
  for (const auto& [key, tensor] : tensors) found.leaves.push_back({key, tensor});
  return found;
}

Tensor rebuild(const Tensor&, Tensors reduced) { return std::move(reduced[0]); }
Tensors rebuild(const Tensors&, Tensors reduced) { return reduced; }

TensorMap rebuild(const TensorMap& tensors, Tensors reduced) {
  TensorMap result;
  auto leaf = reduced.begin();
  for (const auto& [key, tensor] : tensors) result.emplace_hint(result.end(), key, *leaf++);
  return result;
}

using Entry = std::pair<std::string, c10::IValue>;

// By key. Empty, with a problem, where a key is not a string.
std::vector<Entry> sorted_entries(const c10::Dict<c10::IValue, c10::IValue>& dict,
                                  std::string& problem) {
  std::vector<Entry> entries;
  for (const auto& entry : dict) {
    if (!entry.key().isString()) {
      problem = fmt::format("fused_all_reduce: a key is {}, not a string", entry.key().tagKind());
      return {};
    }
    entries.emplace_back(entry.key().toStringRef(), entry.value());
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.first < b.first; });
  return entries;
}

void collect(const c10::IValue& tree, const std::string& key, Leaves& found) {
  if (tree.isTensor()) {
    found.leaves.push_back({key, tree.toTensor()});
  } else if (tree.isTuple()) {
    for (const c10::IValue& part : tree.toTupleRef().elements()) collect(part, key, found);
  } else if (tree.isList()) {
    const c10::List<c10::IValue> list = tree.toList();
    for (size_t i = 0; i < list.size(); ++i) collect(list.get(i), key, found);
  } else if (tree.isGenericDict()) {
    for (const auto& [name, part] : sorted_entries(tree.toGenericDict(), found.problem)) {
      collect(part, key.empty() ? name : key + "." + name, found);
    }
  } else if (found.problem.empty()) {
    found.problem = fmt::format(
        "fused_all_reduce: {} is {}; what can be reduced are tensors, lists, tuples and "
        "dictionaries",
        key.empty() ? "a value" : "\"" + key + "\"", tree.tagKind());
  }
}

Leaves leaves_of(const c10::IValue& tree) {
  Leaves found;
  collect(tree, "", found);
  return found;
}

c10::IValue rebuild_from(const c10::IValue& tree, Tensors::iterator& leaf) {
  if (tree.isTensor()) return *leaf++;
  if (tree.isTuple()) {
    std::vector<c10::IValue> parts;
    for (const c10::IValue& part : tree.toTupleRef().elements()) {
      parts.push_back(rebuild_from(part, leaf));
    }
    return c10::ivalue::Tuple::create(std::move(parts));
  }
  if (tree.isList()) {
    const c10::List<c10::IValue> list = tree.toList();
    c10::impl::GenericList result(list.elementType());
    for (size_t i = 0; i < list.size(); ++i) result.push_back(rebuild_from(list.get(i), leaf));
    return result;
  }
  const c10::impl::GenericDict dict = tree.toGenericDict();
  // Leaves come by key, the result has the order of insertion.
  c10::impl::GenericDict result(dict.keyType(), dict.valueType());
  for (const auto& entry : dict) result.insert(entry.key(), entry.value());
  std::string no_problem;
  for (const auto& [name, part] : sorted_entries(dict, no_problem)) {
    result.insert_or_assign(name, rebuild_from(part, leaf));
  }
  return result;
}

c10::IValue rebuild(const c10::IValue& tree, Tensors reduced) {
  auto leaf = reduced.begin();
  return rebuild_from(tree, leaf);
}

template <typename T>
T reduce(const T& structure, const FusedAllReduceOptions& options) {
  Leaves found = leaves_of(structure);
  FusedReduction reduction(std::move(found.leaves), std::move(found.problem), options,
                           /*async=*/false);
  return rebuild(structure, reduction.wait());
}

template <typename T>
FusedAllReduce<T> start(const T& structure, const FusedAllReduceOptions& options) {
  Leaves found = leaves_of(structure);
  return {std::make_shared<FusedReduction>(std::move(found.leaves), std::move(found.problem),
                                           options, /*async=*/true),
          [structure](Tensors reduced) { return rebuild(structure, std::move(reduced)); }};
}

}  // namespace

Tensor fused_all_reduce(const Tensor& tensor, const FusedAllReduceOptions& options) {
  return reduce(tensor, options);
}
Tensors fused_all_reduce(const Tensors& tensors, const FusedAllReduceOptions& options) {
  return reduce(tensors, options);
}
TensorMap fused_all_reduce(const TensorMap& tensors, const FusedAllReduceOptions& options) {
  return reduce(tensors, options);
}
c10::IValue fused_all_reduce(const c10::IValue& tree, const FusedAllReduceOptions& options) {
  return reduce(tree, options);
}

FusedAllReduce<Tensor> fused_all_reduce_async(const Tensor& tensor,
                                              const FusedAllReduceOptions& options) {
  return start(tensor, options);
}
FusedAllReduce<Tensors> fused_all_reduce_async(const Tensors& tensors,
                                               const FusedAllReduceOptions& options) {
  return start(tensors, options);
}
FusedAllReduce<TensorMap> fused_all_reduce_async(const TensorMap& tensors,
                                                 const FusedAllReduceOptions& options) {
  return start(tensors, options);
}
FusedAllReduce<c10::IValue> fused_all_reduce_async(const c10::IValue& tree,
                                                   const FusedAllReduceOptions& options) {
  return start(tree, options);
}

}  // namespace meshrun
