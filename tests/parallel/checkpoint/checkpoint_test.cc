// Checkpoints of modules with sharded parameters, in real rank processes.
#include "parallel/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <vector>

#include "core/hash.h"
#include "parallel/base/collective_errors.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/read_parameters.h"
#include "parallel/checkpoint/step_directories.h"
#include "parallel/checkpoint/stored_values.h"
#include "parallel/checkpoint/tensor_file.h"
#include "parallel/checkpoint/training_memory.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/shard/random/random_operation.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/support/fake_agent.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern torch::nn::Module& module;
extern torch::optim::Optimizer& optimizer;
extern StateRecorder& recorder;
extern const std::optional<TrainingMemory> memory;
extern const GroupArgument group;
}  // namespace given

namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = RankWorld::Group;

// By name: the unsharded values at the start.
Tensor initial(const std::string& name, at::IntArrayRef shape, at::ScalarType type) {
  const auto seed = static_cast<double>(name.size());
  const Tensor real = at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble).view(shape);
  if (type != at::kComplexDouble) return at::cos(real * seed).to(type);
  return at::complex(at::cos(real * seed), at::sin(real * seed));
}

// One complex128 parameter that is cut along its last dimension, the first ranks with the last
// pieces, and one of so few rows that some ranks have none.
struct SpectralImpl : torch::nn::Module, ShardedParameters {
  explicit SpectralImpl(Group group) {
    // LibTorch has no amsgrad for complex numbers.
    const bool real = variable("TEST_OPTIMIZER") == "Adam";
    add("weights", {3, 7}, real ? at::kDouble : at::kComplexDouble, 1, group, true);
    add("few", {2}, at::kFloat, 0, group, false);
  }
  void add(const std::string& name, std::vector<int64_t> shape, at::ScalarType type, int64_t dim,
           const Group& group, bool reversed) {
    const int size = group ? group->getSize() : 1;
    if (!group) {
      register_parameter(name, initial(name, shape, type));
      return;
    }
    ParameterShard shard{shape, dim, {}, group};
    for (int rank = 0; rank < size; ++rank) {
      shard.ranges.push_back(
          split_range(shape[static_cast<size_t>(dim)], size, reversed ? size - 1 - rank : rank));
    }
    register_parameter(name, shard_of(initial(name, shape, type), shard).clone());
    shards.emplace(name, shard);
  }
  std::map<std::string, ParameterShard> own_parameter_shards() const override { return shards; }
  std::map<std::string, ParameterShard> shards;
};
TORCH_MODULE(Spectral);

struct NetworkImpl : torch::nn::Module {
  // Without a group: the unsharded model.
  explicit NetworkImpl(const Group& group, int64_t width = 4) {
    register_parameter("bias", initial("bias", {width}, at::kFloat));
    // Begins in the file where the next one does.
    register_parameter("empty", initial("empty", {0, 3}, at::kFloat));
    register_buffer("scale", at::full({}, 3, at::kLong));
    register_module("block", Spectral(group));
  }
};
TORCH_MODULE(Network);

// Sets the gradients of step `step`, which are a function of the name and the step alone.
void set_gradients(Network& network, int64_t step) {
  const auto shards = parameter_shards(*network);
  for (auto& item : network->named_parameters()) {
    const auto shard = shards.find(item.key());
    const at::IntArrayRef shape =
        shard == shards.end() ? item.value().sizes() : at::IntArrayRef(shard->second.global_shape);
    const Tensor whole = initial(item.key() + std::string(static_cast<size_t>(step), 'x'), shape,
                                 item.value().scalar_type());
    item.value().mutable_grad() =
        shard == shards.end() ? whole : shard_of(whole, shard->second).clone();
  }
}

void train(Network& network, torch::optim::Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    set_gradients(network, step);
    optimizer.step();
  }
}

void expect_equal(Network& actual, Network& whole) {
  const auto shards = parameter_shards(*actual);
  const auto wanted = whole->named_parameters();
  for (const auto& item : actual->named_parameters()) {
    const auto shard = shards.find(item.key());
    const Tensor& expected = wanted[item.key()];
    const Tensor part = shard == shards.end() ? expected : shard_of(expected, shard->second);
    EXPECT_TRUE(at::allclose(item.value(), part, 1e-6, 1e-9)) << item.key();
  }
  EXPECT_TRUE(at::equal(actual->named_buffers()["scale"], whole->named_buffers()["scale"]));
}

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;
Optimizer make_optimizer(Network& network, const std::string& kind = "AdamW") {
  using torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamW,
      torch::optim::AdamWOptions, torch::optim::RMSprop, torch::optim::SGD,
      torch::optim::SGDOptions;
  const std::vector<Tensor> parameters = network->parameters();
  if (kind == "SGD") {
    return std::make_unique<SGD>(parameters, SGDOptions(0.01).momentum(0.9).dampening(0.5));
  }
  if (kind == "Adam") {
    return std::make_unique<Adam>(parameters, AdamOptions(0.01).amsgrad(true));
  }
  return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
}

std::string directory() { return variable("TEST_DIRECTORY"); }
CheckpointOptions options(const std::string& rate = "0.01") {
  return {.identity = {{"job", "test"}, {"--lr", rate}}};
}

// The shards' group: the world, or pairs of ranks (dp x spatial).
Group shard_group(const RankWorld& world) {
  if (variable("TEST_PAIRS").empty()) return world.group();
  const Group first = world.make_group({0, 1});
  const Group second = world.make_group({2, 3});
  return first ? first : second;
}

constexpr int64_t kSavedAt = 3;
constexpr int64_t kEnd = 6;

const bool kWrites = register_rank_function("writes", [] {
  const RankWorld world;
  const std::string kind = variable("TEST_OPTIMIZER", "AdamW");
  Network network(shard_group(world));
  const Optimizer optimizer = make_optimizer(network, kind);
  train(network, *optimizer, 0, kSavedAt);
  CheckpointDirectory checkpoints(directory() + "/" + variable("TEST_NAME"), options());
  at::manual_seed(17);
  checkpoints.save(*network, *optimizer, {kSavedAt, {{"seed", "7"}}});
});

const bool kReads = register_rank_function("reads", [] {
  const RankWorld world;
  const std::string kind = variable("TEST_OPTIMIZER", "AdamW");
  Network whole((Group()));
  const Optimizer whole_optimizer = make_optimizer(whole, kind);
  train(whole, *whole_optimizer, 0, kEnd);
  at::manual_seed(17);
  const Tensor random = at::rand({4});
  const Group group = shard_group(world);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory())) {
    SCOPED_TRACE(entry.path().filename());
    Network network(group);
    const Optimizer optimizer = make_optimizer(network, kind);
    // What was before is forgotten.
    train(network, *optimizer, 0, 1);
    network->named_buffers()["scale"].fill_(9);
    at::manual_seed(world.rank());
    CheckpointDirectory checkpoints(entry.path(), options());
    const auto progress = checkpoints.load(*network, *optimizer);
    ASSERT_TRUE(progress);
    EXPECT_EQ(progress->step, kSavedAt);
    EXPECT_EQ(progress->sampler.at("seed"), "7");
    EXPECT_TRUE(at::equal(at::rand({4}), random));
    train(network, *optimizer, progress->step, kEnd);
    expect_equal(network, whole);
    write_parameters(directory() + "/../parameters-" + std::to_string(world.rank()), *network);
  }
});

// Ranks meet, so that what one does to files is seen by the next call of all.
void meet(const RankWorld& world) { world.group()->barrier()->wait(); }

template <typename Error>
void expect_error(const RankWorld& world, const std::string& text,
                  const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr(text));
  }
  meet(world);
}

