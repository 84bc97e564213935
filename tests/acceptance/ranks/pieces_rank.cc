// A training whose model or optimizer lies in pieces on several ranks, which keeps snapshots in the
// memory of its ranks and goes on from them; run by tests/acceptance/checkpoints. It never opens a
// checkpoint.
//
//   pieces_rank --model zero|fno|shard --name NAME --journal DIR --result FILE
//               [--steps N] [--snapshot-every N] [--pace-ms MS] [--hurry FILE]
//   pieces_rank --model whole --megabytes M --name NAME --journal DIR [--steps N] [--pace-ms MS]
//
//   zero    a plain network, its moments in pieces
//   fno     an FNO over the world, its spectral weights and their moments in pieces
//   shard   a network whose parameters are ShardTensors on a mesh, uneven, some of them replicated
//           along one axis
//   whole   a module of M megabytes with Adam, whole on each rank
//
// A step's global batch depends on the step alone. So worlds of any size take the same steps, apart
// from rounding. A step sleeps MS, and in the second half of the training twenty times as long, so
// that it lasts until all kills are done; no step sleeps once the file of --hurry exists. Each rank
// leaves a journal; rank 0 writes the unsharded parameters and moments to FILE.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "parallel/base/split.h"
#include "parallel/checkpoint/tensor_file.h"
#include "parallel/collectives/fused_all_reduce.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_state.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distribute_module.h"
#include "parallel/nn/fno.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/acceptance/ranks/journal.h"

namespace meshrun::acceptance {
namespace {

using at::Tensor;

// Neither divides into pieces of one size. State on a rank is then at least ten times what a
// process reads from files when it joins a world, which is about 20 kB.
constexpr int64_t kWidth = 33, kHidden = 510;
constexpr int64_t kRows = 12;
// Schedule of the learning rate.
constexpr unsigned kDecaySteps = 10;
constexpr double kDecay = 0.9;

struct Options {
  std::string model, name, journal, result, hurry;
  int64_t steps = 60;
  int64_t snapshot_every = 0;
  int64_t pace_ms = 0;
  int64_t megabytes = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual torch::nn::Module& module() = 0;
  virtual torch::optim::Optimizer& optimizer() = 0;
  // Makes the gradients of the step's global batch. Collective.
  virtual void backward(int64_t step) = 0;
  // Bytes of this rank's parameters and moments.
  virtual int64_t bytes() { return 3 * parameter_bytes(); }

 protected:
  int64_t parameter_bytes() {
    int64_t bytes = 0;
    for (const Tensor& parameter : module().parameters()) {
      const Tensor own = is_sharded(parameter) ? local_of(parameter) : parameter;
      bytes += static_cast<int64_t>(own.nbytes());
    }
    return bytes;
  }
};

// The same on all ranks.
Tensor batch_of(int64_t step, at::IntArrayRef shape) {
  at::Generator numbers = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
  return at::randn(shape, numbers, at::TensorOptions(at::kDouble));
}

Tensor own_part(const Tensor& whole, int64_t dim) {
  const DistributedManager& manager = DistributedManager::get();
  const SplitRange own = split_range(whole.size(dim), manager.world_size(), manager.rank());
  return whole.narrow(dim, own.begin, own.size());
}

// This rank's summand of the loss.
Tensor share_of_loss(const Tensor& result, const Tensor& target, int64_t elements) {
  return (result - target).square().sum() / static_cast<double>(elements);
}

template <typename Module>
Module in_double(Module module) {
  module->to(at::kDouble);
  return module;
}

class ZeroModel : public Model {
 public:
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t step) override {
    const Tensor batch = batch_of(step, {kRows, kWidth});
    const Tensor rows = own_part(batch, 0);
    share_of_loss(network_->forward(rows), rows.sin(), batch.numel()).backward();
  }
  int64_t bytes() override { return parameter_bytes() + optimizer_.state_bytes(); }

