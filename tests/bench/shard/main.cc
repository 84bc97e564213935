// What operators on sharded tensors cost the host beside the plain ones of the same size: world of
// 4 without wire, parts of 16 x 16 float32, both sides in turns.
//
//   (no option)   a table of microseconds
//   --json        the same, a line of JSON for each row, for shard_host_time
//   --count       for shard_cost_test: counts of one call (tests/bench/host_cost/rows.h)
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/add.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/sum.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/bench/host_cost/rows.h"
#include "tests/parallel/support/loopback_backend.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun::bench {
namespace {

constexpr int kWorld = 4;
constexpr int kRank = 1;
constexpr int64_t kExtent = 16;

ShardMesh::Ptr mesh_without_wire() {
  MeshLayout layout{{"domain"}, {kWorld}, {0, 1, 2, 3}};
  const auto group = LoopbackBackend::make_group(kRank, kWorld);
  return c10::make_intrusive<ShardMesh>(DeviceMesh(layout, kRank),
                                        std::vector<ShardMesh::Group>{group}, group);
}

// A call on a tensor of the part's size, plain or sharded.
struct Pair {
  std::string name;
  std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b)> call;
  bool backward = false;
  bool has_plain = true;
  // Whether all ranks have the same `b`: a weight, sharded or plain.
  enum class Weight { kNone, kSharded, kPlain } weight = Weight::kNone;
};

std::vector<Pair> pairs() {
  return {
      {"add", [](const auto& a, const auto& b) { return at::add(a, b); }},
      {"relu", [](const auto& a, const auto&) { return at::relu(a); }},
      {"mm", [](const auto& a, const auto& b) { return at::mm(a, b); }, false, true,
       Pair::Weight::kSharded},
      {"linear", [](const auto& a, const auto& b) { return at::linear(a, b); }, false, true,
       Pair::Weight::kPlain},
      {"sum", [](const auto& a, const auto&) { return at::sum(a); }},
      {"mul and backward", [](const auto& a, const auto& b) { return at::mul(a, b); }, true},
      {"redistribute S to R",
       [](const auto& a, const auto&) -> at::Tensor {
         return ShardTensor(a).redistribute(std::nullopt, Placements{Replicate()});
       },
       false, false},
  };
}

std::vector<Row> rows_of(const Pair& pair, const SpecPtr& spec) {
  std::vector<Row> rows;
  for (const bool sharded : {false, true}) {
    if (!sharded && !pair.has_plain) continue;
    const auto leaf = [&](const SpecPtr& of) {
      const at::Tensor part = at::ones({kExtent, kExtent});
      if (sharded) return at::Tensor(ShardTensor(part, of, pair.backward));
      return part.set_requires_grad(pair.backward);
    };
    const at::Tensor a = leaf(spec);
    const at::Tensor b = pair.weight == Pair::Weight::kPlain ? at::ones({kExtent, kExtent})
                         : pair.weight == Pair::Weight::kSharded
                             ? leaf(replicated_spec(spec->mesh(), {kExtent, kExtent}))
                             : leaf(spec);
    const std::string name = pair.name + (sharded ? ", sharded" : ", plain");
    if (!pair.backward) {
      rows.push_back({name, [call = pair.call, a, b] { call(a, b); }});
      continue;
    }
    const at::Tensor gradient = at::ones_like(a.detach());
    rows.push_back({name, [call = pair.call, a, b, gradient] {
                      torch::autograd::grad({call(a, b)}, {a, b}, {gradient});
                    }});
  }
  return rows;
}

int main_of(int argc, char** argv) {
  bool counts = false;
  bool json = false;
  CLI::App app("Host cost of operators on sharded tensors, without wire.", "shard_host_cost");
  app.add_flag("--count", counts, "Count instead of timing");
  app.add_flag("--json", json, "Lines of JSON");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const ShardMesh::Ptr mesh = mesh_without_wire();
  const SpecPtr spec =
      make_spec(mesh, ShardLayout::split({kWorld}, {Shard(0)}, {kWorld * kExtent, kExtent}));
  for (const Pair& pair : pairs()) {
    const std::vector<Row> rows = rows_of(pair, spec);
    if (counts) {
      for (const Row& row : rows) {
        count(row, [&] { return LoopbackBackend::of(mesh->group()).bytes_copied(); });
      }
      continue;
    }
    const std::vector<double> times = microseconds(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (json) {
        const nlohmann::json line = {{"name", rows[i].name}, {"us", times[i]}};
        std::printf("%s\n", line.dump().c_str());
      } else {
        std::printf("%-32s %7.2f us\n", rows[i].name.c_str(), times[i]);
      }
    }
  }
  std::fflush(nullptr);
  std::quick_exit(0);
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::main_of(argc, argv); }