const bool kFails = register_rank_function("fails", [] {
  const RankWorld world;
  const std::string path = directory() + "/run";
  const std::string model_file = path + "/step-3/model.safetensors";
  Network network(world.group());
  const Optimizer optimizer = make_optimizer(network);
  CheckpointDirectory checkpoints(path, options());
  EXPECT_FALSE(checkpoints.load(*network, *optimizer)) << "there is none";
  train(network, *optimizer, 0, kSavedAt);
  checkpoints.save(*network, *optimizer, {kSavedAt, {}});
  const auto load = [&](CheckpointDirectory from, const std::string& kind = "AdamW",
                        int64_t width = 4) {
    Network other(world.group(), width);
    const Optimizer its = make_optimizer(other, kind);
    try {
      from.load(*other, *its);
    } catch (...) {
      EXPECT_TRUE(its->state().empty());
      if (width == 4) {
        Network untouched((Group()));
        expect_equal(other, untouched);
      }
      throw;
    }
  };
  const auto on_rank_0 = [&](const std::function<void()>& work) {
    if (world.rank() == 0) work();
    meet(world);
  };

  expect_error<CheckpointMismatchError>(world, "was written with --lr 0.01, but this run has 0.02",
                                        [&] { load(CheckpointDirectory(path, options("0.02"))); });
  expect_error<CheckpointMismatchError>(world, "the optimizer AdamW, but this run has SGD", [&] {
    load({path, options()}, "SGD");
  });
  expect_error<CheckpointMismatchError>(world, "holds bias as F32 [4], but this run's is F32 [5]",
                                        [&] {
                                          load({path, options()}, "AdamW", 5);
                                        });

  on_rank_0([&] { fs::copy(path + "/step-3", directory() + "/kept"); });
  on_rank_0([&] { fs::resize_file(model_file, 100); });
  expect_error<CheckpointDamagedError>(world, "is truncated: 100 bytes", [&] {
    load({path, options()});
  });
  on_rank_0([&] {
    fs::copy_file(directory() + "/kept/model.safetensors", model_file,
                  fs::copy_options::overwrite_existing);
    std::fstream file(model_file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  });
  expect_error<CheckpointDamagedError>(world, "is damaged: byte", [&] { load({path, options()}); });
  on_rank_0([&] {
    fs::copy_file(directory() + "/kept/model.safetensors", model_file,
                  fs::copy_options::overwrite_existing);
  });
  load({path, options()});

  // Nothing falls back to an older one by itself; the error says which there is.
  checkpoints.save(*network, *optimizer, {kSavedAt + 1, {}});
  const std::string newer = path + "/step-" + std::to_string(kSavedAt + 1);
  on_rank_0([&] { fs::resize_file(newer + "/model.safetensors", 100); });
  expect_error<CheckpointDamagedError>(
      world, "to go on from the one before, " + path + "/step-3, remove " + newer, [&] {
        load({path, options()});
      });

  on_rank_0([&] { std::ofstream(directory() + "/file") << "not a directory"; });
  expect_error<CheckpointFileError>(world, "file", [&] {
    CheckpointDirectory(directory() + "/file/run", options())
        .save(*network, *optimizer, {kSavedAt, {}});
  });
  expect_error<CheckpointFileError>(
      world, "cannot write checkpoints: " + directory() + "/file",
      [&] { CheckpointDirectory(directory() + "/file/run", options()).check_writable(); });
  CheckpointDirectory(directory() + "/fresh", options()).check_writable();
  EXPECT_TRUE(fs::is_directory(directory() + "/fresh"));
  on_rank_0([&] {
    fs::create_directory(directory() + "/former");
    std::ofstream(directory() + "/former/test.safetensors") << "old";
  });
  CheckpointOptions with_former = options();
  with_former.former_file = "test.safetensors";
  expect_error<CheckpointMismatchError>(world, "format of an earlier version", [&] {
    load(CheckpointDirectory(directory() + "/former", with_former));
  });
  torch::optim::RMSprop other(network->parameters());
  expect_error<c10::NotImplementedError>(world, "Adam, AdamW or SGD", [&] {
    checkpoints.save(*network, other, {4, {}});
  });
  EXPECT_THROW(CheckpointDirectory(path, {.keep = 0}), c10::ValueError);
  // One rank alone saves: the error names what the program has called.
  expect_error<CollectiveMismatchError>(world, "rank 2 called CheckpointDirectory::save (", [&] {
    if (world.rank() == 2) {
      checkpoints.save(*network, *optimizer, {4, {}});
    } else {
      world.group()->barrier()->wait();
    }
  });
});

using Tensors = std::map<std::string, Tensor>;

// Rank 0 alone has the files.
const bool kReadsParameters = register_rank_function("reads_parameters", [] {
  const RankWorld world;
  const std::string path = directory() + "/parameters";
  Network trained(world.group());
  const Optimizer optimizer = make_optimizer(trained);
  train(trained, *optimizer, 0, kSavedAt);
  write_parameters(path + "-" + std::to_string(world.rank()), *trained);
  const std::string file = world.rank() == 0 ? path + "-0" : "nowhere";
  // What `change` makes of the file.
  const auto changed = [&](const std::function<void(Tensors&)>& change) {
    if (world.rank() == 0) {
      Tensors content = read_tensors(file);
      change(content);
      write_tensors(path, content);
    }
    return world.rank() == 0 ? path : file;
  };
  const auto expect = [&](Network& network, int64_t scale) {
    const auto wanted = trained->named_parameters();
    for (const auto& item : network->named_parameters()) {
      EXPECT_TRUE(at::equal(item.value(), wanted[item.key()])) << item.key();
    }
    EXPECT_EQ(network->named_buffers()["scale"].item<int64_t>(), scale);
  };

  Network network(world.group());
  network->named_buffers()["scale"].fill_(9);
  read_parameters(file, *network);
  expect(network, 9);  // the file has no buffer
  read_parameters(changed([](Tensors& content) { content["scale"] = at::full({}, 5, at::kLong); }),
                  *network);
  expect(network, 5);

  // All that is wrong in one sentence, and nothing changes.
  const auto fails = [&](const std::string& from) { read_parameters(from, *network); };
  const std::string wrong = changed([](Tensors& content) {
    content["block.few"] = at::zeros({2}, at::kDouble);
    content["extra"] = at::zeros({1});
    content.erase("bias");
  });
  for (const char* const text : {"it lacks bias", "it holds extra, which the module does not have",
                                 "it holds block.few as F64 [2] instead of F32 [2]"}) {
    expect_error<CheckpointMismatchError>(world, text, [&] { fails(wrong); });
  }
  // A wrapper's names, in the module and in the file. The file has no buffer.
  torch::nn::Module wrapper;
  wrapper.register_module("module", network);
  expect_error<CheckpointMismatchError>(world, "do: pass the wrapped module",
                                        [&] { read_parameters(file, wrapper); });
  const std::string wrapped = changed([](Tensors& content) {
    Tensors renamed;
    for (const auto& [name, tensor] : content) renamed["module." + name] = tensor;
    content = renamed;
  });
  expect_error<CheckpointMismatchError>(world, "do: write the wrapped module",
                                        [&] { fails(wrapped); });
  expect(network, 5);
  if (world.rank() == 0) {
    std::ofstream(path, std::ios::binary) << std::string("PK\x03\x04\0\0\x08\x08", 8) << "data";
  }
  expect_error<CheckpointDamagedError>(world, "its end is not that of a zip",
                                       [&] { fails(wrong); });
  expect_error<CheckpointFileError>(world, "nowhere", [&] { fails("nowhere"); });
  expect(network, 5);
});

// Parameters that are ShardTensors: cut along rows, along columns, along both on a mesh of two
// axes, and a plain one beside them. On one rank they are whole.
struct ShardedNetwork : torch::nn::Module {
  explicit ShardedNetwork(int world_size) {
    const bool is_grid = world_size % 2 == 0;
    const std::vector<int64_t> shape =
        is_grid ? std::vector<int64_t>{2, world_size / 2} : std::vector<int64_t>{world_size};
    const std::vector<std::string> names =
        is_grid ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{"a"};
    const ShardMesh::Ptr mesh =
        ShardMesh::of(DistributedManager::get().initialize_mesh(shape, names));
    const auto add = [&](const std::string& name, at::IntArrayRef whole, Placements placements,
                         at::ScalarType dtype) {
      if (!is_grid) placements.resize(1);
      const SpecPtr spec = make_spec(mesh, ShardLayout::split(shape, placements, whole.vec()));
      specs[name] = spec;
      const Tensor local = part(initial(name, whole, dtype), spec).clone();
      register_parameter(name, ShardTensor(local, spec, true));
    };
    add("rows", {7, 3}, {Shard(0), Shard(0)}, at::kFloat);
    add("columns", {300, 70}, {Shard(1), Replicate()}, at::kFloat);
    add("grid", {6, 5, 8}, {Shard(2), Shard(1)}, at::kComplexDouble);
    add("replicated", {4}, {Replicate(), Replicate()}, at::kDouble);
    add("empty", {0, 3}, {Shard(1), Replicate()}, at::kFloat);
    register_parameter("plain", initial("plain", {3}, at::kFloat));
  }
  static Tensor part(Tensor whole, const SpecPtr& spec) {
    for (int64_t d = 0; d < whole.dim(); ++d) {
      const auto at = static_cast<size_t>(d);
      whole = whole.narrow(d, spec->box().offsets[at], spec->box().sizes[at]);
    }
    return whole;
  }
  // This rank's part of a tensor like the parameter.
  Tensor own(const std::string& name, const Tensor& whole) const {
    const auto spec = specs.find(name);
    return spec == specs.end() ? whole : part(whole, spec->second);
  }
  std::map<std::string, SpecPtr> specs;
};

void train_sharded(ShardedNetwork& network, torch::optim::Optimizer& optimizer, int64_t from,
                   int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    for (auto& item : network.named_parameters()) {
      const Tensor whole = initial(item.key() + std::string(static_cast<size_t>(step), 'x'),
                                   item.value().sizes(), item.value().scalar_type());
      const auto spec = network.specs.find(item.key());
      const Tensor own = network.own(item.key(), whole).clone();
      item.value().mutable_grad() =
          spec == network.specs.end() ? own : Tensor(ShardTensor(own, spec->second));
    }
    optimizer.step();
  }
}

