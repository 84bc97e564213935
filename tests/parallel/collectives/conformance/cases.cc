#include "tests/parallel/collectives/conformance/cases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/collectives/conformance/oracle.h"
#include "tests/parallel/support/gradcheck.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr Pattern kPatterns[] = {Pattern::kEven, Pattern::kUneven, Pattern::kSomeZero,
                                 Pattern::kAllOnOne, Pattern::kAllZero};
constexpr MemoryLayout kLayouts[] = {MemoryLayout::kContiguous, MemoryLayout::kSliced,
                                     MemoryLayout::kTransposed};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kHalf,         at::kBFloat16, at::kDouble,
                                     at::kLong,  at::kComplexFloat, at::kBool};

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

Members members_of(const RankWorld& world, const RankWorld::Group& group, GroupArgument argument,
                   std::vector<int> ranks) {
  Members members{.group = group,
                  .argument = std::move(argument),
                  .rank = group->getRank(),
                  .size = group->getSize(),
                  .world_ranks = std::move(ranks),
                  .device = world.device()};
  return members;
}

// Every point; `is_whole` false: a part of it.
std::vector<Setting> matrix(bool is_whole) {
  std::vector<Setting> settings;
  for (const at::ScalarType type : kTypes) {
    if (!is_whole && type != at::kFloat && type != at::kHalf && type != at::kLong) continue;
    for (const int64_t dim : {0, 1, 2, -1}) {
      if (!is_whole && dim != 0 && dim != -1) continue;
      for (const Pattern pattern : kPatterns) {
        for (const MemoryLayout layout : kLayouts) {
          for (const SizesForm form :
               {SizesForm::kExtents, SizesForm::kFullShapes, SizesForm::kAbsent}) {
            // How sizes are given has nothing to do with where memory lies.
            if (form != SizesForm::kExtents && layout != MemoryLayout::kContiguous) continue;
            if (form == SizesForm::kAbsent && pattern != Pattern::kEven &&
                pattern != Pattern::kAllZero) {
              continue;
            }
            for (const bool use_fp32 : {true, false}) {
              if (!use_fp32 && !is_half(type)) continue;
              settings.push_back({.type = type,
                                  .dim = dim,
                                  .pattern = pattern,
                                  .layout = layout,
                                  .form = form,
                                  .use_fp32 = use_fp32,
                                  .root = static_cast<int>(settings.size())});
            }
          }
        }
      }
    }
  }
  return settings;
}

// Which points of a matrix are run: one of `one_of`, by MESHRUN_TEST_SEED; without a seed all of
// them. All members of a group ask about the same points in the same order, and get the same.
class Sample {
 public:
  Sample(const NamedMembers& group, unsigned one_of) : one_of_(one_of) {
    const std::string seed = variable("MESHRUN_TEST_SEED");
    is_whole_ = seed.empty();
    if (!is_whole_) generator_.seed(std::stoul(seed) + group.members.size);
  }
  bool takes_next() { return is_whole_ || generator_() % one_of_ == 0; }

 private:
  bool is_whole_ = true;
  unsigned one_of_;
  std::mt19937 generator_;
};

constexpr unsigned kOneOfMatrix = 6;
constexpr unsigned kOneOfNumeric = 3;

std::string where(const std::string& group, const Members& members, const Operation& operation,
                  const Setting& setting) {
  return operation.name + " (" + to_string(setting) + ") on group " + group + ", rank " +
         std::to_string(members.rank) + " of " + std::to_string(members.size);
}

// gloo and nccl add in an order of their own, which whole numbers do not show.
double allowed(const RankWorld& world, const Operation& operation, at::ScalarType type) {
  if (!operation.sums || world.backend() == "ucx") return 0;
  if (c10::isIntegralType(type, /*includeBool=*/true)) return 0;
  if (type == at::kHalf) return 5e-3;
  return type == at::kBFloat16 ? 5e-2 : type == at::kDouble ? 1e-13 : 1e-5;
}

