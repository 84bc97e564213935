// Plain tensors that sharded ones are written into, as programs do it: a neural operator that fills
// the corners of a spectrum, a graph network that adds messages to nodes. What PromotionMode says,
// which errors are LibTorch's, and what stays refused. cases/plain_targets.cc has each operator.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using at::indexing::Slice;

class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

ShardTensor placed(const at::Tensor& whole, const SpecPtr& spec, bool requires_grad = false) {
  return ShardTensor(part_of(whole, *spec), spec, requires_grad);
}

ShardTensor cut(const at::Tensor& whole, const ShardMesh::Ptr& mesh, const Placements& placements,
                bool requires_grad = false) {
  return placed(whole,
                make_spec(mesh, ShardLayout::split(mesh->shape(), placements, whole.sizes().vec())),
                requires_grad);
}

void expect_equal(const at::Tensor& is, const at::Tensor& should, const std::string& what) {
  ASSERT_TRUE(is.defined()) << what;
  const at::Tensor whole = is_shard_tensor(is) ? ShardTensor(is).full_tensor() : is;
  ASSERT_EQ(whole.sizes(), should.sizes()) << what;
  EXPECT_TRUE(at::allclose(whole, should, 1e-10, 1e-10)) << what;
}

// Fields and weights are real, so that they can be drawn and compared; the spectrum is complex.
struct NeuralOperator {
  at::Tensor weight;  // [2, 2, channels, channels, rows, columns]: corners, real and imaginary

  at::Tensor layer(const at::Tensor& x, int64_t rows, int64_t columns) const {
    const at::Tensor spectrum = at::fft_rfft2(x);
    at::Tensor out = at::zeros({x.size(0), x.size(1), x.size(2), x.size(3) / 2 + 1},
                               at::TensorOptions(at::kComplexDouble));
    const at::Tensor factors = at::complex(weight.select(1, 0), weight.select(1, 1));
    out.index_put_(
        {Slice(), Slice(), Slice(0, rows), Slice(0, columns)},
        at::einsum(
            "bixy,ioxy->boxy",
            {spectrum.index({Slice(), Slice(), Slice(0, rows), Slice(0, columns)}), factors[0]}));
    out.index_put_({Slice(), Slice(), Slice(-rows), Slice(0, columns)},
                   at::einsum("bixy,ioxy->boxy",
                              {spectrum.index({Slice(), Slice(), Slice(-rows), Slice(0, columns)}),
                               factors[1]}));
    return at::fft_irfft2(out, std::vector<int64_t>{x.size(2), x.size(3)});
  }

  at::Tensor forward(const at::Tensor& x, int64_t rows, int64_t columns) const {
    at::Tensor y = x;
    for (int i = 0; i < 2; ++i) y = at::gelu(layer(y, rows, columns) + y);
    return y;
  }
};

