#include "jobs/verify/conformance.h"

#include <numeric>
#include <sstream>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "jobs/runtime/words.h"
#include "jobs/verify/comparison.h"
#include "parallel/base/split.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_to_all_v.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/scatter_tensor.h"

namespace meshrun::verify {
namespace {

// The first thing that is wrong on this rank. A check goes on after it: a rank that returned alone
// would leave the others in the check's next collective.
class Problem {
 public:
  void add(const std::string& text, const std::string& prefix = "") {
    if (first_.empty() && !text.empty()) first_ = prefix + text;
  }
  const std::string& first() const { return first_; }

 private:
  std::string first_;
};

// Whole numbers up to 16: sums of them over a thousand ranks are exact in float32.
at::Tensor ramp(int64_t count, at::ScalarType type) {
  return at::arange(count, at::kLong).remainder(16).add(1).to(type);
}

at::Tensor to_device(const at::Tensor& tensor) {
  return tensor.to(DistributedManager::get().device());
}

// Some are empty.
std::vector<int64_t> uneven(int size) {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < size; ++rank) sizes.push_back(rank % 3 == 1 ? 0 : 700 + 301 * rank);
  if (size == 2) sizes[1] = 301;
  return sizes;
}

std::string check_sum(int64_t count, at::ScalarType type) {
  DistributedManager& manager = DistributedManager::get();
  const int64_t size = manager.world_size();
  const at::Tensor base = ramp(count, type);
  std::vector<at::Tensor> tensors = {to_device(base * (manager.rank() + 1))};
  manager.world()->allreduce(tensors)->wait();
  return unequal(tensors[0], base * (size * (size + 1) / 2));
}

std::string check_gather() {
  DistributedManager& manager = DistributedManager::get();
  const std::vector<int64_t> sizes = uneven(manager.world_size());
  std::vector<at::Tensor> pieces;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    pieces.push_back(at::arange(sizes[rank], at::kLong) + 100000 * static_cast<int64_t>(rank));
  }
  const at::Tensor own = to_device(pieces[static_cast<size_t>(manager.rank())]);
  return unequal(all_gather_v(own, sizes), at::cat(pieces));
}

// Each rank's loss is rank + 1 times the sum of all pieces.
std::string check_gradient() {
  DistributedManager& manager = DistributedManager::get();
  const std::vector<int64_t> sizes = uneven(manager.world_size());
  const int64_t size = manager.world_size();
  const int64_t own = sizes[static_cast<size_t>(manager.rank())];
  at::Tensor piece = to_device(at::ones({own})).requires_grad_();
  (all_gather_v(piece, sizes) * (manager.rank() + 1)).sum().backward();
  return unequal(piece.grad(),
                 at::full({own}, static_cast<double>(size * (size + 1) / 2), at::kFloat));
}

std::string check_reduce_scatter() {
  DistributedManager& manager = DistributedManager::get();
  const std::vector<int64_t> sizes = uneven(manager.world_size());
  const int64_t size = manager.world_size();
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const at::Tensor base = ramp(total, at::kFloat);
  const auto rank = static_cast<size_t>(manager.rank());
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return unequal(reduce_scatter_v(to_device(base * (manager.rank() + 1)), sizes),
                 base.narrow(0, begin, sizes[rank]) * (size * (size + 1) / 2));
}

// Rank i sends (i + 2 j) % 5 * 100 elements to rank j.
std::string check_exchange() {
  DistributedManager& manager = DistributedManager::get();
  const int rank = manager.rank();
  const auto count = [](int from, int to) -> int64_t { return (from + 2 * to) % 5 * 100; };
  const auto piece = [&](int from, int to) {
    return at::arange(count(from, to), at::kLong) + (int64_t{1000} * from + to) * 1000;
  };
  std::vector<int64_t> input_sizes, output_sizes;
  std::vector<at::Tensor> sent, expected;
  for (int peer = 0; peer < manager.world_size(); ++peer) {
    input_sizes.push_back(count(rank, peer));
    output_sizes.push_back(count(peer, rank));
    sent.push_back(piece(rank, peer));
    expected.push_back(piece(peer, rank));
  }
  return unequal(all_to_all_v(to_device(at::cat(sent)), input_sizes, output_sizes),
                 at::cat(expected));
}

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::kDouble);
}

at::Tensor own_piece(const at::Tensor& whole, int64_t dim) {
  const DistributedManager& manager = DistributedManager::get();
  const SplitRange own = split_range(whole.size(dim), manager.world_size(), manager.rank());
  return to_device(whole.narrow(dim, own.begin, own.size()).contiguous());
}

// In relative L2. All is float64: GPUs compute float32 convolutions with fewer digits.
constexpr double kNear = 1e-10;