void expect_result(const RankWorld& world, const std::string& place, const Operation& operation,
                   const Tensor& actual, const Tensor& expected) {
  if (!actual.defined() || actual.sizes() != expected.sizes() ||
      actual.scalar_type() != expected.scalar_type()) {
    ADD_FAILURE() << place << ": " << (actual.defined() ? actual.toString() : "undefined")
                  << (actual.defined() ? actual.sizes() : at::IntArrayRef()) << " instead of "
                  << expected.toString() << expected.sizes();
    return;
  }
  const double bound = allowed(world, operation, expected.scalar_type());
  const bool is_same =
      bound == 0 ? at::equal(actual.cpu(), expected.cpu()) : relative_l2(actual, expected) <= bound;
  if (is_same) return;
  ADD_FAILURE() << place << ":\n" << actual.cpu() << "\ninstead of\n" << expected.cpu();
}

// Every rank's loss, all ranks' together: what backward is to be the gradient of.
Tensor loss_of(const Tensor& output, const Members& members, int rank) {
  const Tensor weight =
      content(members.world_ranks[rank], 11, output.sizes(), at::kDouble).to(output.options()) *
      0.1;
  // Quadratic: the gradient depends on the values that arrived.
  const Tensor value = output * output * weight;
  return (value.is_complex() ? at::real(value) : value).sum();
}

}  // namespace

void check_result(const RankWorld& world, const NamedMembers& group, const Operation& operation,
                  const Setting& setting) {
  const Members& members = group.members;
  const std::string place = where(group.name, members, operation, setting);
  Tensors inputs;
  for (int rank = 0; rank < members.size; ++rank) inputs.push_back(operation.input(rank));
  const Tensor own = laid_out(inputs[members.rank], setting.layout);
  Tensor actual;
  try {
    actual = operation.call(own);
  } catch (const std::exception& error) {
    throw std::runtime_error(place + " raised: " + error.what());
  }
  expect_result(world, place, operation, actual, operation.expected(inputs, members.rank));
  EXPECT_TRUE(at::equal(own, inputs[members.rank])) << place << " wrote into its input";
  if (actual.numel() > 0) {
    EXPECT_FALSE(actual.is_alias_of(own)) << place << " shares memory with its input";
  }
  give_up_after_failures();
}

void check_gradient(const NamedMembers& group, const Operation& operation, const Setting& setting) {
  const Members& members = group.members;
  const std::string place = where(group.name, members, operation, setting);
  Tensors inputs;
  for (int rank = 0; rank < members.size; ++rank) {
    const Tensor input = operation.input(rank);
    // In double precision: autograd adds in the dtype itself, and ours is to be better than that.
    inputs.push_back(
        input.to(input.is_complex() ? at::kComplexDouble : at::kDouble).set_requires_grad(true));
  }
  Tensor unsharded = at::zeros({}, at::TensorOptions(members.device).dtype(at::kDouble));
  for (int rank = 0; rank < members.size; ++rank) {
    unsharded = unsharded + loss_of(operation.expected(inputs, rank), members, rank);
  }
  Tensor expected = torch::autograd::grad({unsharded}, {inputs[members.rank]}, {}, {}, false,
                                          /*allow_unused=*/true)[0];
  if (!expected.defined()) expected = at::zeros_like(inputs[members.rank]);
  expected = expected.to(setting.type);

  Tensor leaf;
  {
    const at::NoGradGuard no_grad;
    leaf = laid_out(operation.input(members.rank), setting.layout).detach();
  }
  leaf.set_requires_grad(true);
  Tensor actual;
  try {
    const Tensor output = operation.call(leaf);
    EXPECT_TRUE(output.requires_grad()) << place;
    actual = torch::autograd::grad({loss_of(output, members, members.rank)}, {leaf})[0];
  } catch (const std::exception& error) {
    throw std::runtime_error(place + ", backward, raised: " + error.what());
  }
  ASSERT_EQ(actual.sizes(), expected.sizes()) << place;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << place;
  const double bound = setting.type == at::kDouble ? 1e-13
                       : setting.type == at::kHalf ? 5e-3
                       : is_half(setting.type)     ? 4e-2
                                                   : 2e-6;
  EXPECT_LE(relative_l2(actual, expected), bound) << place << ", gradient:\n"
                                                  << actual.cpu() << "\ninstead of\n"
                                                  << expected.cpu();
  give_up_after_failures();
}

void give_up_after_failures() {
  const auto* result = ::testing::UnitTest::GetInstance()->current_test_info() != nullptr
                           ? ::testing::UnitTest::GetInstance()->current_test_info()->result()
                           : &::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  if (result->total_part_count() >= 8) {
    throw std::runtime_error("gave up after that many failures");
  }
}