 private:
  torch::nn::Sequential network_ = in_double(torch::nn::Sequential(
      torch::nn::Linear(kWidth, kHidden), torch::nn::Tanh(), torch::nn::Linear(kHidden, kHidden),
      torch::nn::Tanh(), torch::nn::Linear(kHidden, kWidth)));
  ZeroRedundancyOptimizer optimizer_{
      network_->parameters(), torch::optim::AdamWOptions(0.002), {.mean = false}};
};

class FnoModel : public Model {
 public:
  torch::nn::Module& module() override { return *network_; }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t step) override {
    const Tensor batch = batch_of(step, {2, 1, 16, 22});
    const Tensor columns = own_part(batch, 3);
    share_of_loss(network_(columns), columns.sin(), batch.numel()).backward();
  }

 private:
  // Six rows of modes: on four ranks they lie in uneven pieces.
  FNO network_ = in_double(
      FNO(FNOOptions().width(32).num_layers(2).modes({6, 3}).projection_channels(16).group(
          GroupArgument())));
  torch::optim::Adam optimizer_{network_->parameters(), torch::optim::AdamOptions(0.002)};
};

// Its linear maps are cut over all ranks, by rows or by columns; the last one is cut along one axis
// of the mesh and replicated along the other.
class ShardedNetwork : public torch::nn::Module {
 public:
  ShardedNetwork() {
    const int64_t ranks = DistributedManager::get().world_size();
    mesh_shape_ = ranks % 2 == 0 ? std::vector<int64_t>{2, ranks / 2} : std::vector<int64_t>{ranks};
    std::vector<std::string> names = {"first", "second"};
    names.resize(mesh_shape_.size());
    const DeviceMesh mesh = DistributedManager::get().initialize_mesh(mesh_shape_, names);
    shard_mesh_ = ShardMesh::of(mesh);
    rows_ = add("rows", {kHidden, kWidth}, {Shard(0), Shard(0)});
    columns_ = add("columns", {kWidth, kHidden}, {Shard(1), Shard(1)});
    replicated_ = add("replicated", {kWidth, kWidth}, {Shard(0), Replicate()});
    bias_ = register_parameter("bias", at::zeros({kWidth}, at::kDouble));
    distribute_module(*this, mesh);
  }

  Tensor forward(const Tensor& x) {
    const Tensor hidden = at::tanh(at::linear(x, rows_));
    return at::linear(at::tanh(at::linear(hidden, columns_)), replicated_, bias_);
  }

 private:
  // Each rank draws all of it, and keeps its part.
  Tensor add(const std::string& name, at::IntArrayRef shape, Placements placements) {
    placements.resize(mesh_shape_.size());
    const SpecPtr spec =
        make_spec(shard_mesh_, ShardLayout::split(mesh_shape_, placements, shape.vec()));
    Tensor values = at::randn(shape, at::kDouble) / std::sqrt(static_cast<double>(shape[1]));
    for (int64_t dim = 0; dim < values.dim(); ++dim) {
      const auto at = static_cast<size_t>(dim);
      values = values.narrow(dim, spec->box().offsets[at], spec->box().sizes[at]);
    }
    return register_parameter(name, ShardTensor(values.clone(), spec, /*requires_grad=*/true));
  }

  std::vector<int64_t> mesh_shape_;
  ShardMesh::Ptr shard_mesh_;
  Tensor rows_, columns_, replicated_, bias_;
};

class ShardModel : public Model {
 public:
  torch::nn::Module& module() override { return network_; }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t step) override {
    const Tensor batch = batch_of(step, {kRows, kWidth});
    at::mse_loss(network_.forward(batch), batch.sin()).backward();
  }

 private:
  ShardedNetwork network_;
  torch::optim::Adam optimizer_{network_.parameters(), torch::optim::AdamOptions(0.002)};
};

