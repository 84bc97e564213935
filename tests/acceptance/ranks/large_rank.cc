// A rank whose state is a function of the place of each element: ranks of any world can tell by
// sums that they have the same bits, without a second copy. Run by tests/acceptance/checkpoints.
//
//   large_rank DIRECTORY small COUNT      COUNT parameters of 100 elements, with Adam's moments
//   large_rank DIRECTORY cut BYTES...     one parameter of each size, in pieces; plain SGD
//   large_rank DIRECTORY whole BYTES...   the same, whole on every rank
//
// Reads commands from stdin; all ranks get the same ones. "fill" gives the state its values; before
// it, all are 0. "change" changes the last element of the last parameter. "save", "async" and
// "load" save and load it. After each it prints a line of JSON: what measured_command.h has, or for
// "sums" a sum of this rank's elements by tensor. The sums of a tensor's pieces add up (mod 2^64)
// to that of the whole. "end" ends it.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/optimizer_state.h"
#include "parallel/nn/sharded_parameters.h"
#include "tests/acceptance/ranks/measured_command.h"

namespace meshrun {
namespace {

// Elements of a small parameter.
constexpr int64_t kSmall = 100;
// Large parameters whose elements fill rows of so many are matrices. They are cut along the rows,
// so that no piece is one range of the file. Others have one dimension.
constexpr int64_t kRow = 65536;
constexpr int64_t kSteps = 7;  // of Adam
// Numbers of moments, beside those of their parameters.
const std::map<std::string, uint32_t> kMoments = {{"exp_avg", 1U << 20}, {"exp_avg_sq", 2U << 20}};

// Below 2^30, so that the float is not a NaN. checkpoints_items/large.py has the same function.
uint32_t bits_at(uint32_t number, uint64_t index) {
  return static_cast<uint32_t>(index * 2654435761U + number * uint64_t{40503}) >> 2;
}

uint64_t mixed(uint32_t number, uint64_t index, uint32_t bits) {
  uint64_t x = (uint64_t{number} << 32 | bits) + index * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Where the elements of a piece lie in the whole tensor: in columns from `begin` on, of `columns`.
struct Place {
  int64_t columns = 0;
  int64_t begin = 0;
};

// Calls visit(index in the whole tensor, the element's bits).
template <typename Visit>
void visit(const at::Tensor& piece, const Place& place, const Visit& visit) {
  if (piece.numel() == 0) return;
  auto* bits = static_cast<uint32_t*>(piece.mutable_data_ptr());
  const int64_t width = piece.size(-1);
  for (int64_t row = 0; row < piece.numel() / width; ++row) {
    for (int64_t i = 0; i < width; ++i, ++bits) {
      visit(static_cast<uint64_t>(row * place.columns + place.begin + i), *bits);
    }
  }
}

void fill(const at::Tensor& piece, const Place& place, uint32_t number) {
  visit(piece, place, [&](uint64_t index, uint32_t& bits) { bits = bits_at(number, index); });
}

uint64_t sum(const at::Tensor& piece, const Place& place, uint32_t number) {
  uint64_t all = 0;
  visit(piece, place, [&](uint64_t index, uint32_t& bits) { all += mixed(number, index, bits); });
  return all;
}

class SmallModel : public torch::nn::Module {
 public:
  explicit SmallModel(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      register_parameter("layer" + std::to_string(i), at::zeros({kSmall}));
    }
  }
  Place place(const std::string& /*name*/) const { return {kSmall, 0}; }
};

class LargeModel : public torch::nn::Module, public ShardedParameters {
 public:
  LargeModel(const std::vector<int64_t>& sizes, bool is_cut) {
    const auto world = DistributedManager::get().world();
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string name = "large" + std::to_string(i);
      const int64_t elements = sizes[i] / 4;
      std::vector<int64_t> shape = {elements};
      if (elements % kRow == 0) shape = {elements / kRow, kRow};
      const int64_t last = shape.back();
      Place& place = places_[name] = {last, 0};
      if (is_cut) {
        ParameterShard shard{shape, static_cast<int64_t>(shape.size()) - 1, {}, world};
        for (int rank = 0; rank < world->getSize(); ++rank) {
          shard.ranges.push_back(split_range(last, world->getSize(), rank));
        }
        const SplitRange& own = shard.ranges[static_cast<size_t>(world->getRank())];
        place.begin = own.begin;
        shape.back() = own.size();
        shards_[name] = shard;
      }
      register_parameter(name, at::zeros(shape));
    }
  }
  Place place(const std::string& name) const { return places_.at(name); }
  std::map<std::string, ParameterShard> own_parameter_shards() const override { return shards_; }