std::vector<NamedMembers> groups_of(const RankWorld& world) {
  std::vector<NamedMembers> groups;
  auto& manager = DistributedManager::get();
  const auto add_named = [&](const std::string& name) {
    groups.push_back({name, members_of(world, manager.group(name), GroupArgument(name),
                                       manager.group_ranks(name))});
  };
  if (world.size() % 2 == 0) {
    DistributedManager::create_process_subgroup("block", 2);
    DistributedManager::create_orthogonal_process_group("across", "block");
    add_named("block");
    add_named("across");
  }
  std::vector<int> but_first;
  for (int rank = 1; rank < world.size(); ++rank) but_first.push_back(rank);
  if (const auto group = world.make_group(but_first)) {
    groups.push_back({"all but rank 0", members_of(world, group, group, but_first)});
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (const auto group = world.make_group({rank})) {
      groups.push_back({"alone", members_of(world, group, group, {rank})});
    }
  }
  return groups;
}

namespace {

NamedMembers whole_world(const RankWorld& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return {"world", members_of(world, world.group(), GroupArgument(), ranks)};
}

}  // namespace

void check_results(const RankWorld& world) {
  const bool is_whole = world.backend() == "ucx";
  if (!is_whole && world.rank() == 0) {
    std::printf("skipped on %s: dtypes and dims beyond a part of the matrix\n",
                world.backend().c_str());
  }
  const NamedMembers all = whole_world(world);
  Sample sample(all, kOneOfMatrix);
  for (const Setting& setting : matrix(is_whole)) {
    for (const Operation& operation : operations(all.members, setting)) {
      if (sample.takes_next()) check_result(world, all, operation, setting);
    }
  }
  for (const NamedMembers& group : groups_of(world)) {
    Sample of_group(group, kOneOfMatrix);
    for (const Setting& setting : matrix(/*is_whole=*/false)) {
      if (setting.layout == MemoryLayout::kTransposed || setting.form == SizesForm::kFullShapes)
        continue;
      for (const Operation& operation : operations(group.members, setting)) {
        if (of_group.takes_next()) check_result(world, group, operation, setting);
      }
    }
  }
}

void check_gradients(const RankWorld& world) {
  const NamedMembers all = whole_world(world);
  Sample sample(all, kOneOfMatrix);
  for (const Setting& setting : matrix(/*is_whole=*/true)) {
    if (setting.type == at::kLong || setting.type == at::kBool) continue;
    if (setting.dim != 0 && setting.dim != -1) continue;
    if (setting.layout == MemoryLayout::kSliced) continue;
    for (const Operation& operation : operations(all.members, setting)) {
      const bool is_async = operation.name.find("_async") != std::string::npos;
      if (operation.is_differentiable && (!is_async || setting.type == at::kFloat) &&
          sample.takes_next()) {
        check_gradient(all, operation, setting);
      }
    }
  }
}

void check_gradients_numerically(const RankWorld& world) {
  const NamedMembers all = whole_world(world);
  Sample sample(all, kOneOfNumeric);
  for (const at::ScalarType type : {at::kDouble, at::kComplexDouble}) {
    for (const Pattern pattern : {Pattern::kUneven, Pattern::kAllOnOne}) {
      // Two evaluations an element, in both orders: dim 1 for one pattern is enough of it.
      const bool is_first = pattern == Pattern::kUneven;
      if (type == at::kComplexDouble && !is_first) continue;
      const Setting setting{
          .type = type, .dim = is_first ? 1 : 0, .pattern = pattern, .root = 1, .is_small = true};
      for (const Operation& operation : operations(all.members, setting)) {
        if (!operation.is_differentiable || operation.name.find("_async") != std::string::npos) {
          continue;
        }
        if (!sample.takes_next()) continue;
        const RankFunction function = [&](const Tensors& inputs) {
          // Around the collective: so that the second derivative is not zero.
          const Tensor output = operation.call(inputs[0] * inputs[0]);
          return Tensors{output * output};
        };
        const std::string place = where(all.name, all.members, operation, setting);
        const Tensor own = (operation.input(all.members.rank) * 0.1).set_requires_grad(true);
        EXPECT_EQ(gradcheck(world.group(), function, {own}), "") << place;
        EXPECT_EQ(gradgradcheck(world.group(), function, {own}, {.relative = 1e-4}), "") << place;
        give_up_after_failures();
      }
    }
  }
}

}  // namespace meshrun
