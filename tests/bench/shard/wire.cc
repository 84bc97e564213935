// Redistribution between pinned ranks against the peer's sequence on Gloo, in C++: what PhysicsNeMo
// does in _shard_redistribute.py, step by step. Started by mpirun: see shard_wire beside it.
//
//   S to R   pad the flattened part to the longest, all-gather, slice, view, cat
//   S to S   cut and pack, all-to-all, unpack by cat
//
// Parts of the ranks are uneven, 1 : 2. Every contender is verified, warms up, and takes its turn
// in each round; the slowest rank's time counts. Rank 0 writes JSON lines.
#include <malloc.h>
#include <mpi/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/equal.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "tests/bench/collectives/world.h"
#include "third_party/libtorch/shims.h"

namespace meshrun::bench {
namespace {

constexpr int64_t kColumns = 1024;
constexpr int kWarmUp = 5, kRounds = 30;

struct Contender {
  std::string name;
  std::function<at::Tensor()> call;
  std::vector<double> microseconds;
};

at::Tensor peers_gather(const Group& gloo, const at::Tensor& part,
                        const std::vector<std::vector<int64_t>>& shapes) {
  int64_t longest = 0;
  for (const auto& shape : shapes) longest = std::max(longest, shape[0] * shape[1]);
  at::Tensor padded = at::empty({longest}, part.options());
  padded.narrow(0, 0, part.numel()).copy_(part.flatten());
  at::Tensor gathered = at::empty({longest * gloo->getSize()}, part.options());
  libtorch::all_gather_single(*gloo, gathered, padded)->wait();
  std::vector<at::Tensor> pieces;
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    pieces.push_back(
        gathered.narrow(0, static_cast<int64_t>(rank) * longest, shapes[rank][0] * shapes[rank][1])
            .view(shapes[rank]));
  }
  return at::cat(pieces, 0).contiguous();
}

at::Tensor peers_transpose(const Group& gloo, const at::Tensor& part,
                           const std::vector<std::vector<int64_t>>& shapes,
                           const std::vector<int64_t>& columns) {
  std::vector<at::Tensor> sent;
  std::vector<int64_t> sent_sizes, received_sizes;
  const int64_t own = columns[static_cast<size_t>(gloo->getRank())];
  int64_t begin = 0, total = 0;
  for (size_t rank = 0; rank < columns.size(); ++rank) {
    sent.push_back(part.narrow(1, begin, columns[rank]).contiguous().flatten());
    sent_sizes.push_back(sent.back().numel());
    received_sizes.push_back(shapes[rank][0] * own);
    begin += columns[rank];
    total += received_sizes.back();
  }
  at::Tensor packed = at::cat(sent);
  at::Tensor arrived = at::empty({total}, part.options());
  libtorch::all_to_all_single(*gloo, arrived, packed, received_sizes, sent_sizes)->wait();
  std::vector<at::Tensor> pieces;
  begin = 0;
  for (size_t rank = 0; rank < columns.size(); ++rank) {
    pieces.push_back(arrived.narrow(0, begin, received_sizes[rank]).view({shapes[rank][0], own}));
    begin += received_sizes[rank];
  }
  return at::cat(pieces, 0).contiguous();
}

nlohmann::json measure(std::vector<Contender> contenders, const at::Tensor& expected) {
  nlohmann::json medians;
  for (int round = -kWarmUp; round < kRounds; ++round) {
    for (Contender& contender : contenders) {
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = std::chrono::steady_clock::now();
      const at::Tensor result = contender.call();
      double time =
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count();
      MPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (round >= 0) contender.microseconds.push_back(time);
      TORCH_CHECK(at::equal(result, expected), contender.name, " gives other values");
    }
  }
  for (Contender& contender : contenders) {
    std::sort(contender.microseconds.begin(), contender.microseconds.end());
    medians[contender.name] = contender.microseconds[kRounds / 2];
  }
  return medians;
}

void run(int rank, int size) {
  const auto store = meet(rank, size);
  const Group ucx = make_group("ucx", store, rank, size);
  const Group gloo = make_group("gloo", store, rank, size);
  const nlohmann::json about = machine(rank, size);
  if (rank == 0) std::printf("%s\n", about.dump().c_str());
  MeshLayout layout{{"domain"}, {size}, {}};
  for (int other = 0; other < size; ++other) layout.ranks.push_back(other);
  const auto mesh = c10::make_intrusive<ShardMesh>(DeviceMesh(layout, rank),
                                                   std::vector<ShardMesh::Group>{ucx}, ucx);
  for (const int64_t mib : {1, 16, 64}) {
    const int64_t rows = mib * (1 << 20) / 4 / kColumns;
    std::vector<int64_t> sizes;
    std::vector<std::vector<int64_t>> shapes;
    int64_t left = rows;
    for (int other = 0; other < size; ++other) {
      sizes.push_back(other + 1 == size ? left : rows * (other + 1) / (size * (size + 1) / 2));
      left -= sizes.back();
    }
    for (const int64_t extent : sizes) shapes.push_back({extent, kColumns});
    const SpecPtr from = make_spec(
        mesh, ShardLayout::with_cuts({size}, {Shard(0)}, {{{0}, sizes}, {{}, {kColumns}}}));
    const at::Tensor whole = at::arange(rows * kColumns, at::kFloat).view({rows, kColumns});
    const at::Tensor part = whole.narrow(0, from->box().offsets[0], from->box().sizes[0]).clone();
    const SpecPtr replicated = target_spec(from, {Replicate()});
    const SpecPtr columns = target_spec(from, {Shard(1)});
    const nlohmann::json gather =
        measure({{"ours", [&] { return redistribute_local(part, from, replicated); }, {}},
                 {"peer on Gloo", [&] { return peers_gather(gloo, part, shapes); }, {}}},
                whole);
    const nlohmann::json transpose =
        measure({{"ours", [&] { return redistribute_local(part, from, columns); }, {}},
                 {"peer on Gloo",
                  [&] { return peers_transpose(gloo, part, shapes, columns->shard_sizes(0)); },
                  {}}},
                whole.narrow(1, columns->box().offsets[1], columns->box().sizes[1]).contiguous());
    if (rank != 0) continue;
    const nlohmann::json lines[] = {{{"name", "S to R"}, {"mib", mib}, {"us", gather}},
                                    {{"name", "S to S"}, {"mib", mib}, {"us", transpose}}};
    for (const nlohmann::json& line : lines) std::printf("%s\n", line.dump().c_str());
  }
}

int main_of() {
  // Memory is kept, so that nobody pays for the kernel's pages in each call.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  at::set_num_threads(1);
  int size = 0, rank = 0;
  MPI_Init(nullptr, nullptr);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    run(rank, size);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shard_wire: rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  std::fflush(nullptr);
  std::quick_exit(0);
}

}  // namespace
}  // namespace meshrun::bench

int main() { return meshrun::bench::main_of(); }