 private:
  std::map<std::string, Place> places_;
  std::map<std::string, ParameterShard> shards_;
};

// Sums by name of a large parameter, of all small ones together, and of all moments of a kind.
template <typename Model>
nlohmann::json sums(const Model& model, torch::optim::Optimizer& optimizer) {
  std::map<std::string, uint64_t> all;
  uint32_t number = 0;
  for (const auto& item : model.named_parameters()) {
    const Place place = model.place(item.key());
    const bool is_small = item.key().starts_with("layer");
    all[is_small ? "layers" : item.key()] += sum(item.value(), place, number);
    const ParameterState state = parameter_state(optimizer, item.value());
    for (const auto& [name, moment] : state.moments) {
      all[name] += sum(moment, place, number + kMoments.at(name));
    }
    if (state.step) all["step"] += static_cast<uint64_t>(*state.step);
    ++number;
  }
  return all;
}

template <typename Model>
void fill(const Model& model, torch::optim::Optimizer& optimizer) {
  uint32_t number = 0;
  for (const auto& item : model.named_parameters()) {
    const Place place = model.place(item.key());
    fill(item.value(), place, number);
    if (optimizer_kind(optimizer) == "Adam") {
      ParameterState state{kSteps, {}};
      for (const auto& [name, from] : kMoments) {
        state.moments[name] = at::empty_like(item.value().detach());
        fill(state.moments[name], place, number + from);
      }
      set_parameter_state(optimizer, item.value(), state);
    }
    ++number;
  }
}

template <typename Model>
void change_last(const Model& model) {
  const auto item = model.named_parameters().back();
  const Place place = model.place(item.key());
  const auto rows = static_cast<uint64_t>(item.value().numel() / item.value().size(-1));
  const uint64_t last = rows * static_cast<uint64_t>(place.columns) - 1;
  visit(item.value(), place,
        [&](uint64_t index, uint32_t& bits) { bits ^= index == last ? 1U : 0U; });
}

template <typename Model>
void obey(const std::string& directory, Model& model, torch::optim::Optimizer& optimizer) {
  CheckpointDirectory checkpoints(directory, {});
  int64_t step = 0;
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command) && command != "end";) {
    nlohmann::json said;
    if (command == "sums") {
      said = sums(model, optimizer);
    } else {
      said = measured(
          [&] {
            if (command == "fill") fill(model, optimizer);
            if (command == "change") change_last(model);
            if (command == "save") checkpoints.save(model, optimizer, {++step, {}});
            if (command == "async") checkpoints.save_async(model, optimizer, {++step, {}});
            if (command == "load") step = checkpoints.load(model, optimizer).value().step;
          },
          [&] { checkpoints.wait(); });
    }
    std::cout << said.dump() << std::endl;
  }
}

void run(const std::string& directory, const std::string& kind,
         const std::vector<int64_t>& numbers) {
  DistributedManager::initialize();
  if (kind == "small") {
    SmallModel model(numbers.at(0));
    torch::optim::Adam optimizer(model.parameters());
    obey(directory, model, optimizer);
  } else {
    LargeModel model(numbers, kind == "cut");
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
    obey(directory, model, optimizer);
  }
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: large_rank DIRECTORY small|cut|whole NUMBER...\n");
    return 2;
  }
  std::vector<int64_t> numbers;
  for (int i = 3; i < argc; ++i) numbers.push_back(std::stoll(argv[i]));
  meshrun::run(argv[1], argv[2], numbers);
  return 0;
}