// Three steps of descent, with fields that are cut anyhow and weights that are plain or sharded.
void train_a_neural_operator() {
  const JoinedWorld world;
  announce_plain_leaves();
  const std::vector<int64_t> mesh_shape =
      world.size == 4 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{world.size};
  const ShardMesh::Ptr mesh = mesh_of_world(mesh_shape);
  Draw draw(17);
  for (int i = 0; i < 8; ++i) {
    const int64_t channels = draw.integer(1, 3);
    const int64_t height = draw.integer(4, 9);
    const int64_t width = draw.integer(4, 9);
    const int64_t rows = draw.integer(1, height / 2);
    const int64_t columns = draw.integer(1, width / 2);
    const at::Tensor field = draw.normal({2, channels, height, width});
    const at::Tensor weight = draw.normal({2, 2, channels, channels, rows, columns}) / 10;
    const at::Tensor target = draw.normal(field.sizes());
    const SpecPtr spec =
        make_spec(mesh, draw_layout(draw, mesh_shape, field.sizes().vec(), false, true));
    const bool has_plain_weight = draw.chance(0.5);
    SCOPED_TRACE(spec->to_string() +
                 (has_plain_weight ? ", a plain weight" : ", a sharded weight"));

    NeuralOperator whole{weight.clone().requires_grad_()};
    NeuralOperator sharded{has_plain_weight
                               ? weight.clone().requires_grad_()
                               : placed(weight, replicated_spec(mesh, weight.sizes()), true)};
    const at::Tensor own_target = placed(target, spec);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input = field.clone().requires_grad_();
      const at::Tensor own_input = placed(field, spec, true);
      const at::Tensor expected = at::mse_loss(whole.forward(input, rows, columns), target);
      const at::Tensor loss = at::mse_loss(sharded.forward(own_input, rows, columns), own_target);
      expect_equal(loss, expected, "loss");
      expected.backward();
      loss.backward();
      expect_equal(own_input.grad(), input.grad(), "gradient of the field");
      expect_equal(sharded.weight.grad(), whole.weight.grad(), "gradient of the weight");
      EXPECT_EQ(is_shard_tensor(sharded.weight.grad()), !has_plain_weight);
      const at::NoGradGuard no_history;
      for (NeuralOperator* model : {&whole, &sharded}) {
        model->weight.sub_(model->weight.grad(), 0.1);
        model->weight.mutable_grad() = at::Tensor();
      }
    }
    expect_equal(sharded.weight, whole.weight, "weight");
  }
}

// Messages of edges that are cut anyhow, added to plain nodes: twice, and through scatter_add_.
void pass_messages() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  Draw draw(5);
  for (int i = 0; i < 12; ++i) {
    const int64_t nodes = draw.extent();
    const int64_t edges = draw.integer(0, 20);
    const at::Tensor features = draw.normal({nodes, 3});
    const at::Tensor of_edges = draw.normal({edges, 3});
    const at::Tensor from = draw.integers({edges}, 0, nodes - 1);
    const at::Tensor to = draw.integers({edges}, 0, nodes - 1);
    const ShardLayout by_edge =
        with_uneven_cuts(draw, ShardLayout::split({world.size}, {Shard(0)}, {edges, 3}));
    const SpecPtr edge_spec = make_spec(mesh, by_edge);
    const SpecPtr index_spec =
        make_spec(mesh, ShardLayout::with_cuts({world.size}, {Shard(0)}, {by_edge.cuts()[0]}));
    const auto run = [&](const at::Tensor& x, const at::Tensor& e, const at::Tensor& source,
                         const at::Tensor& target) {
      at::Tensor y = x;
      for (int layer = 0; layer < 2; ++layer) {
        const at::Tensor messages = (y.index_select(0, source) * e).tanh();
        at::Tensor sums = at::zeros({nodes, 3}, at::kDouble);
        sums.index_add_(0, target, messages);
        sums.scatter_add_(0, target.unsqueeze(1).expand({edges, 3}), messages * 0.5);
        at::Tensor largest = at::full({nodes, 3}, -10.0, at::kDouble);
        largest.scatter_reduce_(0, target.unsqueeze(1).expand({edges, 3}), messages, "amax");
        y = y + sums + largest.clamp_min(-1) * 0.1;
      }
      return y;
    };
    const at::Tensor x = features.clone().requires_grad_();
    const at::Tensor e = of_edges.clone().requires_grad_();
    const at::Tensor own_x = cut(features, mesh, {draw.chance(0.5) ? Shard(0) : Replicate()}, true);
    const at::Tensor own_e = placed(of_edges, edge_spec, true);
    const at::Tensor expected = run(x, e, from, to);
    const at::Tensor got = run(own_x, own_e, placed(from, index_spec), placed(to, index_spec));
    expect_equal(got, expected, "nodes");
    expected.pow(2).sum().backward();
    got.pow(2).sum().backward();
    expect_equal(own_x.grad(), x.grad(), "gradient of the nodes");
    expect_equal(own_e.grad(), e.grad(), "gradient of the edges");
  }
}

