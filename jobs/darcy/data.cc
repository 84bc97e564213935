#include "jobs/darcy/data.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/fingerprint.h"
#include "jobs/darcy/medium.h"
#include "jobs/darcy/solver.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/collectives/gather_v.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

constexpr double kTolerance = 1e-8;
// Samples that are solved together, always the same ones.
constexpr int64_t kSolvedTogether = 25;
// Samples that are handed out together.
constexpr int64_t kHandedOut = 64;

std::string hexadecimal(uint64_t value) {
  std::ostringstream text;
  text << std::hex << value;
  return text.str();
}

int64_t samples_of(const DataOptions& options) {
  return options.train_samples + options.test_samples;
}

// [count, 2, rows, columns] float32: permeability and pressure.
Tensor solve(const DataOptions& options, int64_t first, int64_t count) {
  const Tensor fields = gaussian_fields(static_cast<uint64_t>(options.data_seed), first, count,
                                        options.size, options.size);
  const Tensor permeability = permeability_of(fields, options.medium);
  const Tensor source = at::ones({options.size, options.size}, at::kDouble);
  const Solution solution = solve_darcy(permeability, source, kTolerance);
  return at::stack({permeability, solution.pressure}, 1).to(at::kFloat);
}

// Raises the problem of any rank on all of them.
template <typename Error>
void raise_together(const jobs::RankMesh& mesh, const std::string& problem) {
  const std::string common = common_problem(*mesh.world, c10::kCPU, problem);
  if (!common.empty()) throw Error(common);
}

// Collective. All samples on rank 0, [samples, 2, rows, columns].
Tensor solve_together(const DataOptions& options, const jobs::RankMesh& mesh) {
  const int64_t all = samples_of(options);
  const int64_t chunks = (all + kSolvedTogether - 1) / kSolvedTogether;
  const int ranks = mesh.world->getSize();
  const auto samples_in = [&](const SplitRange& chunk_range) {
    return SplitRange{std::min(all, chunk_range.begin * kSolvedTogether),
                      std::min(all, chunk_range.end * kSolvedTogether)};
  };
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) {
    sizes.push_back(samples_in(split_range(chunks, ranks, rank)).size());
  }
  const SplitRange own_chunks = split_range(chunks, ranks, mesh.world->getRank());
  const SplitRange own = samples_in(own_chunks);
  Tensor solved = at::empty({own.size(), 2, options.size, options.size}, at::kFloat);
  std::string problem;
  try {
    // A thread for each chunk: small operators that share their work among threads wait for the
    // last of them, and long where other processes have the cores.
    at::parallel_for(own_chunks.begin, own_chunks.end, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const SplitRange part = samples_in({chunk, chunk + 1});
        solved.narrow(0, part.begin - own.begin, part.size())
            .copy_(solve(options, part.begin, part.size()));
      }
    });
  } catch (const std::exception& error) {
    problem = error.what();
  }
  raise_together<SolverError>(mesh, problem);
  return gather_v(solved, sizes, 0, 0, mesh.world);
}

void keep(const std::string& path, const DataOptions& options, const Tensor& samples) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const Tensor permeability = samples.select(1, 0).contiguous();
  const Tensor pressure = samples.select(1, 1).contiguous();
  write_data_file(path, {samples.size(0), samples.size(2), samples.size(3)},
                  permeability.const_data_ptr<float>(), pressure.const_data_ptr<float>(),
                  parameters_of(options));
}

