// Tensors that share memory with a sharded one, or may: whoever writes into one of them is heard of
// in the other. Either both count their writes together, so that LibTorch's autograd finds what it
// saved, or each has memory of its own.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/scatter_tensor.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

constexpr const char* kModified = "modified by an inplace operation";

enum class Memory { kShared, kOwn };

// From a tensor to another one that has its values.
struct Way {
  std::string name;
  Placements from;  // of the given tensor; none: it is a plain one
  std::function<at::Tensor(const at::Tensor&)> call;
  Memory memory;
};

at::Tensor values_of(const at::Tensor& tensor) {
  return (is_shard_tensor(tensor) ? ShardTensor(tensor).full_tensor() : tensor).detach().clone();
}

const at::Tensor& memory_of(const at::Tensor& tensor) {
  return is_shard_tensor(tensor) ? local_of(tensor) : tensor;
}

// On a mesh whose second axis has one rank: what is placed along it says nothing.
std::vector<Way> ways(const ShardMesh::Ptr& mesh) {
  const DeviceMesh& on = mesh->device_mesh();
  const auto moved = [](Placements to, bool async) {
    return [to, async](const at::Tensor& x) -> at::Tensor {
      return ShardTensor(x).redistribute(std::nullopt, to, async);
    };
  };
  const auto moved_within = [](Placements to) {
    return [to](const at::Tensor& x) { return redistribute(x, target_spec(spec_of(x), to)); };
  };
  const auto full = [](const at::Tensor& x) { return ShardTensor(x).full_tensor(); };
  std::vector<Way> all;
  const std::vector<std::pair<Placements, Placements>> pairs = {
      {{Replicate(), Partial()}, {Replicate(), Replicate()}},
      {{Replicate(), Partial(PartialOp::kMax)}, {Replicate(), Shard(0)}},
      {{Shard(0), Partial()}, {Shard(0), Replicate()}},
      {{Replicate(), Shard(0)}, {Replicate(), Replicate()}},
      {{Replicate(), Replicate()}, {Replicate(), Shard(1)}},
      {{Replicate(), Replicate()}, {Shard(0), Replicate()}},
      {{Replicate(), Replicate()}, {Shard(1), Replicate()}},
      {{Shard(0), Replicate()}, {Shard(0), Replicate()}},
      {{Shard(0), Shard(1)}, {Shard(0), Shard(0)}},
  };
  for (const auto& [from, to] : pairs) {
    const std::string name = fmt::format("{} to {}", to_string(from), to_string(to));
    all.push_back({name, from, moved(to, false), Memory::kOwn});
    all.push_back({name + ", async", from, moved(to, true), Memory::kOwn});
    all.push_back({name + ", within operators", from, moved_within(to), Memory::kShared});
  }
  const std::vector<std::pair<Placements, Memory>> gathered = {
      {{Replicate(), Replicate()}, Memory::kShared},
      {{Replicate(), Partial()}, Memory::kOwn},
      {{Replicate(), Shard(0)}, Memory::kOwn},
      {{Shard(0), Replicate()}, Memory::kOwn},
  };
  for (const auto& [from, memory] : gathered) {
    all.push_back({"full_tensor of " + to_string(from), from, full, memory});
  }
  all.push_back({"another mesh",
                 {Replicate(), Partial()},
                 [mesh](const at::Tensor& x) -> at::Tensor {
                   const ShardMesh::Ptr other = mesh_of_world({mesh->size()});
                   return ShardTensor(x).redistribute(other->device_mesh(), {Replicate()});
                 },
                 Memory::kOwn});
  all.push_back({"to_local",
                 {Replicate(), Replicate()},
                 [](const at::Tensor& x) { return ShardTensor(x).to_local(); },
                 Memory::kShared});
  all.push_back({"to_local within operators",
                 {Replicate(), Replicate()},
                 [](const at::Tensor& x) { return to_local(x); },
                 Memory::kShared});
  all.push_back({"from_local",
                 {},
                 [on](const at::Tensor& x) -> at::Tensor {
                   return ShardTensor::from_local(x, on, {Replicate(), Replicate()});
                 },
                 Memory::kShared});
  all.push_back({"ShardTensor",
                 {},
                 [mesh](const at::Tensor& x) -> at::Tensor {
                   return ShardTensor(x, replicated_spec(mesh, x.sizes()));
                 },
                 Memory::kShared});
  all.push_back(
      {"promote", {}, [mesh](const at::Tensor& x) { return promote(x, mesh); }, Memory::kShared});
  const auto renamed = [](const at::Tensor& x) { return at::einsum("ij->ij", {x}); };
  all.push_back({"einsum", {Shard(0), Replicate()}, renamed, Memory::kShared});
  all.push_back({"einsum, nothing recorded",
                 {Shard(0), Replicate()},
                 [renamed](const at::Tensor& x) {
                   const at::NoGradGuard no_grad;
                   return renamed(x);
                 },
                 Memory::kShared});
  all.push_back({"scatter_tensor",
                 {},
                 [on](const at::Tensor& x) -> at::Tensor {
                   return scatter_tensor(x, 0, on, {Replicate(), Replicate()});
                 },
                 Memory::kOwn});
  return all;
}