// The plain tensor keeps its memory, is equal on all ranks, and what follows is plain.
void stay_plain() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  const ShardTensor x = cut(whole, mesh, {Shard(0)});
  at::Tensor out = at::zeros({7, 3}, at::kDouble);
  const void* memory = out.const_data_ptr();
  out.narrow(0, 1, 6).copy_(x.narrow(0, 1, 6));
  out[0] = x[0];
  out += x;
  EXPECT_FALSE(is_shard_tensor(out));
  EXPECT_EQ(out.const_data_ptr(), memory);
  EXPECT_TRUE(at::equal(out, whole * 2));
  EXPECT_FALSE(is_shard_tensor(out * 2));
  EXPECT_TRUE(is_shard_tensor(out + x));

  // The dtype is that of the plain tensor.
  at::Tensor narrow = at::zeros({7, 3}, at::kFloat);
  narrow.copy_(x);
  narrow.add_(x);
  EXPECT_TRUE(at::equal(narrow, (whole * 2).to(at::kFloat)));

  // Summands are added up first.
  const SpecPtr summands = make_spec(mesh, ShardLayout::split({world.size}, {Partial()}, {7, 3}));
  out.copy_(placed(whole, summands));
  EXPECT_TRUE(at::allclose(out, whole));

  // Without history, and in inference.
  {
    const c10::InferenceMode inference;
    at::Tensor inner = at::zeros({7, 3}, at::kDouble);
    inner.narrow(0, 1, 6).add_(cut(whole, mesh, {Shard(0)}).narrow(0, 1, 6) * 1);
    inner.narrow(0, 0, 1).copy_(x.sum());
    EXPECT_TRUE(at::equal(inner.narrow(0, 1, 6), whole.narrow(0, 1, 6)));
    EXPECT_TRUE(at::allclose(inner[0], whole.sum()));
  }

  // Accumulated over steps: a number.
  at::Tensor total = at::zeros({}, at::kDouble);
  const PromotionModeGuard disabled(PromotionMode::kDisabled);
  for (int step = 0; step < 3; ++step) total += x.sum();
  EXPECT_EQ(total.item<double>(), 3 * whole.sum().item<double>());
}

// What autograd saved of a whole sharded tensor shares its memory, and counts its writes.
void count_writes_together() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  for (const bool wants_gradient : {false, true}) {
    const at::Tensor factor = cut(at::full({4}, 3.0, at::kDouble), mesh, {Replicate()}) * 1;
    if (wants_gradient) factor.set_requires_grad(true);
    const at::Tensor leaf = at::ones({4}, at::kDouble).requires_grad_();
    at::Tensor out = leaf * 1;
    out.mul_(factor);
    {
      const at::NoGradGuard no_history;
      factor.add_(1);
    }
    EXPECT_NE(error_of([&] { out.sum().backward(); }).find("modified by an inplace operation"),
              std::string::npos);
  }
}