Tensor local_values(const Tensor& tensor) { return is_sharded(tensor) ? local_of(tensor) : tensor; }

const bool kWritesSharded = register_rank_function("writes_sharded", [] {
  const RankWorld world;
  ShardedNetwork network(world.size());
  torch::optim::Adam optimizer(network.parameters(), torch::optim::AdamOptions(0.01));
  train_sharded(network, optimizer, 0, kSavedAt);
  CheckpointDirectory checkpoints(directory() + "/" + variable("TEST_NAME"), options());
  checkpoints.save(network, optimizer, {kSavedAt, {}});
  // A summand is neither a piece nor a whole.
  const ShardMesh::Ptr mesh = network.specs.at("rows")->mesh();
  Placements placements(mesh->shape().size(), Replicate());
  placements[0] = Partial();
  const ShardLayout layout = ShardLayout::split(mesh->shape(), placements, {3});
  torch::nn::Module summand;
  summand.register_buffer("sum", ShardTensor(at::ones({3}), make_spec(mesh, layout)));
  torch::optim::SGD other(summand.parameters(), torch::optim::SGDOptions(0.1));
  expect_error<c10::NotImplementedError>(world, "sum is a ShardTensor whose ranks hold summands",
                                         [&] {
                                           checkpoints.save(summand, other, {4, {}});
                                         });
  // Nobody else has a lost rank's part: the ranks are started anew after a loss.
  EXPECT_FALSE(is_whole(network, optimizer));
});

const bool kReadsSharded = register_rank_function("reads_sharded", [] {
  const RankWorld world;
  ShardedNetwork expected(world.size());
  torch::optim::Adam its(expected.parameters(), torch::optim::AdamOptions(0.01));
  train_sharded(expected, its, 0, kEnd);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory())) {
    SCOPED_TRACE(entry.path().filename());
    ShardedNetwork network(world.size());
    torch::optim::Adam optimizer(network.parameters(), torch::optim::AdamOptions(0.02));
    train_sharded(network, optimizer, 0, 1);
    CheckpointDirectory checkpoints(entry.path(), options());
    const auto progress = checkpoints.load(network, optimizer);
    ASSERT_TRUE(progress);
    train_sharded(network, optimizer, progress->step, kEnd);
    const auto wanted = expected.named_parameters();
    for (const auto& item : network.named_parameters()) {
      EXPECT_TRUE(at::equal(local_values(item.value()), local_values(wanted[item.key()])))
          << item.key();
    }
    const Tensor before = local_values(network.named_parameters()["rows"]).clone();
    network.named_parameters()["rows"].detach().zero_();
    read_parameters(entry.path() / "step-3/model.safetensors", network);
    EXPECT_FALSE(
        at::equal(local_values(network.named_parameters()["rows"]), at::zeros_like(before)) &&
        before.numel() > 0);
    write_parameters(directory() + "/../sharded-" + std::to_string(world.rank()), network);
  }
});

// While it lives, this rank cannot write files. For a disk that refuses.
class NoFiles {
 public:
  explicit NoFiles(bool is_on) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none = {0, before_.rlim_max};
    if (is_on) ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoFiles() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

// Makes a checkpoint what versions before 0.3 wrote: a SHA-256 for each file.
void make_version_1(const std::string& step) {
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(step + "/manifest.json"));
  manifest["version"] = 1;
  manifest.erase("save");
  manifest.erase("written");
  for (auto& [name, file] : manifest["files"].items()) {
    std::ifstream stream(step + "/" + name, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(stream)), {});
    file.erase("chunks");
    file["sha256"] = HexEncode(Sha256(content));
  }
  std::ofstream(step + "/manifest.json") << manifest;
}

const bool kReadsVersion1 = register_rank_function("reads_version_1", [] {
  const RankWorld world;
  const std::string path = directory() + "/run";
  Network network(world.group());
  const Optimizer optimizer = make_optimizer(network);
  train(network, *optimizer, 0, kSavedAt);
  CheckpointDirectory(path, options()).save(*network, *optimizer, {kSavedAt, {}});
  if (world.rank() == 0) make_version_1(path + "/step-3");
  meet(world);
  const auto load = [&](Network& other) {
    const Optimizer its = make_optimizer(other);
    return CheckpointDirectory(path, options()).load(*other, *its);
  };
  Network other(world.group());
  EXPECT_EQ(load(other)->step, kSavedAt);
  Network whole((Group()));
  const Optimizer whole_optimizer = make_optimizer(whole);
  train(whole, *whole_optimizer, 0, kSavedAt);
  expect_equal(other, whole);
  meet(world);
  if (world.rank() == 0) {
    std::fstream file(path + "/step-3/optimizer.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }
  meet(world);
  Network untouched(world.group());
  expect_error<CheckpointDamagedError>(world, "SHA-256", [&] { load(untouched); });
  expect_equal(untouched, *std::make_unique<Network>(Group()));
});

// What write_version_1 saved, by the code of that time.
const bool kReadsSample = register_rank_function("reads_sample", [] {
  const RankWorld world;
  const std::string path = directory() + "/run";
  if (world.rank() == 0) {
    fs::copy("tests/parallel/checkpoint/samples/version_1", path, fs::copy_options::recursive);
  }
  meet(world);
  torch::nn::Linear linear(3, 2);
  torch::optim::Adam optimizer(linear->parameters(),
                               torch::optim::AdamOptions(0.5).betas({0.25, 0.5}));
  CheckpointOptions options = {.identity = {{"job", "version 1"}, {"--lr", "0.25"}}};
  at::manual_seed(world.rank());
  const auto progress = CheckpointDirectory(path, options).load(*linear, optimizer);
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, 3);
  EXPECT_EQ(progress->sampler,
            (std::map<std::string, std::string>{{"next_step", "3"}, {"seed", "7"}}));
  const Tensor random = at::rand({4});
  at::manual_seed(17);
  EXPECT_TRUE(at::equal(random, at::rand({4})));

  EXPECT_TRUE(at::equal(linear->weight, at::arange(6, at::kFloat).view({2, 3}) / 4 - 0.5));
  EXPECT_TRUE(at::equal(linear->bias, at::tensor({1.5, -2.0}, at::kFloat)));
  for (const Tensor& parameter : linear->parameters()) {
    // Gradient k + step, betas 0.5 and 0.75.
    Tensor mean = at::zeros_like(parameter.detach());
    Tensor square = at::zeros_like(mean);
    for (int step = 1; step <= 3; ++step) {
      const Tensor gradient = (at::arange(parameter.numel(), at::kFloat) + step).view_as(parameter);
      mean = 0.5 * mean + 0.5 * gradient;
      square = 0.75 * square + 0.25 * gradient * gradient;
    }
    const ParameterState state = parameter_state(optimizer, parameter);
    EXPECT_EQ(state.step, 3);
    ASSERT_EQ(state.moments.size(), 2u);
    EXPECT_TRUE(at::equal(state.moments.at("exp_avg"), mean));
    EXPECT_TRUE(at::equal(state.moments.at("exp_avg_sq"), square));
  }
  // It has no options, so those of this program stay.
  const auto& kept = static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options());
  EXPECT_EQ(kept.lr(), 0.5);
  EXPECT_EQ(kept.betas(), std::make_tuple(0.25, 0.5));

  options.identity["--lr"] = "0.5";
  expect_error<CheckpointMismatchError>(world, "was written with --lr 0.25", [&] {
    CheckpointDirectory(path, options).load(*linear, optimizer);
  });
});

