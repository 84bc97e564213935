// Collectives between processes of this machine: meshrun's, Gloo, Gloo under PhysicsNeMo's steps,
// Open MPI, in one run. Started by mpirun, one process for a rank; `collectives` beside this does
// that and prints the table. Rank 0 writes one JSON object a line: the machine, then a case each.
#include <malloc.h>
#include <mpi/mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "c10/core/GradMode.h"
#include "parallel/collectives/call/output_memory.h"
#include "parallel/comm/ucx/backend.h"
#include "tests/bench/collectives/contender.h"
#include "tests/bench/collectives/measure.h"
#include "tests/bench/collectives/world.h"

namespace meshrun::bench {
namespace {

struct Options {
  std::vector<std::string> operations = bench::operations();
  std::vector<int64_t> bytes = {256,     4 << 10, 64 << 10, 256 << 10,
                                1 << 20, 4 << 20, 16 << 20, 64 << 20};
  int rounds = 0;
  std::string dtype = "float32";
  bool even_only = false;
  bool first_dim_only = false;
  bool shared_input = false;
  std::vector<std::string> contenders;
};

int rounds_for(const Options& options, int64_t bytes) {
  if (options.rounds > 0) return std::max(options.rounds, kParts);
  return bytes >= 4 << 20 ? 30 : bytes >= 256 << 10 ? 60 : 200;
}

// The largest piece that a rank has of its own result, or gives to itself.
int64_t most_own_bytes(const Problem& problem) {
  int64_t extent = problem.sizes[0];
  // With one root, only that copies.
  if (problem.what.operation != "gather_v" && problem.what.operation != "scatter_v") {
    extent = *std::max_element(problem.sizes.begin(), problem.sizes.end());
  }
  return problem.what.bytes / problem.shape[problem.dim] * extent;
}

// The largest of any rank's, in the dtype of the input.
int64_t result_bytes(const Problem& problem) {
  int64_t mine = problem.expected.defined()
                     ? problem.expected.numel() * static_cast<int64_t>(problem.input.element_size())
                     : 0;
  MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  return mine;
}

// Whether every contender gave what it must.
bool run(const Options& options, int rank, int size) {
  const auto store = meet(rank, size);
  const Group ucx = make_group("ucx", store, rank, size);
  const Group gloo = make_group("gloo", store, rank, size);
  const auto backend =
      c10::dynamic_intrusive_pointer_cast<UcxBackend>(ucx->getBackend(c10::DeviceType::CPU));
  const auto engine_copied = [&] { return backend->engine()->counters().copied_bytes; };
  const auto dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const nlohmann::json header = machine(rank, size);
  if (rank == 0) std::printf("%s\n", header.dump().c_str());
  bool all_right = true;
  for (const std::string& operation : options.operations) {
    for (const bool last_dim : {false, true}) {
      if (last_dim && (options.first_dim_only || !has_last_dim(operation))) continue;
      for (const bool skewed : {false, true}) {
        if (skewed && (options.even_only || operation == "all_reduce")) continue;
        for (const int64_t bytes : options.bytes) {
          Problem problem({operation, bytes, skewed, last_dim}, rank, size, dtype);
          if (options.shared_input && problem.input.numel() > 0) {
            problem.input =
                empty_output(problem.input.sizes(), problem.input.options()).copy_(problem.input);
          }
          std::vector<Contender> contenders = ours(problem, ucx);
          contenders.push_back(physicsnemo_equivalent(problem, gloo));
          contenders.push_back(raw_gloo(problem, gloo));
          if (problem.check == Check::kBits || dtype == at::kFloat) {
            contenders.push_back(open_mpi(problem));
          }
          for (Contender& bound : bounds(problem)) contenders.push_back(std::move(bound));
          if (!options.contenders.empty()) {
            std::erase_if(contenders, [&](const Contender& c) {
              return std::find(options.contenders.begin(), options.contenders.end(), c.name) ==
                     options.contenders.end();
            });
          }
          const std::vector<Measured> all =
              measure(problem, contenders, {.timed = rounds_for(options, bytes)}, engine_copied);
          nlohmann::json row = {{"operation", operation},
                                {"bytes", bytes},
                                {"skewed", skewed},
                                {"dim", last_dim ? "last" : "0"},
                                {"dtype", options.dtype},
                                {"shared_input", options.shared_input},
                                {"bound_bytes", problem.bound_bytes},
                                {"run_bytes", problem.run_bytes()},
                                {"own_bytes", most_own_bytes(problem)},
                                {"result_bytes", result_bytes(problem)},
                                {"contenders", nlohmann::json::object()}};
          for (const Measured& m : all) {
            all_right = all_right && m.problem.empty();
            row["contenders"][m.name] = {{"median_us", m.median_us},
                                         {"p10_us", m.p10_us},
                                         {"p90_us", m.p90_us},
                                         {"parts_us", m.parts_us},
                                         {"in_shared_memory", m.in_shared_memory},
                                         {"allocations", m.allocations},
                                         {"peak_bytes", m.peak_bytes},
                                         {"copied_bytes", m.copied_bytes},
                                         {"note", m.note},
                                         {"problem", m.problem}};
          }
          if (rank == 0) {
            std::printf("%s\n", row.dump().c_str());
            std::fflush(stdout);
          }
        }
      }
    }
  }
  return all_right;
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app("Times collectives against Gloo and Open MPI; started by mpirun.", "collectives");
  app.add_option("--op", options.operations, "These operations only")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::operations()));
  app.add_option("--sizes", options.bytes, "Bytes")
      ->delimiter(',')
      ->check(CLI::Range(256, 1 << 30));
  app.add_option("--rounds", options.rounds, "Timed rounds, at least 10; 0: 30 to 200, by size");
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--only", options.contenders, "These contenders only")->delimiter(',');
  app.add_flag("--even", options.even_only, "Equal pieces only");
  app.add_flag("--dim-0", options.first_dim_only, "Pieces along dim 0 only");
  app.add_flag("--shared-input", options.shared_input, "What is read lies in the shared heap");
  CLI11_PARSE(app, argc, argv);
  // Memory is kept, so that nobody pays for the kernel's pages in each call.
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
    code = run(options, rank, size) ? 0 : 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives: rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  std::fflush(nullptr);
  // As meshrun's jobs end: the destructors of LibTorch's operator registry take 0.13 s.
  std::quick_exit(code);
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::main_of(argc, argv); }