at::Tensor given_to(const Way& way, const at::Tensor& whole, const ShardMesh::Ptr& mesh) {
  if (way.from.empty()) return whole.clone();
  const SpecPtr spec =
      make_spec(mesh, ShardLayout::split(mesh->shape(), way.from, whole.sizes().vec()));
  return ShardTensor(part_of(whole, *spec), spec);
}

// A product with what requires a gradient: the gradient is `saved`.
struct Product {
  explicit Product(const at::Tensor& saved) {
    const at::Tensor ones = at::ones(saved.sizes(), at::kDouble);
    factor = ones;
    if (is_shard_tensor(saved)) {
      factor = ShardTensor(ones, replicated_spec(spec_of(saved)->mesh(), saved.sizes()));
    }
    factor.requires_grad_();
    sum = at::mul(saved, factor).sum();
  }

  // Error of the backward pass; empty where there is none.
  std::string backward() const {
    try {
      sum.backward();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  at::Tensor factor;
  at::Tensor sum;
};

// `written` is written into after a product has saved `saved`.
void write_after_a_product(const at::Tensor& saved, const at::Tensor& written, bool is_heard) {
  const at::Tensor before = values_of(saved);
  const Product product(saved);
  {
    const at::NoGradGuard no_grad;
    at::Tensor(written).add_(1);
  }
  const std::string error = product.backward();
  if (is_heard) {
    EXPECT_NE(error.find(kModified), std::string::npos) << error;
  } else {
    EXPECT_EQ(error, "");
    EXPECT_TRUE(at::equal(values_of(product.factor.grad()), before));
  }
}

void hear_of_writes(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size, 1});
  const at::Tensor whole = at::arange(24, at::kDouble).view({8, 3});
  for (const Way& way : ways(mesh)) {
    SCOPED_TRACE(way.name);
    const bool shares = way.memory == Memory::kShared;
    const at::Tensor source = given_to(way, whole, mesh);
    const at::Tensor result = way.call(source);
    EXPECT_TRUE(at::equal(values_of(result), whole));
    // Pieces that are not contiguous are copies.
    EXPECT_FALSE(!shares && memory_of(result).is_alias_of(memory_of(source)));
    const auto version = result._version();
    at::Tensor(source).add_(1);
    EXPECT_EQ(result._version() > version, shares);
    EXPECT_TRUE(shares || at::equal(values_of(result), whole));
    if (testing::Test::HasFailure()) return;

    for (const bool into_source : {false, true}) {
      SCOPED_TRACE(into_source ? "written into the source" : "written into the result");
      const at::Tensor first = given_to(way, whole, mesh);
      const at::Tensor second = way.call(first);
      write_after_a_product(into_source ? second : first, into_source ? first : second, shares);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Tensors without a gradient that function handlers pass on to local operators, which save them.
void hear_of_writes_into_what_handlers_save(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const auto spec_of_cut = [&](const Placement& placement, at::IntArrayRef shape) {
    return make_spec(mesh, ShardLayout::split({world.size}, {placement}, shape.vec()));
  };
  // The result of an operator, whose local tensor LibTorch's autograd has not seen.
  const auto tensor = [&](const Placement& placement, at::IntArrayRef shape) -> at::Tensor {
    const SpecPtr spec = spec_of_cut(placement, shape);
    return at::mul(ShardTensor(at::ones(spec->local_shape(), at::kDouble), spec), 2);
  };
  const auto leaf = [&](const Placement& placement, at::IntArrayRef shape) -> at::Tensor {
    const SpecPtr spec = spec_of_cut(placement, shape);
    return ShardTensor(at::ones(spec->local_shape(), at::kDouble), spec, true);
  };
  const auto numbers = [&](const Placement& placement, at::IntArrayRef shape) -> at::Tensor {
    const SpecPtr spec = spec_of_cut(placement, shape);
    return at::mul(ShardTensor(at::ones(spec->local_shape(), at::kLong), spec), 1);
  };
  struct Case {
    std::string name;
    at::Tensor saved;
    std::function<at::Tensor(const at::Tensor&)> call;
  };
  const at::Tensor rows = leaf(Shard(0), {8, 4});
  const at::Tensor square = leaf(Replicate(), {4, 4});
  const at::Tensor flat_rows = leaf(Replicate(), {8, 4});
  const std::vector<Case> cases = {
      {"linear, cut rows", tensor(Shard(0), {8, 4}),
       [&](const at::Tensor& x) { return at::linear(x, square); }},
      {"linear, Replicate", tensor(Replicate(), {8, 4}),
       [&](const at::Tensor& x) { return at::linear(x, square); }},
      {"a Replicate operand is cut in place", tensor(Replicate(), {8, 4}),
       [&](const at::Tensor& x) {
         return at::einsum("ij,ik->jk", {x, rows});
       }},
      {"index_select", numbers(Replicate(), {3}),
       [&](const at::Tensor& x) { return at::index_select(flat_rows, 0, x); }},
      {"index_select, cut indices", numbers(Shard(0), {3}),
       [&](const at::Tensor& x) { return at::index_select(flat_rows, 0, x); }},
      {"index_select, indices cut in place", numbers(Replicate(), {3}),
       [&](const at::Tensor& x) {
         return at::index_select(leaf(Shard(1), {8, 4}), 0, x);
       }},
      {"gather", numbers(Replicate(), {8, 4}),
       [&](const at::Tensor& x) { return at::gather(flat_rows, 0, x); }},
      {"gather, indices cut in place", numbers(Replicate(), {8, 4}),
       [&](const at::Tensor& x) { return at::gather(rows, 1, x); }},
      {"embedding", numbers(Replicate(), {5}),
       [&](const at::Tensor& x) { return at::embedding(flat_rows, x); }},
      {"take", numbers(Replicate(), {5}),
       [&](const at::Tensor& x) { return at::take(flat_rows, x); }},
      {"index", numbers(Replicate(), {5}),
       [&](const at::Tensor& x) {
         return at::index(flat_rows, c10::List<std::optional<at::Tensor>>({x}));
       }},
      {"scatter_add", numbers(Replicate(), {8, 4}),
       [&](const at::Tensor& x) {
         return at::scatter_add(tensor(Replicate(), {8, 4}), 0, x, flat_rows);
       }},
      {"layer_norm", tensor(Shard(0), {8, 4}),
       [&](const at::Tensor& x) { return at::layer_norm(x, {4}, leaf(Replicate(), {4})); }},
  };
  for (const Case& given : cases) {
    SCOPED_TRACE(given.name);
    const at::Tensor result = given.call(given.saved);
    {
      const at::NoGradGuard no_grad;
      at::Tensor(given.saved).zero_();
    }
    EXPECT_NE(error_of([&] { result.sum().backward(); }).find(kModified), std::string::npos);
  }
}

// An optimizer's step between the passes: what a plain leaf was is gone.
void hear_of_writes_into_announced_leaves(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = at::arange(24, at::kDouble).view({8, 3});
  const SpecPtr rows = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {8, 3}));
  const at::Tensor plain = at::ones({3}, at::kDouble).requires_grad_();
  announce_plain_leaf(plain);
  const ShardTensor x(part_of(whole, *rows), rows, true);
  const auto step = [&] {
    const at::NoGradGuard no_grad;
    at::Tensor(plain).add_(1);
  };
  for (const auto& call :
       std::vector<std::function<at::Tensor()>>{[&] { return at::mul(x, plain); },
                                                [&] {
                                                  return at::einsum("ij,j->i", {x, plain});
                                                },
                                                [&] { return at::layer_norm(x, {3}, plain); }}) {
    const at::Tensor result = call();
    step();
    EXPECT_NE(error_of([&] { result.sum().backward(); }).find(kModified), std::string::npos);
    call().sum().backward();
  }
}

const bool kRegistered = register_rank_function("share memory", [] {
  const JoinedWorld world;
  hear_of_writes(world);
  hear_of_writes_into_what_handlers_save(world);
  hear_of_writes_into_announced_leaves(world);
});

TEST(SharedMemoryTest, AWriteIsHeardOfWhereverItsMemoryIs) {
  run_in_worlds("share memory", {1, 2, 3, 4}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