// Rank 0's file; solves and keeps the samples first where there is none. Collective.
std::unique_ptr<DataFile> open_file(const DataOptions& options, const jobs::RankMesh& mesh,
                                    bool& solved) {
  const bool reads = mesh.world->getRank() == 0;
  const std::string path = options.data.empty() ? cache_path(options) : options.data;
  std::error_code ignored;
  const bool missing = reads && options.data.empty() && !std::filesystem::exists(path, ignored);
  solved = broadcast_text(*mesh.world, c10::kCPU, missing ? "missing" : "") == "missing";
  std::string problem;
  if (solved) {
    if (reads) {
      std::cout << "darcy: solving for " << samples_of(options) << " samples of " << options.size
                << " x " << options.size << ", kept in " << path << std::endl;
    }
    const Tensor samples = solve_together(options, mesh);
    try {
      if (reads) keep(path, options, samples);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  std::unique_ptr<DataFile> file;
  try {
    if (reads && problem.empty()) {
      file = std::make_unique<DataFile>(path);
      if (options.data.empty() && file->parameters() != parameters_of(options)) {
        throw DataError("the cached samples in " + path + " were made as \"" + file->parameters() +
                        "\", not as \"" + parameters_of(options) + "\"; remove the file");
      }
      if (file->shape().samples < samples_of(options)) {
        throw DataError("Darcy data " + path + " has " + std::to_string(file->shape().samples) +
                        " samples, but --train-samples and --test-samples together ask for " +
                        std::to_string(samples_of(options)));
      }
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  raise_together<DataError>(mesh, problem);
  return file;
}

DataShape broadcast_shape(const jobs::RankMesh& mesh, const DataFile* file, int64_t samples) {
  std::string text;
  if (file != nullptr) {
    text = nlohmann::json({samples, file->shape().rows, file->shape().columns}).dump();
  }
  const auto extents = nlohmann::json::parse(broadcast_text(*mesh.world, c10::kCPU, text))
                           .get<std::vector<int64_t>>();
  return {extents.at(0), extents.at(1), extents.at(2)};
}

// Sums over the training's samples, from which the scales follow.
struct Moments {
  double log_sum = 0;
  double log_squares = 0;
  double pressure_squares = 0;
  double cells = 0;

  void add(const Tensor& permeability, const Tensor& pressure) {
    const Tensor logs = permeability.to(at::kDouble).log();
    log_sum += logs.sum().item<double>();
    log_squares += logs.square().sum().item<double>();
    pressure_squares += pressure.to(at::kDouble).square().sum().item<double>();
    cells += static_cast<double>(permeability.numel());
  }
  void finish(Samples& samples) const {
    samples.log_permeability_mean = log_sum / cells;
    const double variance = log_squares / cells - log_sum / cells * (log_sum / cells);
    // A constant medium or pressure has nothing to scale by.
    if (variance > 1e-12) samples.log_permeability_deviation = std::sqrt(variance);
    if (pressure_squares > 0) {
      samples.pressure_root_mean_square = std::sqrt(pressure_squares / cells);
    }
  }
};

}  // namespace

std::string parameters_of(const DataOptions& options) {
  std::ostringstream text;
  text << "version 1, medium " << options.medium << ", " << options.size << " x " << options.size
       << ", " << samples_of(options) << " samples, seed " << options.data_seed << ", tolerance "
       << kTolerance;
  return text.str();
}

std::string cache_path(const DataOptions& options) {
  std::ostringstream name;
  name << options.medium << "-" << options.size << "x" << options.size << "-" << samples_of(options)
       << "-seed" << options.data_seed << "-" << hexadecimal(Fingerprint(parameters_of(options)))
       << ".h5";
  return (std::filesystem::path(options.cache) / name.str()).string();
}

Samples load_samples(const DataOptions& options, const jobs::RankMesh& mesh) {
  const auto start = std::chrono::steady_clock::now();
  Samples samples;
  const std::unique_ptr<DataFile> file = open_file(options, mesh, samples.solved);
  samples.shape = broadcast_shape(mesh, file.get(), samples_of(options));
  const auto [all, rows, columns] = samples.shape;
  if (columns < mesh.spatial->getSize() || rows < 2) {
    throw DataError("samples have " + std::to_string(columns) + " columns, fewer than the " +
                    std::to_string(mesh.spatial->getSize()) + " ranks that share one");
  }
  const SplitRange own = mesh.columns(columns);
  samples.permeability = at::empty({all, rows, own.size()}, at::kFloat);
  samples.pressure = at::empty_like(samples.permeability);
  samples.pressure_norm = at::empty({all}, at::kFloat);
  Moments moments;
  uint64_t fingerprint = 0;
  for (int64_t first = 0; first < all; first += kHandedOut) {
    const int64_t count = std::min(kHandedOut, all - first);
    std::vector<Tensor> both = {at::empty({2, count, rows, columns}, at::kFloat)};
    std::string problem;
    if (file) {
      auto* values = both[0].mutable_data_ptr<float>();
      try {
        file->read(first, count, values, values + count * rows * columns);
      } catch (const std::exception& error) {
        problem = error.what();
      }
    }
    raise_together<DataError>(mesh, problem);
    mesh.world->broadcast(both)->wait();
    const Tensor permeability = both[0][0];
    const Tensor pressure = both[0][1];
    samples.permeability.narrow(0, first, count)
        .copy_(permeability.narrow(2, own.begin, own.size()));
    samples.pressure.narrow(0, first, count).copy_(pressure.narrow(2, own.begin, own.size()));
    const Tensor norms = pressure.flatten(1).norm(2, 1);
    // Every rank sees this.
    if (norms.eq(0).any().item<bool>()) {
      throw DataError("the pressure of sample " +
                      std::to_string(first + norms.eq(0).nonzero()[0].item<int64_t>()) +
                      " is zero everywhere; its relative error has no meaning");
    }
    samples.pressure_norm.narrow(0, first, count).copy_(norms);
    const int64_t training = std::clamp<int64_t>(options.train_samples - first, 0, count);
    if (training > 0) {
      moments.add(permeability.narrow(0, 0, training), pressure.narrow(0, 0, training));
    }
    if (!options.data.empty()) {
      fingerprint = Fingerprint(
          hexadecimal(fingerprint) +
          std::string(static_cast<const char*>(both[0].const_data_ptr()), both[0].nbytes()));
    }
  }
  moments.finish(samples);
  samples.origin =
      options.data.empty() ? parameters_of(options) : "file " + hexadecimal(fingerprint);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  samples.seconds = elapsed.count();
  return samples;
}

}  // namespace meshrun::darcy