// All elements of all parameters have one value, which is a function of the step.
struct LargeNetwork : torch::nn::Module {
  static constexpr int64_t kSide = 2048;
  explicit LargeNetwork(int64_t megabytes) {
    for (int64_t i = 0; i * kSide * kSide * 4 < megabytes * 1'000'000; ++i) {
      register_parameter("layer" + std::to_string(i), at::full({kSide, kSide}, 0.5));
    }
  }
};

class WholeModel : public Model {
 public:
  explicit WholeModel(int64_t megabytes) : network_(megabytes) {}
  torch::nn::Module& module() override { return network_; }
  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  void backward(int64_t step) override {
    const double share = std::cos(static_cast<double>(step)) /
                         static_cast<double>(DistributedManager::get().world_size());
    gradient_.fill_(fused_all_reduce(at::full({}, share, at::kDouble)).item<double>());
    // One for all, so that they cost no memory.
    for (const Tensor& parameter : network_.parameters()) parameter.mutable_grad() = gradient_;
  }

 private:
  LargeNetwork network_;
  torch::optim::Adam optimizer_{network_.parameters(), torch::optim::AdamOptions(0.01)};
  Tensor gradient_ = at::zeros({LargeNetwork::kSide, LargeNetwork::kSide});
};

std::unique_ptr<Model> make_model(const Options& options) {
  torch::manual_seed(4);
  if (options.model == "zero") return std::make_unique<ZeroModel>();
  if (options.model == "fno") return std::make_unique<FnoModel>();
  if (options.model == "shard") return std::make_unique<ShardModel>();
  return std::make_unique<WholeModel>(options.megabytes);
}

// The whole of a parameter, or of a moment like it. Collective.
Tensor whole_of(const Tensor& tensor, const ParameterShard* shard) {
  if (is_sharded(tensor)) return ShardTensor(tensor).full_tensor();
  return shard == nullptr ? tensor : unsharded(tensor, *shard);
}

// Collective.
void write_result(const std::string& path, Model& model) {
  const at::NoGradGuard no_grad;
  const auto shards = parameter_shards(model.module());
  // A ZeroRedundancyOptimizer gives whole moments.
  const bool has_slices = dynamic_cast<ParameterStates*>(&model.optimizer()) != nullptr;
  std::map<std::string, Tensor> tensors;
  for (const auto& item : model.module().named_parameters()) {
    const auto found = shards.find(item.key());
    const ParameterShard* const shard = found == shards.end() ? nullptr : &found->second;
    tensors[item.key()] = whole_of(item.value(), shard);
    const ParameterState state = parameter_state(model.optimizer(), item.value());
    for (const auto& [moment, values] : state.moments) {
      tensors[moment + "." + item.key()] = has_slices ? values : whole_of(values, shard);
    }
    tensors["step." + item.key()] =
        at::full({1}, static_cast<double>(state.step.value_or(-1)), at::kDouble);
  }
  if (DistributedManager::get().rank() == 0) write_tensors(path, tensors);
}

// The largest distance of an element from what one element alone becomes in so many steps.
double distance_of_whole(Model& model, int64_t steps) {
  const Tensor one = at::full({1}, 0.5).requires_grad_();
  torch::optim::Adam optimizer({one}, torch::optim::AdamOptions(0.01));
  torch::optim::StepLR scheduler(optimizer, kDecaySteps, kDecay);
  for (int64_t step = 0; step < steps; ++step) {
    one.mutable_grad() = at::full({1}, std::cos(static_cast<double>(step)));
    optimizer.step();
    scheduler.step();
  }
  double distance = 0;
  for (const Tensor& parameter : model.module().parameters()) {
    const Tensor apart = (parameter.detach() - one.detach()).abs().max();
    distance = std::max(distance, apart.item<double>());
  }
  return distance;
}

// Bytes that this process has got from read() and its like, of files and pipes; -1: unknown. What
// comes through sockets' own calls and from other processes' memory is not among them.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  int64_t value = -1;
  return file >> key >> value && key == "rchar:" ? value : -1;
}