// Hooks that make gradients plain go with the history of a view, which a write replaces.
void follow_views() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  Draw draw(23);
  const at::Tensor values = draw.normal({6, 4});
  const at::Tensor others = draw.normal({6, 4});
  const auto run = [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& leaf) {
    at::Tensor out = leaf * 2;
    const at::Tensor view = out.narrow(0, 1, 4);
    at::Tensor loss = (view + y.narrow(0, 1, 4)).square().sum();
    out.narrow(0, 2, 4).copy_(x.narrow(0, 2, 4) * 3);
    loss = loss + (view + y.narrow(0, 1, 4)).pow(3).sum();
    out.select(0, 3).add_(y.select(0, 3));
    // A function handler asks for hooks before LibTorch asks for the history.
    loss = loss + at::linear(view, y.narrow(0, 1, 4)).square().sum() + out.square().sum();
    return loss;
  };
  const at::Tensor x = values.clone().requires_grad_();
  const at::Tensor y = others.clone().requires_grad_();
  const at::Tensor leaf = values.clone().requires_grad_();
  const at::Tensor own_x = cut(values, mesh, {Shard(0)}, true);
  const at::Tensor own_y = cut(others, mesh, {Shard(1)}, true);
  const at::Tensor own_leaf = values.clone().requires_grad_();
  const at::Tensor expected = run(x, y, leaf);
  const at::Tensor loss = run(own_x, own_y, own_leaf);
  expect_equal(loss, expected, "loss");
  expected.backward();
  loss.backward();
  EXPECT_FALSE(is_shard_tensor(own_leaf.grad()));
  expect_equal(own_leaf.grad(), leaf.grad(), "gradient of the plain leaf");
  expect_equal(own_x.grad(), x.grad(), "gradient of what was written");
  expect_equal(own_y.grad(), y.grad(), "gradient of the factor");

  // A view that is older than the first history.
  at::Tensor out = at::zeros({6, 4}, at::kDouble);
  const at::Tensor older = out.narrow(0, 1, 4);
  out.copy_(own_x);
  own_x.mutable_grad() = at::Tensor();
  (older * own_y.narrow(0, 1, 4)).sum().backward();
  at::Tensor slice = at::zeros({6, 4}, at::kDouble);
  slice.narrow(0, 1, 4).copy_(others.narrow(0, 1, 4));
  expect_equal(own_x.grad(), slice, "gradient through an older view");
}

void obey_promotion_mode() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  const ShardTensor x = cut(whole, mesh, {Shard(0)});
  const at::Tensor index = at::arange(7, at::kLong);
  struct Call {
    const char* name;
    std::function<void(at::Tensor&)> call;
  };
  const Call calls[] = {
      {"aten::copy_", [&](at::Tensor& out) { out.copy_(x); }},
      {"aten::add_.Tensor", [&](at::Tensor& out) { out += x; }},
      {"aten::add.out", [&](at::Tensor& out) { at::add_out(out, x, x); }},
      {"aten::index_add_", [&](at::Tensor& out) { out.index_add_(0, index, x); }},
      {"aten::index_put_", [&](at::Tensor& out) { out.index_put_({index}, x); }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    at::Tensor out = at::zeros({7, 3}, at::kDouble);
    Warnings warnings;
    {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      call.call(out);
      EXPECT_TRUE(warnings.texts.empty());
      const PromotionModeGuard warns(PromotionMode::kWarn);
      call.call(out);
      call.call(out);
    }
    int about_target = 0;
    for (const std::string& text : warnings.texts) {
      if (text.find("writes a ShardTensor into a plain tensor of [7, 3]") == std::string::npos) {
        continue;
      }
      ++about_target;
      EXPECT_EQ(text.find(call.name), 0U) << text;
      EXPECT_NE(text.find("new_zeros() or zeros_like() of a ShardTensor"), std::string::npos);
    }
    EXPECT_EQ(about_target, 1);
    const PromotionModeGuard disabled(PromotionMode::kDisabled);
    const at::Tensor before = out.clone();
    expect_error_on_all_ranks([&] { call.call(out); },
                              std::string(call.name) +
                                  " cannot write a ShardTensor into a plain tensor: make the "
                                  "tensor that is written by new_zeros() or zeros_like()");
    EXPECT_TRUE(at::equal(out, before));
  }

  // The engine adds to a plain gradient in any mode.
  const at::Tensor leaf = at::ones({7, 3}, at::kDouble).requires_grad_();
  announce_plain_leaf(leaf);
  {
    const at::Tensor loss = (leaf * 2).sum() + (x * leaf).sum();
    const PromotionModeGuard disabled(PromotionMode::kDisabled);
    loss.backward();
  }
  EXPECT_TRUE(at::equal(leaf.grad(), whole + 2));

  // Without function handlers nothing is above autograd.
  const ShardTensorPatchesGuard off(false);
  at::Tensor out = at::zeros({7, 3}, at::kDouble);
  expect_error_on_all_ranks([&] { out += x; }, "cannot write a ShardTensor into a plain tensor");
}