const bool kSavesOtherModels = register_rank_function("saves_other_models", [] {
  const RankWorld world;
  CheckpointDirectory checkpoints(directory() + "/run", options());
  const auto save = [&](int64_t width, const std::string& kept_name, double value) {
    torch::nn::Linear linear(width, 2);
    const at::NoGradGuard no_grad;
    linear->weight.fill_(value);
    torch::optim::Adam optimizer(linear->parameters());
    KeptValues kept;
    const Tensor best = at::full({}, value);
    kept.keep(kept_name, best);
    checkpoints.save(*linear, optimizer, {1, {}}, kept);
  };
  const int rank = world.rank();
  expect_error<c10::ValueError>(world,
                                "rank 0 has weight as F32 [2, 3], and rank 1 has weight as "
                                "F32 [2, 4]: all ranks save the same model",
                                [&] { save(rank == 1 ? 4 : 3, "best", 1); });
  expect_error<c10::ValueError>(world, "rank 0 has best as F32 [], and rank 1 has no best",
                                [&] { save(3, rank == 1 ? "worst" : "best", 1); });
  // Where values differ, rank 0's are written: never those of several ranks.
  save(3, "best", rank + 1);
  const Tensors model = read_tensors(directory() + "/run/step-1/model.safetensors");
  EXPECT_TRUE(at::equal(model.at("weight"), at::ones({2, 3})));
  EXPECT_EQ(read_tensors(directory() + "/run/step-1/kept.safetensors").at("best").item<float>(), 1);
});

const bool kSavesInBackground = register_rank_function("saves_in_background", [] {
  const RankWorld world;
  const std::string path = directory() + "/run";
  Network network(world.group());
  const Optimizer optimizer = make_optimizer(network);
  train(network, *optimizer, 0, 1);
  CheckpointDirectory checkpoints(path, options());
  for (int64_t step = 1; step < kEnd; ++step) {
    checkpoints.save_async(*network, *optimizer, {step, {}});
    train(network, *optimizer, step, step + 1);  // while it is written
  }
  checkpoints.wait();
  EXPECT_FALSE(checkpoints.is_writing());
  checkpoints.wait();  // nothing is left to wait for
  Network whole((Group()));
  const Optimizer whole_optimizer = make_optimizer(whole);
  train(whole, *whole_optimizer, 0, kEnd - 1);
  const auto expect_loads = [&](int64_t step) {
    Network other(world.group());
    const Optimizer its = make_optimizer(other);
    EXPECT_EQ(CheckpointDirectory(path, options()).load(*other, *its)->step, step);
    expect_equal(other, whole);
  };
  expect_loads(kEnd - 1);
  meet(world);

  // One rank's disk refuses: all say so, nothing is left of it, and the former one stays.
  const std::string text = "rank 1 on ";
  {
    const NoFiles none(world.rank() == 1);
    expect_error<CheckpointFileError>(world, text, [&] {
      checkpoints.save(*network, *optimizer, {kEnd, {}});
    });
    checkpoints.save_async(*network, *optimizer, {kEnd, {}});
    expect_error<CheckpointFileError>(world, text, [&] { checkpoints.wait(); });
    checkpoints.save_async(*network, *optimizer, {kEnd, {}});
    expect_error<CheckpointFileError>(world, text, [&] {
      checkpoints.save_async(*network, *optimizer, {kEnd, {}});
    });
    checkpoints.save_async(*network, *optimizer, {kEnd, {}});
    EXPECT_TRUE(finish_background_saves());
    EXPECT_FALSE(finish_background_saves()) << "it is raised once";
    checkpoints.wait();
  }
  expect_loads(kEnd - 1);
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
  }
  meet(world);
  train(whole, *whole_optimizer, kEnd - 1, kEnd);
  checkpoints.save_async(*network, *optimizer, {kEnd, {}});
  EXPECT_FALSE(finish_background_saves());
  expect_loads(kEnd);
  meet(world);
  CheckpointOptions hurried = options();
  hurried.timeout = std::chrono::milliseconds(0);
  expect_error<CheckpointFileError>(world, "the limit of 0 s for a checkpoint is over", [&] {
    CheckpointDirectory(path, hurried).save(*network, *optimizer, {kEnd, {}});
  });
  // Its end is waited for where nothing else does.
  CheckpointDirectory(path, options()).save_async(*network, *optimizer, {kEnd, {}});
  expect_loads(kEnd);
});

// A column in pieces travels behind 80 MiB of each rank's own, which no disk takes.
const bool kTravelsWhileRefused = register_rank_function("travels_while_refused", [] {
  const RankWorld world;
  ShardedNetwork network(world.size());
  network.register_parameter("large", at::zeros({world.size() * 20 * 1024 * 1024}), false);
  torch::optim::SGD optimizer(network.parameters(), torch::optim::SGDOptions(0.1));
  CheckpointDirectory checkpoints(directory() + "/run", options());
  for (const int refuses : {0, 1}) {
    const NoFiles none(world.rank() == refuses);
    const std::string text = refuses == 0 ? "File too large" : "rank 1 on ";
    expect_error<CheckpointFileError>(world, text, [&] {
      checkpoints.save(network, optimizer, {1, {}});
    });
  }
  checkpoints.save(network, optimizer, {1, {}});
  // What a load writes is seen by who watches for writes.
  const Tensor plain = network.named_parameters()["plain"];
  const int64_t version = plain._version();
  EXPECT_TRUE(checkpoints.load(network, optimizer));
  EXPECT_GT(plain._version(), version);
});

const bool kCallsAProgram = register_rank_function("calls_a_program", [] {
  const RankWorld world;
  const std::string program = directory() + "/copy";
  std::ofstream(program) << "#!/bin/sh\n"
                         << "test -e $1/manifest.json && echo $1 >> " << directory() << "/called\n"
                         << "while ! test -e " << directory() << "/go; do sleep 0.01; done\n";
  fs::permissions(program, fs::perms::owner_all);
  Network network((Group()));
  const Optimizer optimizer = make_optimizer(network);
  CheckpointOptions hooked = options();
  hooked.keep = 1;
  hooked.on_commit = program;
  const std::string path = directory() + "/run";
  {
    CheckpointDirectory checkpoints(path, hooked);
    for (const int64_t step : {1, 2, 3}) checkpoints.save(*network, *optimizer, {step, {}});
    for (const char* const step : {"step-1", "step-2", "step-3"}) {
      EXPECT_TRUE(fs::exists(path + "/" + step)) << step;
    }
    std::ofstream(directory() + "/go");
    finish_background_saves();
    checkpoints.save(*network, *optimizer, {4, {}});
    EXPECT_FALSE(fs::exists(path + "/step-3"));
  }
  std::ifstream called(directory() + "/called");
  const std::string calls((std::istreambuf_iterator<char>(called)), {});
  EXPECT_EQ(calls,
            path + "/step-1\n" + path + "/step-2\n" + path + "/step-3\n" + path + "/step-4\n");
});

// What a run has beside its network and the moments. `number` sets all of it.
struct Surroundings {
  explicit Surroundings(int number)
      : network(3, 2),
        optimizer(network->parameters(), torch::optim::AdamOptions(0.1 * number)
                                             .betas(std::make_tuple(0.5, 0.25))
                                             .weight_decay(number)),
        scheduler(optimizer, 1000),
        best(at::full({2}, number, at::kFloat)),
        text("of run " + std::to_string(number)) {
    const at::NoGradGuard no_grad;
    for (Tensor& parameter : network->parameters()) parameter.fill_(number);
    for (Tensor& parameter : average->parameters()) parameter.fill_(-number);
    for (int i = 0; i < number; ++i) scheduler.step();
    kept.keep("scheduler", scheduler);
    kept.keep("best", best);
    kept.keep("average", *average);
    kept.keep(
        "text", [this] { return text; }, [this](const std::string& bytes) { text = bytes; });
  }
  // Is what `number` has set.
  void expect(int number) {
    EXPECT_TRUE(at::equal(network->weight, at::full({2, 3}, number, at::kFloat)));
    EXPECT_TRUE(at::equal(average->bias, at::full({2}, -number, at::kFloat)));
    EXPECT_TRUE(at::equal(best, at::full({2}, number, at::kFloat)));
    EXPECT_EQ(text, "of run " + std::to_string(number));
    EXPECT_EQ(kept.saved().at("scheduler"), std::to_string(number));
    // Exactly.
    const GroupOptions options = group_options(optimizer).at(0);
    EXPECT_EQ(options.at("lr"), 0.1 * number);
    EXPECT_EQ(options.at("beta1"), 0.5);
    EXPECT_EQ(options.at("beta2"), 0.25);
    EXPECT_EQ(options.at("weight_decay"), number);
  }
  torch::nn::Linear network;
  torch::nn::Linear average = torch::nn::Linear(3, 2);
  torch::optim::Adam optimizer;
  torch::optim::StepLR scheduler;
  Tensor best;
  std::string text;
  KeptValues kept;
};

// The seed and the count of random operations of a rank that draws for itself.
void draw_from(int number) {
  reseed(100 + number);
  set_random_state({static_cast<uint64_t>(100 + number), static_cast<uint64_t>(number)});
}
Tensor drawn_after(int number) {
  return at::rand({4}, at::detail::createCPUGenerator(static_cast<uint64_t>(100 + number)));
}