class Training {
 public:
  explicit Training(const Options& options) : options_(options) {}

  void run() {
    ElasticContext elastic({.on_joined = [this] { journal_.Move(agent().assignment()); },
                            .log = [this](const std::string& text) { say(text); }});
    elastic.run([&] { train(elastic); });
  }

 private:
  static agent::Agent& agent() {
    agent::Agent* const agent = DistributedManager::get().agent();
    TORCH_CHECK(agent != nullptr, "pieces_rank runs in a job of meshrun alone");
    return *agent;
  }

  void write(const std::string& what, nlohmann::json fields) {
    fields["run"] = options_.name;
    journal_.Write(what, std::move(fields));
  }

  void say(const std::string& text) {
    if (text.starts_with("leaves generation")) had_read_ = bytes_read();
    write("said", {{"text", text}});
    std::fprintf(stderr, "meshrun: %s\n", text.c_str());
  }

  void sleep(int64_t step) const {
    if (!options_.hurry.empty() && std::filesystem::exists(options_.hurry)) return;
    const int64_t times = step < options_.steps / 2 ? 1 : 20;
    std::this_thread::sleep_for(std::chrono::milliseconds(times * options_.pace_ms));
  }

  void train(ElasticContext& elastic) {
    const std::unique_ptr<Model> model = make_model(options_);
    torch::optim::Optimizer& optimizer = model->optimizer();
    torch::optim::StepLR scheduler(optimizer, kDecaySteps, kDecay);
    ElasticState state(elastic, model->module(), optimizer);
    state.keep("scheduler", scheduler);
    state.snapshot_every(options_.snapshot_every);
    const std::optional<int64_t> done = state.restore();
    write("restored", {{"done", done.value_or(-1)},
                       {"world", DistributedManager::get().world_size()},
                       {"node", agent().assignment().node_name},
                       {"read", bytes_read() - had_read_},
                       {"holds", model->bytes()}});
    for (const int64_t step : state.steps(done.value_or(0), options_.steps)) {
      sleep(step);
      optimizer.zero_grad();
      model->backward(step);
      state.update([&] {
        optimizer.step();
        scheduler.step();
      });
      write("step", {{"step", step + 1}});
    }
    if (!options_.result.empty()) write_result(options_.result, *model);
    nlohmann::json end = {{"steps", options_.steps}};
    if (options_.model == "whole") end["apart"] = distance_of_whole(*model, options_.steps);
    write("end", end);
  }

  const Options& options_;
  Journal journal_{options_.journal, agent().assignment()};
  // Before this process entered the world, or when it left one.
  int64_t had_read_ = bytes_read();
};

void run(const Options& options) {
  torch::set_num_threads(1);
  DistributedManager::initialize();
  Training(options).run();
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun::acceptance

int main(int argc, char** argv) {
  meshrun::acceptance::Options options;
  CLI::App app("A training in pieces that goes on from its ranks' memory.", "pieces_rank");
  app.add_option("--model", options.model, "What lies in pieces")
      ->required()
      ->check(CLI::IsMember({"zero", "fno", "shard", "whole"}));
  app.add_option("--name", options.name, "Name of this run in the journals")->required();
  app.add_option("--journal", options.journal, "Directory of the ranks' journals")->required();
  app.add_option("--result", options.result, "File of the unsharded state at the end");
  app.add_option("--steps", options.steps, "In all");
  app.add_option("--snapshot-every", options.snapshot_every, "Steps between snapshots; 0: none");
  app.add_option("--pace-ms", options.pace_ms, "Sleep of a rank in each step");
  app.add_option("--hurry", options.hurry, "File that ends the sleeps");
  app.add_option("--megabytes", options.megabytes, "Size of the whole model's parameters");
  CLI11_PARSE(app, argc, argv);
  try {
    meshrun::acceptance::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pieces_rank: %s\n", error.what());
    return 1;
  }
}