void raise_on_all_ranks() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  const ShardTensor x = cut(whole, mesh, {Shard(0)}, true);
  const at::Tensor out = at::zeros({7, 3}, at::kDouble);
  const at::Tensor leaf = at::zeros({7, 3}, at::kDouble).requires_grad_();
  expect_error_on_all_ranks([&] { leaf.copy_(x); }, "a leaf Variable that requires grad");
  expect_error_on_all_ranks([&] { leaf.index_add_(0, at::arange(7, at::kLong), x); },
                            "a leaf Variable that requires grad");
  expect_error_on_all_ranks([&] { out.narrow(0, 0, 6).copy_(x); }, "must match the size");
  expect_error_on_all_ranks([&] { out.add_(x.t()); }, "must match the size");
  at::Tensor sum = at::zeros({7, 3}, at::kDouble);
  expect_error_on_all_ranks([&] { at::add_out(sum, x, x); }, "automatic differentiation");
  at::Tensor integers = at::zeros({7, 3}, at::kLong);
  expect_error_on_all_ranks([&] { integers.add_(x.detach()); }, "can't be cast");

  // An index out of bounds that one rank has.
  const at::Tensor wrong = at::tensor({0, 1, 2, 3, 4, 5, 99}, at::kLong);
  const ShardTensor index = cut(wrong, mesh, {Shard(0)});
  at::Tensor rows = at::zeros({7, 3}, at::kDouble);
  expect_error_on_all_ranks([&] { rows.put_(index, x.detach().select(1, 0)); }, "out of range");

  // Each rank would draw its own.
  const ShardTensor chances = cut(at::full({7, 3}, 0.5, at::kDouble), mesh, {Shard(0)});
  expect_error_on_all_ranks([&] { rows.bernoulli_(chances); },
                            "would draw other numbers into the plain tensor");
  if (world.size == 2) {
    const ShardMesh::Ptr other = mesh_of_world({1, 2});
    const ShardTensor there = cut(whole, other, {Replicate(), Shard(0)});
    expect_error_on_all_ranks([&] { rows.addcmul_(x.detach(), there); }, "two meshes");
  }
}

const bool kRegistered =
    register_rank_function("train a neural operator", train_a_neural_operator) &&
    register_rank_function("pass messages", pass_messages) &&
    register_rank_function("stay plain", stay_plain) &&
    register_rank_function("count writes together", count_writes_together) &&
    register_rank_function("follow views", follow_views) &&
    register_rank_function("obey promotion mode", obey_promotion_mode) &&
    register_rank_function("raise on all ranks", raise_on_all_ranks);

TEST(PlainTargetsTest, ANeuralOperatorFillsTheCornersOfPlainZeros) {
  run_in_worlds("train a neural operator", {1, 2, 3, 4}, {"ucx"});
}

TEST(PlainTargetsTest, AGraphNetworkAddsMessagesToPlainNodes) {
  run_in_worlds("pass messages", {1, 2, 3, 4}, {"ucx"});
}

TEST(PlainTargetsTest, StayPlainAndKeepTheirMemory) {
  run_in_worlds("stay plain", {1, 2, 3}, {"ucx"});
}

TEST(PlainTargetsTest, CountWritesTogetherWithWhatTheyRead) {
  run_in_worlds("count writes together", {1, 2}, {"ucx"});
}

TEST(PlainTargetsTest, GradientsFollowViewsThatAWriteReplaced) {
  run_in_worlds("follow views", {1, 2, 3}, {"ucx"});
}

TEST(PlainTargetsTest, PromotionModeWarnsOnceOrRefuses) {
  run_in_worlds("obey promotion mode", {1, 2}, {"ucx"});
}

TEST(PlainTargetsTest, ErrorsAreThoseOfLibTorchOnAllRanks) {
  run_in_worlds("raise on all ranks", {1, 2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