// Next random numbers of every rank, as bytes, by rank.
std::vector<std::string> next_numbers(const RankWorld& world) {
  const Tensor own = at::rand({4});
  return gather_texts(*world.group(), c10::kCPU,
                      std::string(static_cast<const char*>(own.const_data_ptr()), own.nbytes()));
}

size_t number_of_different(const std::vector<std::string>& texts) {
  return std::set<std::string>(texts.begin(), texts.end()).size();
}

const bool kWritesAll = register_rank_function("writes_all", [] {
  const RankWorld world;
  Surroundings run(3);
  draw_from(world.rank());
  CheckpointDirectory(directory() + "/all", {}).save(*run.network, run.optimizer, {9}, run.kept);
});

const bool kReadsAll = register_rank_function("reads_all", [] {
  const RankWorld world;
  CheckpointDirectory checkpoints(directory() + "/all", {});
  Surroundings run(5);
  ASSERT_TRUE(checkpoints.load(*run.network, run.optimizer, run.kept));
  run.expect(3);
  if (variable("TEST_SAME_SIZE") == "1") {
    EXPECT_EQ(random_state(), (RandomOperation{static_cast<uint64_t>(100 + world.rank()),
                                               static_cast<uint64_t>(world.rank())}));
    EXPECT_TRUE(at::equal(at::rand({4}), drawn_after(world.rank())));
  } else {
    // Equal on all ranks for sharded tensors, and a stream of its own otherwise.
    EXPECT_EQ(random_state(), (RandomOperation{100, 0}));
    EXPECT_EQ(number_of_different(next_numbers(world)), static_cast<size_t>(world.size()));
  }

  expect_error<CheckpointMismatchError>(
      world,
      "keeps the values average.bias, average.weight, best, scheduler, text, but this run "
      "keeps nothing",
      [&] { checkpoints.load(*run.network, run.optimizer); });
  // On one rank only.
  KeptValues fewer;
  fewer.keep("best", run.best);
  const bool is_last = world.rank() == world.size() - 1;
  if (world.size() > 1) {
    expect_error<CheckpointMismatchError>(world, "but this run keeps best", [&] {
      checkpoints.load(*run.network, run.optimizer, is_last ? fewer : run.kept);
    });
  }
  // Equal names of other kinds: on all ranks, and on the last one alone.
  const auto functions = [](KeptValues& kept, const char* name) {
    kept.keep(
        name, [] { return ""; }, [](const std::string&) {});
  };
  KeptValues bytes, tensors;
  for (KeptValues* const kept : {&bytes, &tensors}) {
    kept->keep("average", *run.average);
    kept->keep("scheduler", run.scheduler);
  }
  functions(bytes, "best");
  functions(bytes, "text");
  tensors.keep("best", run.best);
  tensors.keep("text", at::zeros({1}));
  for (const bool everywhere : {true, false}) {
    expect_error<CheckpointMismatchError>(
        world,
        "keeps best as a tensor, but this run keeps it as bytes (of a scheduler or of functions)",
        [&] {
          checkpoints.load(*run.network, run.optimizer, everywhere || is_last ? bytes : run.kept);
        });
    expect_error<CheckpointMismatchError>(
        world,
        "keeps text as bytes (of a scheduler or of functions), but this run keeps it as a tensor",
        [&] {
          checkpoints.load(*run.network, run.optimizer, everywhere || is_last ? tensors : run.kept);
        });
  }
  torch::nn::Module wrapper;
  wrapper.register_module("module", run.network);
  expect_error<CheckpointMismatchError>(
      world, "model.safetensors lacks module.weight; this module's names begin with \"module.\"",
      [&] { checkpoints.load(wrapper, run.optimizer, run.kept); });
  torch::optim::Adam two_groups(std::vector<torch::optim::OptimizerParamGroup>{
      torch::optim::OptimizerParamGroup({run.network->weight}),
      torch::optim::OptimizerParamGroup({run.network->bias})});
  expect_error<CheckpointMismatchError>(
      world, "has an optimizer with 1 groups of parameters, but this run's has 2",
      [&] { checkpoints.load(*run.network, two_groups, run.kept); });
  run.expect(3);
});

// Ranks 1 and 2 have done 8 steps, rank 0 has done 7: all take rank 1's state.
const bool kSpreads = register_rank_function("spreads", [] {
  const RankWorld world;
  const int rank = world.rank();
  const auto spread = [&](bool alike) {
    std::optional<TrainingMemory> memory;
    {
      // Equal where the same step is remembered.
      Surroundings before(rank == 0 ? 1 : 2);
      draw_from(alike ? 7 : rank);
      StateRecorder recorder(*before.network, before.optimizer, before.kept);
      recorder.record(rank == 0 ? 7 : 8);
      memory = recorder.memory(rank, world.size());
      memory->draws_alike = alike;
    }
    at::manual_seed(55);
    Surroundings after(5);
    EXPECT_EQ(
        spread_memory(memory, 1, *after.network, after.optimizer, world.group(), after.kept).step,
        8);
    after.expect(2);
  };
  spread(/*alike=*/true);
  EXPECT_EQ(random_state(), (RandomOperation{107, 7}));
  EXPECT_TRUE(at::equal(at::rand({4}), drawn_after(7)));

  spread(/*alike=*/false);
  if (rank == 0) {
    EXPECT_EQ(random_state(), (RandomOperation{101, 1}));
  } else {
    EXPECT_EQ(random_state(),
              (RandomOperation{static_cast<uint64_t>(100 + rank), static_cast<uint64_t>(rank)}));
  }
  const std::vector<std::string> next = next_numbers(world);
  EXPECT_EQ(number_of_different(next), 3U);
  const Tensor own = drawn_after(rank);
  EXPECT_EQ(next[static_cast<size_t>(rank)] ==
                std::string(static_cast<const char*>(own.const_data_ptr()), own.nbytes()),
            rank != 0);

  Surroundings root(1), other(2);
  StateRecorder recorder(*root.network, root.optimizer, root.kept);
  recorder.record(3);
  KeptValues nothing;
  expect_error<c10::ValueError>(
      world,
      "the memory of rank 0 keeps the values average.bias, average.weight, best, scheduler, "
      "text, but this run keeps nothing",
      [&] {
        spread_memory(recorder.memory(rank, world.size()), 0, *other.network, other.optimizer,
                      world.group(), rank == 2 ? nothing : other.kept);
      });
  torch::nn::Module wrapper;
  wrapper.register_module("module", other.network);
  expect_error<c10::ValueError>(world, "do: pass the wrapped module", [&] {
    spread_memory(recorder.memory(rank, world.size()), 0, wrapper, other.optimizer, world.group(),
                  other.kept);
  });
  other.expect(2);
});

// A buffer that the forward pass defines, or whose size is that of the world.
struct Changing : torch::nn::Module {
  explicit Changing(const Tensor& seen, double value = 1) {
    weight = register_parameter("weight", at::full({2}, value));
    register_buffer("seen", seen);
  }
  Tensor weight;
};

