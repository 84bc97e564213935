// Distributed two-dimensional transforms of processes of this machine: ours, PhysicsNeMo's steps,
// FFTW with MPI, in one run. Started by mpirun, one process for a rank; `fft` beside this does that
// and prints the table. Rank 0 writes one JSON object a line: the machine, then a case each.
#include <malloc.h>
#include <mpi/mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "c10/core/GradMode.h"
#include "parallel/base/split.h"
#include "parallel/fft/fft_plan.h"
#include "tests/bench/fft/contenders.h"

namespace meshrun::bench {
namespace {

struct Shape {
  const char* name;
  int64_t batch, channels, height, width, modes;
};

constexpr Shape kShapes[] = {
    {"AFNO-16", 1, 768, 45, 90, 16},      {"AFNO-8", 1, 256, 90, 180, 32},
    {"FNO-ERA5", 1, 16, 720, 1440, 32},   {"FNO-ERA5-721", 1, 16, 721, 1440, 32},
    {"CorrDiff-TW", 1, 20, 448, 448, 32},
};

double most(double mine) {
  double result = 0;
  MPI_Allreduce(&mine, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

double time_once(const FftContender& contender) {
  contender.call();
  at::Tensor result;
  MPI_Barrier(MPI_COMM_WORLD);
  const auto start = std::chrono::steady_clock::now();
  result = contender.call();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  return taken.count();
}

// What one rank writes at least: its part of the spectrum, by memcpy on all ranks at once.
FftContender plain_copy(const FftProblem& problem) {
  const int64_t rows = (problem.height / 2 + problem.size) / problem.size;
  const at::Tensor from = at::ones({problem.planes, rows, problem.width}, at::kComplexFloat);
  const at::Tensor to = at::empty_like(from);
  return {"memcpy", "bound: the spectrum written once", [=] { return to.copy_(from); }, nullptr};
}

fft::FftCost cost_of(const FftProblem& problem, const Group& group, fft::Layout layout,
                     int64_t modes) {
  fft::FftShape shape;
  shape.field_height = shape.height = problem.height;
  shape.width = problem.width;
  shape.field_columns = problem.columns;
  shape.layout = layout;
  const bool paired = layout == fft::Layout::kPaired;
  const int64_t rows = modes > 0 ? modes : paired ? problem.height / 2 + 1 : problem.height;
  shape.spectrum_rows = compute_split_shapes(rows, problem.size);
  shape.spectrum_columns = modes > 0 ? 2 * modes : paired ? problem.width : problem.width / 2 + 1;
  shape.both_signs = modes > 0;
  return fft::FftPlan(shape, group).cost(problem.planes, 4, fft::Direction::kForward);
}

bool run(int rank, int size, int rounds, const std::string& only) {
  const auto store = meet(rank, size);
  const Group ucx = make_group("ucx", store, rank, size);
  const Group gloo = make_group("gloo", store, rank, size);
  const nlohmann::json header = machine(rank, size);
  if (rank == 0) std::printf("%s\n", header.dump().c_str());
  bool all_right = true;
  for (const Shape& shape : kShapes) {
    if (!only.empty() && only != shape.name) continue;
    const FftProblem problem{
        shape.batch * shape.channels,           shape.height, shape.width, rank, size,
        compute_split_shapes(shape.width, size)};
    std::vector<FftContender> contenders = {our_forward(problem, ucx, true),
                                            our_forward(problem, ucx, false),
                                            our_inverse(problem, ucx, true),
                                            our_inverse(problem, ucx, false),
                                            our_modes(problem, ucx, shape.modes),
                                            physicsnemo_forward(problem, gloo, "physicsnemo_gloo"),
                                            physicsnemo_forward(problem, ucx, "physicsnemo_ours"),
                                            fftw_forward(problem),
                                            plain_copy(problem)};
    std::erase_if(contenders, [](const FftContender& c) { return !c.call; });
    nlohmann::json row = {{"shape", shape.name},
                          {"planes", problem.planes},
                          {"height", problem.height},
                          {"width", problem.width},
                          {"contenders", nlohmann::json::object()}};
    const int64_t complex_field = problem.planes * problem.height * problem.width * 8;
    row["peer_wire_bytes"] = complex_field / size * (size - 1) / size;
    row["paired_wire_bytes"] = cost_of(problem, ucx, fft::Layout::kPaired, 0).wire_bytes();
    row["canonical_wire_bytes"] = cost_of(problem, ucx, fft::Layout::kCanonical, 0).wire_bytes();
    row["modes_wire_bytes"] = cost_of(problem, ucx, fft::Layout::kPaired, shape.modes).wire_bytes();
    std::vector<double> errors;
    for (const FftContender& contender : contenders) {
      const at::Tensor result = contender.call();
      errors.push_back(contender.error ? most(contender.error(result)) : 0);
      all_right = all_right && errors.back() < 1e-5;
    }
    std::vector<std::vector<double>> times(contenders.size());
    std::vector<size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), 0);
    std::minstd_rand random(1);
    for (int round = -3; round < rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        const double time = most(time_once(contenders[i]));
        if (round >= 0) times[i].push_back(time);
      }
    }
    for (size_t i = 0; i < contenders.size(); ++i) {
      std::sort(times[i].begin(), times[i].end());
      row["contenders"][contenders[i].name] = {{"median_ms", times[i][times[i].size() / 2]},
                                               {"p10_ms", times[i][times[i].size() / 10]},
                                               {"p90_ms", times[i][times[i].size() * 9 / 10]},
                                               {"error", errors[i]},
                                               {"note", contenders[i].note}};
    }
    if (rank == 0) {
      std::printf("%s\n", row.dump().c_str());
      std::fflush(stdout);
    }
  }
  return all_right;
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  const std::string only = argc > 2 ? argv[2] : "";
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  at::set_num_threads(1);
  const c10::NoGradGuard no_grad;
  int size = 0, rank = 0;
  MPI_Init(nullptr, nullptr);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int code = 1;
  try {
    code = meshrun::bench::run(rank, size, rounds, only) ? 0 : 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fft: rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  std::fflush(nullptr);
  std::quick_exit(code);
}
