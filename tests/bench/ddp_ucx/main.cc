// Training steps under DistributedDataParallel over ucx and over Gloo, in turns, and when the
// gradients' all-reduces begin and end. Started by mpirun; `ddp_ucx` beside this does that and
// prints. Rank 0 writes one JSON object a line.
#include <malloc.h>
#include <mpi/mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/randn.h"
#include "jobs/geoid/network.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"
#include "tests/bench/collectives/world.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/optim/adam.h"
#include "torch/utils.h"

namespace meshrun::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Sizes of the geoid job, in which two ranks share a batch of 2,048.
constexpr int64_t kFeatures = 128;
constexpr double kFeatureScale = 4;
constexpr int64_t kHidden = 256;
constexpr int64_t kGeoidBatch = 1024;
// 25 million parameters.
constexpr int64_t kWidth = 512;
constexpr int64_t kLayerSize = 2144;
constexpr int64_t kLargeBatch = 64;

struct Marks {
  Clock::time_point backward, backward_end;
};

// One model on one backend.
class Trainer {
 public:
  virtual ~Trainer() = default;
  virtual Marks step() = 0;
  virtual int64_t parameters() const = 0;
};

template <class Module>
class TrainerOf final : public Trainer {
 public:
  TrainerOf(Module module, at::Tensor input, const Group& group)
      : model_(module, {.broadcast_buffers = false, .process_group = group}),
        optimizer_(model_->parameters(), torch::optim::AdamOptions(1e-4)),
        input_(std::move(input)) {}

  Marks step() override {
    optimizer_.zero_grad();
    const at::Tensor loss = model_(input_).square().mean();
    Marks marks{.backward = Clock::now()};
    loss.backward();
    marks.backward_end = Clock::now();
    optimizer_.step();
    return marks;
  }
  int64_t parameters() const override {
    int64_t count = 0;
    for (const at::Tensor& parameter : model_->parameters()) count += parameter.numel();
    return count;
  }

 private:
  DistributedDataParallel<typename Module::ContainedType> model_;
  torch::optim::Adam optimizer_;
  const at::Tensor input_;
};

std::unique_ptr<Trainer> make(const std::string& network, const Group& group, int rank) {
  torch::manual_seed(7);
  if (network == "geoid") {
    geoid::GeoidNetwork module(kFeatures, kFeatureScale, kHidden);
    torch::manual_seed(8 + static_cast<uint64_t>(rank));
    return std::make_unique<TrainerOf<geoid::GeoidNetwork>>(module, at::randn({kGeoidBatch, 3}),
                                                            group);
  }
  FullyConnected module(
      FullyConnectedOptions().in_features(kWidth).layer_size(kLayerSize).out_features(kWidth));
  torch::manual_seed(8 + static_cast<uint64_t>(rank));
  return std::make_unique<TrainerOf<FullyConnected>>(module, at::randn({kLargeBatch, kWidth}),
                                                     group);
}

// The slowest rank's, sorted.
nlohmann::json summary(std::vector<double> times) {
  MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1) + 0.5)];
  };
  return {{"median_ms", at(0.5)}, {"p10_ms", at(0.1)}, {"p90_ms", at(0.9)}};
}

double milliseconds(Clock::time_point time) {
  return std::chrono::duration<double, std::milli>(time.time_since_epoch()).count();
}

// When the all-reduces of the last step were submitted and done, from ucx's flight recorder, and
// when its backward pass ended; in ms since that began.
nlohmann::json trace(const Group& ucx, const Marks& marks) {
  const auto backend =
      c10::dynamic_intrusive_pointer_cast<UcxBackend>(ucx->getBackend(c10::DeviceType::CPU));
  const double origin = milliseconds(marks.backward);
  nlohmann::json buckets = nlohmann::json::array();
  const auto record = nlohmann::json::parse(backend->flight_record());
  for (const auto& operation : record.at("operations")) {
    const double begin = operation.at("submitted_ms").get<double>() - origin;
    if (begin < 0 || !operation.contains("finished_ms")) continue;
    buckets.push_back({{"bytes", operation.at("bytes")},
                       {"begin_ms", begin},
                       {"end_ms", operation.at("finished_ms").get<double>() - origin}});
  }
  return {{"backward_end_ms", milliseconds(marks.backward_end) - origin}, {"buckets", buckets}};
}

void run(const std::string& network, const c10::intrusive_ptr<c10d::Store>& store, int rank,
         int size, int rounds) {
  const std::vector<std::string> backends = {"ucx", "gloo"};
  std::vector<Group> groups;
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const std::string& backend : backends) {
    groups.push_back(make_group(backend, store, rank, size));
    trainers.push_back(make(network, groups.back(), rank));
  }
  std::vector<std::vector<double>> times(backends.size());
  nlohmann::json traced;
  for (int round = -10; round < rounds; ++round) {
    for (size_t i = 0; i < backends.size(); ++i) {
      const size_t which = (i + static_cast<size_t>(round & 1)) % backends.size();
      MPI_Barrier(MPI_COMM_WORLD);
      const auto start = Clock::now();
      const Marks marks = trainers[which]->step();
      const std::chrono::duration<double, std::milli> time = Clock::now() - start;
      if (round >= 0) times[which].push_back(time.count());
      if (which == 0 && round + 1 == rounds) traced = trace(groups[0], marks);
    }
  }
  nlohmann::json row = {
      {"network", network}, {"parameters", trainers[0]->parameters()}, {"trace", traced}};
  for (size_t i = 0; i < backends.size(); ++i) row[backends[i]] = summary(times[i]);
  if (rank == 0) std::printf("%s\n", row.dump().c_str());
}

int main_of(int argc, char** argv) {
  int rounds = 60;
  CLI::App app("DDP steps over ucx and Gloo; started by mpirun.", "ddp_ucx");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 100000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  at::set_num_threads(1);
  int size = 0, rank = 0;
  MPI_Init(nullptr, nullptr);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    const auto store = meet(rank, size);
    const nlohmann::json header = machine(rank, size);
    if (rank == 0) std::printf("%s\n", header.dump().c_str());
    for (const std::string network : {"geoid", "25M"}) {
      run(network, c10::make_intrusive<c10d::PrefixStore>(network, store), rank, size, rounds);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_ucx: rank %d: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  std::fflush(nullptr);
  // As meshrun's jobs end: the destructors of LibTorch's operator registry take 0.13 s.
  std::quick_exit(0);
}

}  // namespace
}  // namespace meshrun::bench

int main(int argc, char** argv) { return meshrun::bench::main_of(argc, argv); }