// Ranks 0 to 2; the memory is rank 1's.
const bool kSpreadsMisfits = register_rank_function("spreads_misfits", [] {
  const RankWorld world;
  const int rank = world.rank();
  const auto memory_of = [&](Changing& module, torch::optim::Optimizer& optimizer,
                             const KeptValues& kept) {
    StateRecorder recorder(module, optimizer, kept);
    recorder.record(4);
    return std::optional(recorder.memory(rank, world.size()));
  };
  const KeptValues nothing;
  const auto fails = [&](const std::string& text, const Tensor& before, const Tensor& after) {
    SCOPED_TRACE(text);
    Changing old(before, 7);
    torch::optim::Adam its(old.parameters(), 0.5);
    const auto memory = memory_of(old, its, nothing);
    Changing module(after);
    torch::optim::Adam optimizer(module.parameters(), 0.25);
    expect_error<c10::ValueError>(world, "the memory of rank 1 " + text, [&] {
      spread_memory(memory, 1, module, optimizer, world.group());
    });
    EXPECT_TRUE(at::equal(module.weight, at::ones({2})));
    EXPECT_EQ(group_options(optimizer).at(0).at("lr"), 0.25);
  };
  const Tensor undefined = Tensor();
  fails("holds seen, which this run lacks when it restores", at::ones({3}), undefined);
  fails("lacks seen, which this run has when it restores", undefined, at::ones({3}));
  fails("holds seen as F32 [3], but this run's is F32 [5]", at::ones({3}), at::ones({5}));
  fails("holds seen as F32 [3], but this run's is I64 [3]", at::ones({3}),
        at::ones({3}, at::kLong));
  // On one rank alone, which is not the root.
  fails("holds seen as F32 [3], but this run's is F32 [4]", at::ones({3}),
        at::ones({rank == 2 ? 4 : 3}));

  Changing module(at::ones({3}));
  torch::optim::Adam optimizer(module.parameters());
  expect_error<c10::ValueError>(world, "rank 1 has no memory of the training to spread", [&] {
    spread_memory(std::nullopt, 1, module, optimizer, world.group());
  });
  torch::optim::SGD sgd(module.parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::Optimizer& own = rank == 2 ? static_cast<torch::optim::Optimizer&>(sgd) : optimizer;
  const auto of_adam = memory_of(module, optimizer, nothing);
  expect_error<c10::ValueError>(world,
                                "the memory of rank 1 has the optimizer Adam, but this run has SGD",
                                [&] { spread_memory(of_adam, 1, module, own, world.group()); });

  KeptValues fragile;
  std::string loaded;
  fragile.keep(
      "count", [] { return "3"; },
      [&](const std::string& bytes) {
        if (rank == 2) throw std::invalid_argument("no room for " + bytes);
        loaded = bytes;
      });
  const auto with_count = memory_of(module, optimizer, fragile);
  expect_error<c10::ValueError>(
      world, "the load function of the kept value \"count\" raised on rank 2: no room for 3",
      [&] { spread_memory(with_count, 1, module, optimizer, world.group(), fragile); });
  EXPECT_EQ(loaded, rank == 2 ? "" : "3");
});

const bool kKeepsApart = register_rank_function("keeps_apart", [] {
  const RankWorld world;
  Changing module(at::ones({3}));
  torch::optim::Adam optimizer(module.parameters());
  // Equal on ranks 0 and 1.
  KeptValues apart;
  apart.keep(
      "sampler", [&] { return world.rank() == 2 ? "at 5" : "at 4"; }, [](const std::string&) {});
  StateRecorder recorder(module, optimizer, apart);
  const auto spread = [&](int64_t steps) {
    recorder.record(steps);
    return spread_memory(recorder.memory(world.rank(), world.size()), 0, module, optimizer,
                         world.group(), apart)
        .step;
  };
  const std::string text = "the kept value \"sampler\" differs between ranks 0 and 2";
  const std::string spread_remedy =
      ", which remember step 4; one rank's values are handed on, so all ranks must have the same";
  const std::string remedy = "; rank 0's values are saved, so all ranks must have the same";
  expect_error<c10::ValueError>(world, text + spread_remedy, [&] { spread(4); });
  // Rank 2 is a step behind.
  EXPECT_EQ(spread(world.rank() == 2 ? 4 : 5), 5);

  CheckpointDirectory checkpoints(directory() + "/apart", {});
  expect_error<c10::ValueError>(world, text + remedy, [&] {
    checkpoints.save(module, optimizer, {5, {}}, apart);
  });
  expect_error<c10::ValueError>(
      world, "the number of steps differs between ranks 0 and 1" + remedy, [&] {
        checkpoints.save(module, optimizer, {world.rank() == 1 ? 6 : 5, {}});
      });

  // Tensors, which are compared where a memory is spread.
  const auto spread_tensors = [&](const Tensor& tensor, Changing& network) {
    KeptValues kept;
    kept.keep("best", tensor);
    torch::optim::Adam adam(network.parameters());
    StateRecorder states(network, adam, kept);
    states.record(4);
    spread_memory(states.memory(world.rank(), world.size()), 0, network, adam, world.group(), kept);
  };
  expect_error<c10::ValueError>(
      world, "the kept value \"best\" differs between ranks 0 and 1" + spread_remedy,
      [&] { spread_tensors(at::full({1}, world.rank()), module); });
  Changing parted(at::ones({3}), world.rank() == 2 ? 1.5 : 1);
  expect_error<c10::ValueError>(
      world, "the parameter \"weight\" differs between ranks 0 and 2" + spread_remedy,
      [&] { spread_tensors(at::ones({1}), parted); });
  Changing buffered(at::full({3}, world.rank()));
  spread_tensors(at::ones({1}), buffered);
  EXPECT_EQ(buffered.named_buffers()["seen"].sum().item<double>(), 0) << "rank 0's";
  KeptValues fragile;
  fragile.keep(
      "count",
      [&]() -> std::string {
        if (world.rank() == 2) throw std::invalid_argument("no count");
        return "3";
      },
      [](const std::string&) {});
  expect_error<CheckpointFileError>(world, "the save function of a kept value raised: no count",
                                    [&] {
                                      checkpoints.save(module, optimizer, {5, {}}, fragile);
                                    });
  EXPECT_FALSE(fs::exists(directory() + "/apart"));
});

const bool kLosesAnAnswer = register_rank_function("loses_an_answer", [] {
  const auto agent = std::make_shared<FakeAgent>(
      agent::Assignment{.job_id = "job", .generation = 1, .world_size = 1, .local_world_size = 1},
      c10::make_intrusive<c10d::HashStore>());
  DistributedManager::initialize({.agent = agent});
  Network network((Group()));
  const Optimizer optimizer = make_optimizer(network);
  CheckpointOptions kept = options();
  kept.keep = 3;
  CheckpointDirectory checkpoints(directory() + "/run", kept);
  checkpoints.save(*network, *optimizer, {5, {}});
  agent->lose_answers_of_commits(true);
  EXPECT_THROW(checkpoints.save(*network, *optimizer, {6, {}}), CheckpointRefusedError);
  agent->lose_answers_of_commits(false);
  checkpoints.save(*network, *optimizer, {7, {}});
  for (const char* const step : {"step-5", "step-6", "step-7"}) {
    EXPECT_TRUE(fs::exists(directory() + "/run/" + step + "/model.safetensors")) << step;
  }
  DistributedManager::cleanup();
});

// Rank 0 saves step 5 in generation 1, and step 6 in generation 2 on another host. It loads in
// generation 2 after it has removed its files, and in generation 3 on the first host.
const bool kRankZeroMoves = register_rank_function("rank_0_moves", [] {
  std::shared_ptr<FakeAgent> agent;
  const auto generation = [&](uint64_t number) {
    auto next = std::make_shared<FakeAgent>(
        agent::Assignment{
            .job_id = "job", .generation = number, .world_size = 1, .local_world_size = 1},
        c10::make_intrusive<c10d::HashStore>());
    if (agent) next->take_commits_of(*agent);
    agent = std::move(next);
    DistributedManager::cleanup();
    DistributedManager::initialize({.agent = agent});
  };
  const std::string run = directory() + "/run";
  const std::string first_host = directory() + "/first";
  const auto save = [&](int64_t step) {
    Network network((Group()));
    const Optimizer optimizer = make_optimizer(network);
    CheckpointDirectory(run, options()).save(*network, *optimizer, {step, {}});
  };
  const auto load = [&] {
    Network network((Group()));
    const Optimizer optimizer = make_optimizer(network);
    return CheckpointDirectory(run, options()).load(*network, *optimizer);
  };
  const auto has_committed = [&] { return CheckpointDirectory(run, options()).has_committed(); };
  generation(1);
  EXPECT_FALSE(has_committed());
  save(5);
  EXPECT_TRUE(has_committed());
  fs::rename(run, first_host);

  generation(2);
  EXPECT_TRUE(has_committed()) << "wherever it lies";
  EXPECT_FALSE(CheckpointDirectory(first_host, options()).has_committed())
      << "the job did not write under this name";
  const auto raises = [](const std::string& found) {
    return ::testing::ThrowsMessage<CheckpointFileError>(HasSubstr(found));
  };
  EXPECT_THAT(load, raises("of step 5, is not on"));
  EXPECT_THAT(load, raises("The newest here is none"));
  save(6);
  EXPECT_EQ(load()->step, 6);
  fs::remove_all(run);
  EXPECT_FALSE(load().has_value());

  generation(3);
  fs::rename(first_host, run);
  EXPECT_THAT(load, raises("of step 6, is not on"));
  EXPECT_THAT(load, raises("The newest here is that of step 5"));

  // The first host's directory has seen more checkpoints, and the newest one is copied to it.
  generation(4);
  for (int64_t step = 7; step < 12; ++step) save(step);
  fs::rename(run, first_host);
  generation(5);
  save(12);
  const std::string copied = run + "/step-12";
  fs::rename(copied, first_host + "/step-12");
  // Another process wrote there, which knew of more.
  const std::string other = first_host + "/step-11/manifest.json";
  nlohmann::json manifest = nlohmann::json::parse(std::ifstream(other));
  manifest["sequence"] = 1000;
  std::ofstream(other) << manifest;
  fs::remove_all(run);
  fs::rename(first_host, run);
  generation(6);
  EXPECT_EQ(load()->step, 12);
  save(13);
  EXPECT_EQ(load()->step, 13);
  const auto newest = [&] { return ListStepDirectories(run)->back().manifest.sequence; };
  const int64_t known = newest();
  fs::remove_all(run);
  save(14);
  EXPECT_EQ(newest(), known + 1) << "the process has seen those of the other host";
  DistributedManager::cleanup();
});

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void run(const std::string& function, int world_size, Variables more = {}) {
    SCOPED_TRACE(function + " on " + std::to_string(world_size));
    std::vector<Variables> ranks = env_ranks(world_size);
    for (Variables& variables : ranks) {
      variables["TEST_DIRECTORY"] = directory_;
      variables["TEST_NAME"] = "by" + std::to_string(world_size) + more["TEST_PAIRS"];
      variables.insert(more.begin(), more.end());
    }
    expect_success(run_ranks(function, ranks));
  }
  const std::string directory_ = testing::TempDir() + "checkpoints/files";
};

