// What a v-collective costs its own rank, without wire: world of 8, over a loopback backend. Prints
// microseconds, forward and with the backward pass. And what a call of 4 KiB costs two ranks of the
// ucx backend, in one process over an in-memory network.
//
// --count, for host_cost_test: prints allocations and copied bytes of one call each, and, under
// callgrind, leaves a dump of the instructions (rows.h).
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/add.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/neg.h"
#include "ATen/ops/ones.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/gather_v.h"
#include "parallel/collectives/indexed_all_to_all_v.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/collectives/scatter_v.h"
#include "parallel/comm/ucx/backend.h"
#include "tests/bench/host_cost/rows.h"
#include "tests/parallel/comm/ucx/memory_transport.h"
#include "tests/parallel/support/loopback_backend.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace meshrun::bench {
namespace {

constexpr int kWorld = 8;
constexpr int kRank = 3;
constexpr int64_t kRows = 4;
constexpr int64_t kColumns = 16;

struct Call {
  std::string name;
  std::function<at::Tensor()> forward;
  at::Tensor leaf;  // undefined: there is no backward pass
};

// Forward, and forward with backward where there is one.
std::vector<Row> rows_of(const Call& call) {
  std::vector<Row> rows = {{call.name, [call] { call.forward(); }}};
  if (!call.leaf.defined()) return rows;
  const at::Tensor gradient = at::ones_like(call.forward());
  rows.push_back({call.name + " and backward", [call, gradient] {
                    torch::autograd::grad({call.forward()}, {call.leaf}, {gradient});
                  }});
  return rows;
}

std::vector<Call> calls(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const auto leaf = [](int64_t rows) { return at::ones({rows, kColumns}).requires_grad_(); };
  const std::vector<int64_t> sizes(kWorld, kRows);
  const at::Tensor piece = leaf(kRows);
  const at::Tensor whole = leaf(kRows * kWorld);
  const at::Tensor plain = at::ones({kRows, kColumns});
  const std::vector<at::Tensor> indices(kWorld, at::arange(kRows));
  const std::vector<std::vector<int64_t>> table(kWorld, sizes);
  const IndexedAllToAllPlan plan(indices, table, kRows * kWorld, group);
  return {
      {"at::add", [=] { return at::add(plain, plain); }, {}},
      // What LibTorch's autograd takes for the least of operators.
      {"at::neg", [=] { return at::neg(piece); }, piece},
      {"all_gather_v", [=] { return all_gather_v(piece, sizes, 0, true, group); }, piece},
      {"reduce_scatter_v", [=] { return reduce_scatter_v(whole, sizes, 0, true, group); }, whole},
      {"gather_v", [=] { return gather_v(piece, sizes, 0, kRank, group); }, piece},
      {"scatter_v", [=] { return scatter_v(whole, sizes, 0, kRank, group); }, whole},
      {"indexed_all_to_all_v", [=] { return indexed_all_to_all_v(whole, plan); }, whole},
      {"indexed_all_to_all_v without a plan",
       [=] { return indexed_all_to_all_v(whole, indices, table, true, 0, group); }, whole},
  };
}

// Both ranks of a group of the ucx backend. A call of both is made and waited for by this thread,
// which moves it forward.
class TwoRanks {
 public:
  TwoRanks() {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    for (int rank = 0; rank < 2; ++rank) {
      auto options = c10::make_intrusive<UcxBackend::Options>();
      options->engine = ucx::Engine::start(network_.create_transport(), {});
      options->hosts = {0, 0};
      backends_.push_back(c10::make_intrusive<UcxBackend>(store, rank, 2, std::move(options)));
    }
  }

  template <typename Start>
  void call(const Start& start) {
    const std::array<c10::intrusive_ptr<c10d::Work>, 2> works = {start(*backends_[0], 0),
                                                                 start(*backends_[1], 1)};
    for (const auto& work : works) work->wait();
  }

 private:
  ucx::MemoryNetwork network_{{.seed = 1, .deliveries_per_progress = 4}};
  std::vector<c10::intrusive_ptr<UcxBackend>> backends_;
};

// 4 KiB in all.
std::vector<Row> rows_of_ucx() {
  const auto ranks = std::make_shared<TwoRanks>();
  const std::vector<at::Tensor> pieces = {at::ones({64, 8}), at::ones({64, 8})};
  const std::vector<at::Tensor> wholes = {at::empty({128, 8}), at::empty({128, 8})};
  return {{"all_gather_v of 4 KiB on ucx",
           [=] {
             ranks->call([&](UcxBackend& backend, int rank) {
               return backend.run(wholes[rank], pieces[rank],
                                  CollectiveSpec::all_gather_v({64, 64}, 0));
             });
           }},
          {"all_reduce of 4 KiB on ucx", [=] {
             ranks->call([&](UcxBackend& backend, int rank) {
               std::vector<at::Tensor> tensors = {wholes[rank]};
               c10d::AllreduceOptions options;
               options.asyncOp = false;
               return backend.allreduce(tensors, options);
             });
           }}};
}

int main_of(int argc, char** argv) {
  bool counts = false;
  CLI::App app("Host cost of the v-collectives, without wire.", "host_cost");
  app.add_flag("--count", counts, "Count instead of timing");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const auto group = LoopbackBackend::make_group(kRank, kWorld);
  if (!counts) {
    double load[1] = {};
    getloadavg(load, 1);
    std::printf("world of %d without wire, pieces of %d x %d float32, load average %.1f\n", kWorld,
                static_cast<int>(kRows), static_cast<int>(kColumns), load[0]);
  }
  std::vector<Row> rows;
  for (const Call& call : calls(group)) {
    for (Row& row : rows_of(call)) rows.push_back(std::move(row));
  }
  for (Row& row : rows_of_ucx()) rows.push_back(std::move(row));
  for (const Row& row : rows) {
    if (counts) {
      count(row, [&] { return LoopbackBackend::of(group).bytes_copied(); });
    } else {
      std::printf("%-50s %7.2f us\n", row.name.c_str(), microseconds({row}).front());
    }
  }
  std::fflush(nullptr);
  std::quick_exit(0);
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::main_of(argc, argv); }