struct Operator {
  const char* name;
  std::vector<at::Tensor> inputs;
  std::vector<int64_t> cut;  // dimension of each input; -1: it stays whole
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

std::vector<Operator> operators() {
  const at::Tensor table = random({37, 24}, 1);
  const at::Tensor weight = random({16, 24}, 2);
  const at::Tensor images = random({2, 3, 41, 12}, 3);
  const at::Tensor filters = random({5, 3, 3, 3}, 4);
  return {
      {"relu, mul, add",
       {table, table + 1},
       {0, 0},
       [](const auto& x) { return x[0].relu() * x[1] + 0.5; }},
      {"sum over the cut dimension", {table}, {0}, [](const auto& x) { return x[0].sum(0); }},
      {"softmax along the cut dimension",
       {table},
       {1},
       [](const auto& x) { return x[0].softmax(1); }},
      {"layer_norm", {table}, {1}, [](const auto& x) { return at::layer_norm(x[0], {24}); }},
      {"linear", {table, weight}, {0, -1}, [](const auto& x) { return at::linear(x[0], x[1]); }},
      {"matmul of two cut matrices",
       {table, weight.t().contiguous()},
       {0, 1},
       [](const auto& x) { return x[0].matmul(x[1]); }},
      {"conv2d with halos",
       {images, filters},
       {2, -1},
       [](const auto& x) { return at::conv2d(x[0], x[1], {}, 1, 1); }},
      {"transpose, reshape",
       {table},
       {0},
       [](const auto& x) {
         return x[0].t().reshape({4, 6, 37});
       }},
  };
}

std::string check_operator(const Operator& op, const DeviceMesh& mesh) {
  const Placements whole_on_each(mesh.shape().size(), Replicate());
  std::vector<at::Tensor> plain, sharded;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    plain.push_back(op.inputs[i].clone().requires_grad_());
    const Placements placements =
        op.cut[i] < 0 ? whole_on_each : Placements(mesh.shape().size(), Shard(op.cut[i]));
    sharded.push_back(scatter_tensor(to_device(op.inputs[i]), mesh.ranks().front(), mesh,
                                     placements, op.inputs[i].sizes().vec(), at::kDouble,
                                     /*requires_grad=*/true));
  }
  const at::Tensor expected = op.call(plain);
  // A loss whose gradient is not near zero, as that of normalized values' squares is.
  expected.sin().sum().backward();
  const at::Tensor result = op.call(sharded);
  result.sin().sum().backward();
  // A rank with a wrong value takes part in the gradients' collectives, too.
  Problem problem;
  problem.add(unlike(ShardTensor(result.detach()).full_tensor(), expected, kNear));
  for (size_t i = 0; i < plain.size(); ++i) {
    problem.add(unlike(ShardTensor(sharded[i].grad()).full_tensor(), plain[i].grad(), kNear),
                "gradient of operand " + std::to_string(i) + ": ");
  }
  return problem.first();
}

}  // namespace

void check_collectives(Stage& stage) {
  const std::string where = " on " + jobs::ranks(stage.exchange().size());
  const auto exactly = [&] { return "equal to the closed form" + where; };
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    std::ostringstream name;
    name << "all_reduce, sums of " << type;
    stage.check(
        name.str(),
        [&] {
          Problem problem;
          for (const int64_t count : {1, 1023, 65536}) problem.add(check_sum(count, type));
          return problem.first();
        },
        exactly);
  }
  stage.check("all_gather_v of uneven pieces", check_gather, exactly);
  stage.check("gradient of all_gather_v", check_gradient, exactly);
  stage.check("reduce_scatter_v of uneven pieces", check_reduce_scatter, exactly);
  stage.check("all_to_all_v of uneven pieces", check_exchange, exactly);
}

void check_transforms(Stage& stage) {
  const at::Tensor field = random({2, 48, 45}, 5);
  const at::Tensor spectrum = own_piece(at::fft_rfft2(field, std::nullopt, {-2, -1}, "ortho"), 1);
  const auto near = [] { return jobs::format("within %.0e of LibTorch's own", kNear); };
  FftOptions options;
  options.group = DistributedManager::get().world();
  stage.check(
      "distributed_rfft2 of 48 x 45",
      [&] { return unlike(distributed_rfft2(own_piece(field, 2), options), spectrum, kNear); },
      near);
  // From LibTorch's spectrum: a rank whose own one is wrong or missing does not stay away.
  options.s = {48, 45};
  stage.check(
      "distributed_irfft2",
      [&] { return unlike(distributed_irfft2(spectrum, options), own_piece(field, 2), kNear); },
      [] { return std::string("gives the field back"); });
}

void check_shards(Stage& stage) {
  const DeviceMesh mesh = DistributedManager::get().global_mesh();
  for (const Operator& op : operators()) {
    stage.check(
        op.name, [&] { return check_operator(op, mesh); },
        [] {
          return jobs::format("value and gradients within %.0e of the whole tensors'", kNear);
        });
  }
}

}  // namespace meshrun::verify