TEST_F(CheckpointTest, AnyNumberOfRanksContinuesWhatAnyOtherHasSaved) {
  const Variables pairs = {{"TEST_PAIRS", "pairs"}};
  for (const int world_size : {1, 2, 3, 4}) run("writes", world_size);
  run("writes", 4, pairs);
  std::vector<std::string> contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_)) {
    std::ifstream file(entry.path() / "step-3/model.safetensors", std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  ASSERT_EQ(contents.size(), 5);
  for (const std::string& content : contents) EXPECT_EQ(content, contents[0]);
  for (const int world_size : {1, 2, 3, 4}) run("reads", world_size);
  run("reads", 4, pairs);
}

TEST_F(CheckpointTest, HoldsTheStateOfAdamWithAmsgradAndOfMomentum) {
  for (const std::string kind : {"Adam", "SGD"}) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    run("writes", 2, {{"TEST_OPTIMIZER", kind}});
    run("reads", 3, {{"TEST_OPTIMIZER", kind}});
  }
}

TEST_F(CheckpointTest, HoldsOptionsKeptValuesAndEachRanksRandomNumbers) {
  run("writes_all", 3);
  const Tensors kept = read_tensors(directory_ + "/all/step-9/kept.safetensors");
  EXPECT_THAT(kept.at("average.weight").sizes().vec(), ElementsAre(2, 3));
  EXPECT_EQ(kept.size(), 3);
  for (const int world_size : {1, 2, 3, 4}) {
    run("reads_all", world_size, {{"TEST_SAME_SIZE", world_size == 3 ? "1" : "0"}});
  }
}

TEST_F(CheckpointTest, AMemoryHoldsOptionsKeptValuesAndEachRanksRandomNumbers) {
  run("spreads", 3);
}

TEST_F(CheckpointTest, AMemoryThatDoesNotFitIsOneErrorOnEveryRankAndNothingChanges) {
  run("spreads_misfits", 3);
}

TEST_F(CheckpointTest, KeptBytesThatDifferBetweenRanksAreRefused) { run("keeps_apart", 3); }

TEST(StateRecorderTest, SeesWhatWasWrittenAndCopiesWhatTheForwardPassWrites) {
  struct Normed : torch::nn::Module {
    Normed() {
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
      table = register_buffer("table", at::zeros({100000}));
    }
    torch::nn::BatchNorm1d norm = nullptr;
    Tensor table;
  } network;
  torch::optim::SGD optimizer(network.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Tensor best = at::zeros({1});
  KeptValues kept;
  kept.keep("best", best);
  StateRecorder recorder(network, optimizer, kept);
  recorder.record(0);
  EXPECT_EQ(recorder.written(), "");
  const Tensor x = at::arange(12, at::kFloat).view({4, 3});
  network.norm(x).square().sum().backward();
  EXPECT_EQ(recorder.written(), "") << "the forward pass";
  const int64_t before = digest_of_state(network, optimizer, kept);
  optimizer.step();
  EXPECT_EQ(recorder.written(), "a parameter") << "SGD writes without counting";
  EXPECT_NE(digest_of_state(network, optimizer, kept), before);
  network.table.data().add_(1);  // no version counts it
  recorder.record(1);
  EXPECT_EQ(recorder.written(), "");

  // The forward pass of a step that is then taken again.
  const Tensor mean = network.norm->running_mean.clone();
  network.norm(2 * x);
  network.table.add_(1);
  const TrainingMemory memory = recorder.memory(0, 1);
  EXPECT_EQ(memory.step, 1);
  EXPECT_EQ(memory.tensors.at("norm.num_batches_tracked").item<int64_t>(), 1);
  EXPECT_TRUE(at::equal(memory.tensors.at("norm.running_mean"), mean));
  EXPECT_FALSE(at::equal(network.norm->running_mean, mean));
  EXPECT_EQ(memory.tensors.at("table").sum().item<double>(), 100000);
  EXPECT_EQ(memory.versions.written(), "");

  best.add_(1);
  EXPECT_EQ(recorder.written(), "best");
  EXPECT_EQ(memory.versions.written(), "best");
  EXPECT_EQ(recorder.changed(), "");
  EXPECT_FALSE(recorder.has_other_options());
  optimizer.param_groups()[0].options().set_lr(0.2);
  EXPECT_TRUE(recorder.has_other_options());
}

TEST(KeptValuesTest, RefusesWhatItCannotKeep) {
  KeptValues kept;
  kept.keep("a", at::zeros({1}));
  EXPECT_THROW(kept.keep("a", at::zeros({1})), c10::ValueError);
  EXPECT_THROW(kept.keep(
                   "a", [] { return ""; }, [](const std::string&) {}),
               c10::ValueError);
  EXPECT_THROW(kept.keep("", at::zeros({1})), c10::ValueError);
  EXPECT_THROW(kept.keep("b", Tensor()), c10::ValueError);
  EXPECT_THAT(kept.names(), ElementsAre("a"));
}

// Two copies of a network, of which one's optimizer is kept from the beginning on; the other's
// state is then replaced by the first one's.
void hand_on_optimizer(const std::function<Optimizer(const torch::nn::Module&)>& make) {
  at::manual_seed(1);
  Changing first(at::ones({1})), second(at::ones({1})), third(at::ones({1}));
  const Optimizer kept_one = make(first), plain = make(second), next = make(third);
  const auto step = [](Changing& network, torch::optim::Optimizer& optimizer, double factor) {
    optimizer.zero_grad();
    (network.weight * at::tensor({1.0f, -2.0f}) * factor).square().sum().backward();
    optimizer.step();
  };
  KeptValues kept, taken;
  kept.keep("critic", *kept_one);
  taken.keep("critic", *next);
  EXPECT_TRUE(kept.is_stepped(first.weight));
  EXPECT_FALSE(kept.is_stepped(second.weight));
  for (int i = 1; i < 4; ++i) {
    step(first, *kept_one, i);
    step(second, *plain, i);
  }
  EXPECT_TRUE(at::equal(first.weight, second.weight)) << "as without keep()";
  kept_one->param_groups()[0].options().set_lr(0.0625);
  ASSERT_EQ(taken.names(), kept.names());
  {
    const at::NoGradGuard no_grad;
    third.weight.copy_(first.weight);
    for (const auto& [name, tensor] : taken.tensors()) {
      tensor.tensor.copy_(kept.tensors().at(name).tensor);
    }
  }
  taken.load(kept.saved());
  for (int i = 4; i < 7; ++i) {
    step(first, *kept_one, i);
    step(third, *next, i);
  }
  EXPECT_TRUE(at::equal(first.weight, third.weight));
}

TEST(KeptValuesTest, AnOptimizerThatIsKeptGoesOnElsewhere) {
  using torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamW,
      torch::optim::AdamWOptions, torch::optim::RMSprop, torch::optim::SGD,
      torch::optim::SGDOptions;
  hand_on_optimizer([](const auto& network) {
    return std::make_unique<Adam>(network.parameters(), AdamOptions(0.1).amsgrad(true));
  });
  hand_on_optimizer([](const auto& network) {
    return std::make_unique<AdamW>(network.parameters(), AdamWOptions(0.1));
  });
  hand_on_optimizer([](const auto& network) {
    return std::make_unique<SGD>(network.parameters(), SGDOptions(0.01).momentum(0.9));
  });
  hand_on_optimizer(
      [](const auto& network) { return std::make_unique<SGD>(network.parameters(), 0.01); });
  Changing network(at::ones({1}));
  SGD damped(network.parameters(), SGDOptions(0.1).momentum(0.9).dampening(0.5));
  RMSprop other(network.parameters());
  KeptValues kept;
  EXPECT_THROW(kept.keep("damped", damped), c10::ValueError);
  EXPECT_THROW(kept.keep("other", other), c10::NotImplementedError);
  EXPECT_THAT(kept.names(), IsEmpty());
}

TEST(KeptValuesTest, MomentsThatAnOptimizerHasLostAreThoseOfItsFirstStep) {
  Changing network(at::ones({1}));
  torch::optim::Adam adam(network.parameters(), torch::optim::AdamOptions(0.1));
  KeptValues kept;
  kept.keep("adam", adam);
  for (const auto& [name, moment] : kept.tensors()) moment.tensor.fill_(7);
  adam.state().clear();
  EXPECT_TRUE(kept.list_moments());
  EXPECT_FALSE(kept.list_moments());
  const ParameterState state = parameter_state(adam, network.parameters().front());
  EXPECT_EQ(state.step, 0);
  const Tensor& listed = kept.tensors().at("adam.exp_avg.0.0").tensor;
  EXPECT_TRUE(listed.is_same(state.moments.at("exp_avg")));
  EXPECT_EQ(listed.abs().sum().item<double>(), 0);
}

TEST(KeptValuesTest, TakesTensorsModulesAndSchedulersAlone) {
  EXPECT_TRUE(detail::KeptAlone<Tensor>);
  EXPECT_TRUE(detail::KeptAlone<const Tensor&>);
  EXPECT_TRUE(detail::KeptAlone<torch::nn::LinearImpl&>);
  EXPECT_TRUE(detail::KeptAlone<torch::optim::StepLR&>);
  EXPECT_TRUE(detail::KeptAlone<torch::optim::Adam&>);
  // These have a sentence of the compiler's. A temporary module would end before it is saved.
  EXPECT_FALSE(detail::KeptAlone<double>);
  EXPECT_FALSE(detail::KeptAlone<std::string&>);
  EXPECT_FALSE(detail::KeptAlone<torch::nn::Linear&>);
  EXPECT_FALSE(detail::KeptAlone<torch::nn::LinearImpl>);
  EXPECT_FALSE(detail::KeptAlone<const torch::nn::LinearImpl&>);
  EXPECT_FALSE(detail::KeptAlone<KeptValues::Save>);
}

TEST_F(CheckpointTest, HoldsTheUnshardedTensorsByTheirNames) {
  run("writes", 3);
  const std::string path = directory_ + "/by3/step-3/";
  const Tensors model = read_tensors(path + "model.safetensors");
  const Tensors optimizer = read_tensors(path + "optimizer.safetensors");
  ASSERT_EQ(model.size(), 5);
  // complex128 is a pair of reals.
  EXPECT_THAT(model.at("block.weights").sizes().vec(), ElementsAre(3, 7, 2));
  EXPECT_EQ(model.at("block.weights").scalar_type(), at::kDouble);
  EXPECT_THAT(model.at("block.few").sizes().vec(), ElementsAre(2));
  EXPECT_EQ(model.at("scale").scalar_type(), at::kLong);
  EXPECT_EQ(optimizer.size(), 12);
  EXPECT_THAT(optimizer.at("exp_avg_sq.block.weights").sizes().vec(), ElementsAre(3, 7, 2));
  EXPECT_EQ(optimizer.at("step.bias").item<int64_t>(), 3);
  Network whole((Group()));
  const Optimizer adam = make_optimizer(whole);
  train(whole, *adam, 0, kSavedAt);
  EXPECT_TRUE(at::allclose(at::view_as_complex(model.at("block.weights")),
                           whole->named_parameters()["block.weights"], 1e-9, 1e-12));
}

// The bits of `tensor`, whatever its dtype.
std::string bits(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

TEST(TensorFileTest, EveryDtypeOfTheFormatComesBackBitForBit) {
  const std::vector<std::pair<at::ScalarType, std::string>> dtypes = {
      {at::kByte, "U8"},
      {at::kChar, "I8"},
      {at::kUInt16, "U16"},
      {at::kShort, "I16"},
      {at::kUInt32, "U32"},
      {at::kInt, "I32"},
      {at::kUInt64, "U64"},
      {at::kLong, "I64"},
      {at::kHalf, "F16"},
      {at::kBFloat16, "BF16"},
      {at::kFloat, "F32"},
      {at::kDouble, "F64"},
      {at::kComplexFloat, "C64"},
      {at::kFloat8_e4m3fn, "F8_E4M3"},
      {at::kFloat8_e5m2, "F8_E5M2"},
      {at::kFloat8_e8m0fnu, "F8_E8M0"}};
  std::map<std::string, Tensor> tensors;
  for (const auto& [dtype, name] : dtypes) {
    // Every byte value, the largest unsigned numbers and the NaNs too.
    tensors[name] = at::arange(256, at::kInt).to(at::kByte).flip(0).view(dtype).view({2, -1});
    EXPECT_EQ(stored_info(tensors[name]).dtype, name);
  }
  const std::string path = testing::TempDir() + "every_dtype.safetensors";
  write_tensors(path, tensors);
  const Tensors read = read_tensors(path);
  for (const auto& [dtype, name] : dtypes) {
    EXPECT_EQ(read.at(name).scalar_type(), dtype);
    EXPECT_EQ(read.at(name).sizes(), tensors[name].sizes());
    EXPECT_EQ(bits(read.at(name)), bits(tensors[name])) << name;
  }
  EXPECT_THROW(write_tensors(path, {{"half", at::empty({1}, at::kComplexHalf)}}), c10::TypeError);
}

TEST_F(CheckpointTest, ACommittedCheckpointIsFinishedBeforeTheNextOneIsWritten) {
  expect_success(
      run_ranks("loses_an_answer", {{{"TEST_DIRECTORY", directory_}}}, RankStart::kExec));
}

TEST_F(CheckpointTest, ACommittedCheckpointOfAnotherHostIsAnErrorAndNoEarlierStep) {
  expect_success(run_ranks("rank_0_moves", {{{"TEST_DIRECTORY", directory_}}}, RankStart::kExec));
}

TEST_F(CheckpointTest, WhatIsForeignOrDamagedIsOneErrorOnEveryRankAndNothingChanges) {
  run("fails", 3);
}

TEST_F(CheckpointTest, ParametersAreReadFromAFileThatRankZeroHas) {
  for (const int world_size : {1, 3}) run("reads_parameters", world_size);
}

TEST_F(CheckpointTest, WhatEarlierVersionsWroteIsRead) {
  for (const int world_size : {1, 3}) {
    fs::remove_all(directory_ + "/run");
    run("reads_version_1", world_size);
  }
}

TEST_F(CheckpointTest, FilesOfVersion1AreReadAsTheCodeOfThatTimeWroteThem) {
  for (const int world_size : {1, 3}) {
    fs::remove_all(directory_ + "/run");
    run("reads_sample", world_size);
  }
}

TEST_F(CheckpointTest, RanksThatHoldOtherTensorsAreRefusedAndOtherValuesAreThoseOfRankZero) {
  run("saves_other_models", 3);
}

TEST_F(CheckpointTest, TrainingGoesOnWhileACheckpointIsWritten) {
  for (const int world_size : {2, 3}) {
    fs::remove_all(directory_ + "/run");
    run("saves_in_background", world_size);
  }
}

TEST_F(CheckpointTest, PiecesThatTravelDoNotWaitForADiskThatRefuses) {
  run("travels_while_refused", 2);
}

TEST_F(CheckpointTest, AProgramIsCalledWithEachCheckpointAndHoldsItMeanwhile) {
  run("calls_a_program", 1);
}

TEST_F(CheckpointTest, ShardTensorsAreWholeInTheFilesAndCutAnewOnAnyMesh) {
  for (const int world_size : {1, 2, 3, 4}) run("writes_sharded", world_size);
  const auto read = [&](const std::string& world, const std::string& name) {
    return read_tensors(directory_ + "/" + world + "/step-3/" + name + ".safetensors");
  };
  for (const char* const world : {"by2", "by3", "by4"}) {
    for (const char* const name : {"model", "optimizer"}) {
      const Tensors expected = read("by1", name);
      const Tensors actual = read(world, name);
      EXPECT_EQ(actual.size(), expected.size());
      for (const auto& [tensor, values] : expected) {
        // The last bits depend on where a vector ends in memory.
        EXPECT_TRUE(at::allclose(actual.at(tensor), values, 1e-6, 1e-12)) << world << tensor;
      }
    }
  }
  for (const int world_size : {1, 2, 3, 4}) run("reads_sharded", world_size);
}

TEST(CheckpointCallsTest, NumbersTakeIntegersOnly) {
  using namespace given;
  EXPECT_TAKES_INTEGERS_ONLY(CheckpointOptions{.keep = value});
  EXPECT_TAKES_INTEGERS_ONLY(recorder.record(value));
  EXPECT_TAKES_INTEGERS_ONLY(recorder.memory(value, 2));
  EXPECT_TAKES_INTEGERS_ONLY(recorder.memory(1, value));
  EXPECT_TAKES_INTEGERS_ONLY(spread_memory(memory, value, module, optimizer, group));
}

}  // namespace
}  // namespace meshrun
