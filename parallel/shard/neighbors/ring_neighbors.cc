#include "parallel/shard/neighbors/ring_neighbors.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/cdist.h"
#include "ATen/ops/full.h"
#include "ATen/ops/sort.h"
#include "ATen/ops/topk.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/digest.h"
#include "parallel/base/extents.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/shard/ring/parcel_exchange.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNoPoint = std::numeric_limits<int64_t>::max();  // sorts behind all others
constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr int64_t kDistancesAtOnce = int64_t{1} << 22;

// What all ranks must say alike.
struct AgreedSearch {
  int64_t k;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  int64_t dimensions;
  double radius;
  bool with_points;

  std::string words() const {
    return fmt::format(" {} neighbors in blocks {} of {}, {} dimensions, radius {}{}", k,
                       to_words(sizes), c10::toString(dtype), dimensions, radius,
                       with_points ? ", with gradients of the points" : "");
  }
  uint64_t digest() const {
    Digest digest;
    digest.add(k).add(sizes).add(static_cast<int64_t>(dtype)).add(dimensions);
    digest.add(std::bit_cast<int64_t>(radius)).add(with_points);
    return digest.value() | 1;  // 0: nothing to compare
  }
};

// A search without its tensors.
struct Search : torch::CustomClassHolder {
  GroupArgument::Handle group;  // null: this rank has all points
  std::vector<int64_t> sizes;   // of the blocks
  int rank = 0;
  int64_t k = 1;
  std::optional<double> radius;
  bool requires_grad = false;
  // Equal on all ranks. The words are made where ranks disagree.
  std::function<std::string()> words;
  uint64_t digest = 0;

  int world() const { return static_cast<int>(sizes.size()); }
  int block_at(int step) const { return ((rank - step) % world() + world()) % world(); }
  int64_t size_of(int block) const { return sizes[static_cast<size_t>(block)]; }
  int64_t begin_of(int block) const {
    return std::accumulate(sizes.begin(), sizes.begin() + block, int64_t{0});
  }
  CollectiveSpec call() const {
    CollectiveSpec spec{.agreed = digest, .requires_grad = requires_grad};
    spec.say(words);
    return spec;
  }
};

Tensor widened(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// Tensors of this rank's block that travel upwards, one step per exchange.
class Ring {
 public:
  explicit Ring(const Search& search) : search_(search) {}

  // `leaving` may be undefined; so is what arrive() gives then. `rows`: of what comes.
  struct Travel {
    Tensor leaving;
    bool comes = false;
    int64_t rows = 0;
    Tensor like;
  };
  ParcelExchange start(const std::vector<Travel>& travels) const {
    const int above = (search_.rank + 1) % search_.world();
    const int below = (search_.rank + search_.world() - 1) % search_.world();
    std::vector<Parcel> sent;
    std::vector<ExpectedParcel> expected;
    for (const Travel& travel : travels) {
      if (travel.leaving.defined()) sent.push_back({above, travel.leaving.contiguous()});
      if (!travel.comes) continue;
      expected.push_back({below, travel.rows * travel.like.size(1) *
                                     static_cast<int64_t>(travel.like.element_size())});
    }
    return {search_.group, travels.front().like.device(), sent, expected, search_.call()};
  }
  static Tensor arrived(const ParcelExchange& exchange, size_t index, const Travel& travel) {
    return exchange.received(index, travel.like.scalar_type(), {travel.rows, travel.like.size(1)});
  }

 private:
  const Search& search_;
};

// The nearest so far: (Q, k), sorted by distance, then index.
struct Nearest {
  Tensor distances;
  Tensor indices;

  void merge(const Tensor& queries, const Tensor& points, int64_t begin, const Search& search);
};

void Nearest::merge(const Tensor& queries, const Tensor& points, int64_t begin,
                    const Search& search) {
  if (points.size(0) == 0) return;
  const int64_t rows = std::max<int64_t>(1, kDistancesAtOnce / points.size(0));
  for (int64_t first = 0; first < queries.size(0); first += rows) {
    const int64_t count = std::min(rows, queries.size(0) - first);
    // Without the product form, which cancels.
    const Tensor all = at::cdist(queries.narrow(0, first, count), points, 2, 2);
    auto [found, places] = at::topk(all, std::min(search.k, points.size(0)), 1, /*largest=*/false);
    places = places + begin;
    if (search.radius) {
      const Tensor beyond = found > *search.radius;
      found = found.masked_fill(beyond, kFar);
      places = places.masked_fill(beyond, kNoPoint);
    }
    const Tensor best = distances.narrow(0, first, count);
    const Tensor chosen = indices.narrow(0, first, count);
    const Tensor candidates = at::cat({best, found}, 1);
    const auto [by_index, order] = at::sort(at::cat({chosen, places}, 1), 1);
    const auto [sorted, nearest] = at::sort(candidates.gather(1, order), true, 1, false);
    best.copy_(sorted.narrow(1, 0, search.k));
    chosen.copy_(by_index.gather(1, nearest).narrow(1, 0, search.k));
  }
}

Nearest find(const Search& search, const Tensor& points, const Tensor& queries) {
  const Tensor wide = widened(queries);
  Nearest nearest{at::full({queries.size(0), search.k}, kFar, wide.options()),
                  at::full({queries.size(0), search.k}, kNoPoint, wide.options().dtype(at::kLong))};
  const Ring ring(search);
  Tensor held = points;
  for (int step = 0; step < search.world(); ++step) {
    const bool goes_on = step + 1 < search.world();
    const Ring::Travel travel{held, goes_on, search.size_of(search.block_at(step + 1)), points};
    ParcelExchange exchange;
    if (goes_on) exchange = ring.start({travel});
    nearest.merge(wide, widened(held), search.begin_of(search.block_at(step)), search);
    if (!goes_on) break;
    exchange.wait();
    held = Ring::arrived(exchange, 0, travel);
  }
  return nearest;
}

// Adds the gradients of the distances to the points of one block.
void add_gradients(const Tensor& points, int64_t begin, const Tensor& queries,
                   const Tensor& indices, const Tensor& slopes, const Tensor& grad_queries,
                   const Tensor& grad_points) {
  const Tensor here = indices.ge(begin).logical_and_(indices.lt(begin + points.size(0)));
  const std::vector<Tensor> places = at::where(here);
  const Tensor point = indices.index({places[0], places[1]}) - begin;
  const Tensor slope = slopes.index({places[0], places[1]}).unsqueeze(1);
  const Tensor change =
      (queries.index_select(0, places[0]) - points.index_select(0, point)) * slope;
  grad_queries.index_add_(0, places[0], change);
  grad_points.index_add_(0, point, change, -1);
}

struct PointGradients {
  Tensor queries;
  Tensor points;
};

// `slopes`: the distances' gradients over the distances.
PointGradients find_gradients(const Search& search, const Tensor& points, const Tensor& queries,
                              const Tensor& indices, const Tensor& slopes, bool with_points) {
  const Tensor wide = widened(queries);
  PointGradients sums{at::zeros_like(wide), {}};
  const Ring ring(search);
  const int world = search.world();
  // Gradients follow one step behind their block, and need one more to be home.
  const int num_exchanges = world == 1 ? 0 : with_points ? world + 1 : world - 1;
  Tensor held = points;
  Tensor parts;
  for (int step = 0; step < std::max(world, num_exchanges); ++step) {
    const bool points_go_on = step + 1 < world;
    const bool gradients_go_on = with_points && step > 0;
    const std::vector<Ring::Travel> travels = {{gradients_go_on ? parts : Tensor(), gradients_go_on,
                                                search.size_of(search.block_at(step)), wide},
                                               {points_go_on ? held : Tensor(), points_go_on,
                                                search.size_of(search.block_at(step + 1)), points}};
    ParcelExchange exchange;
    const bool exchanges = step < num_exchanges;
    if (exchanges) exchange = ring.start(travels);
    Tensor own;
    if (step < world) {
      const int block = search.block_at(step);
      own = at::zeros({search.size_of(block), points.size(1)}, wide.options());
      add_gradients(widened(held), search.begin_of(block), wide, indices, slopes, sums.queries,
                    own);
    }
    if (!exchanges) {
      parts = own;
      continue;
    }
    exchange.wait();
    size_t next = 0;
    if (gradients_go_on) {
      const Tensor received = Ring::arrived(exchange, next++, travels[0]);
      parts = own.defined() ? received.add_(own) : received;
    } else {
      parts = own;
    }
    if (points_go_on) held = Ring::arrived(exchange, next, travels[1]);
  }
  sums.points = parts;
  return sums;
}

struct NeighborSearch : torch::autograd::Function<NeighborSearch> {
  static variable_list forward(AutogradContext* ctx, const Tensor& points, const Tensor& queries,
                               const c10::intrusive_ptr<Search>& search) {
    const Nearest nearest = find(*search, points, queries);
    const Tensor none = nearest.indices == kNoPoint;
    const Tensor indices = nearest.indices.masked_fill(none, -1);
    const Tensor distances = nearest.distances.to(queries.scalar_type());
    ctx->mark_non_differentiable({indices});
    ctx->save_for_backward({points, queries, indices, nearest.distances});
    ctx->saved_data["search"] = at::IValue::make_capsule(search);
    return {indices, distances};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& cotangents) {
    // It would be of the points as of the cotangent.
    if (c10::GradMode::is_enabled()) {
      C10_THROW_ERROR(
          NotImplementedError,
          "the gradient of a neighbor search has no derivative: do without create_graph");
    }
    const variable_list saved = ctx->get_saved_variables();
    const auto search =
        c10::static_intrusive_pointer_cast<Search>(ctx->saved_data.at("search").toCapsule());
    const Tensor& distances = saved[3];
    const Tensor slopes =
        (cotangents[1].to(distances.scalar_type()) / distances).masked_fill(distances == 0, 0.0);
    const PointGradients sums =
        find_gradients(*search, saved[0], saved[1], saved[2], slopes, ctx->needs_input_grad(0));
    return {ctx->needs_input_grad(0) ? sums.points.to(saved[0].scalar_type()) : Tensor(),
            sums.queries.to(saved[1].scalar_type()), Tensor()};
  }
};

std::string problem_of(const Tensor& points, const Tensor& queries, int64_t k,
                       std::optional<double> radius) {
  if (!points.defined() || !queries.defined() || points.dim() != 2 || queries.dim() != 2 ||
      points.size(1) != queries.size(1)) {
    return "a neighbor search takes points (N, D) and queries (Q, D)";
  }
  if (!at::isFloatingType(points.scalar_type()) || points.scalar_type() != queries.scalar_type() ||
      points.device() != queries.device()) {
    return "a neighbor search takes floating points and queries of one dtype and device";
  }
  if (k < 1) return fmt::format("k is {}; it must be 1 or more", k);
  if (radius && !(*radius >= 0)) return fmt::format("the radius is {}", *radius);
  return "";
}

Neighbors search_for(const c10::intrusive_ptr<Search>& search, const Tensor& points,
                     const Tensor& queries) {
  const variable_list found = NeighborSearch::apply(points, queries, search);
  return {found[0], found[1]};
}

std::string count_problem(const std::vector<int64_t>& sizes, int64_t k,
                          std::optional<double> radius) {
  const int64_t all = total_extent(sizes);
  if (radius || k <= all) return "";
  return fmt::format("k is {}, and there are {} points", k, all);
}

}  // namespace

Neighbors ring_neighbors(const Tensor& points, const Tensor& queries,
                         const std::vector<int64_t>& point_sizes, IntArgument k,
                         std::optional<double> radius, const GroupArgument& group) {
  const auto search = c10::make_intrusive<Search>();
  search->group = group.get();
  search->rank = search->group->getRank();
  std::string problem = check_extents("point_sizes", point_sizes, -1, search->group->getSize());
  if (problem.empty()) problem = problem_of(points, queries, k, radius);
  if (problem.empty()) {
    problem = check_piece("point_sizes", point_sizes, search->rank, points.size(0), 0);
  }
  if (problem.empty()) problem = count_problem(point_sizes, k, radius);
  if (!problem.empty()) {
    detail::raise_on_all_ranks(search->group, device_of(points, *search->group), problem);
  }
  search->sizes = point_sizes;
  search->k = k;
  search->radius = radius;
  const bool with_points = c10::GradMode::is_enabled() && points.requires_grad();
  search->requires_grad = with_points || (c10::GradMode::is_enabled() && queries.requires_grad());
  const auto agreed = std::make_shared<const AgreedSearch>(
      AgreedSearch{search->k, point_sizes, points.scalar_type(), points.size(1),
                   radius.value_or(kFar), with_points});
  search->words = [agreed] { return agreed->words(); };
  search->digest = agreed->digest();
  return search_for(search, points, queries);
}

Neighbors local_neighbors(const Tensor& points, const Tensor& queries, IntArgument k,
                          std::optional<double> radius) {
  std::string problem = problem_of(points, queries, k, radius);
  if (problem.empty()) problem = count_problem({points.size(0)}, k, radius);
  if (!problem.empty()) throw CollectiveArgumentError(problem);
  const auto search = c10::make_intrusive<Search>();
  search->sizes = {points.size(0)};
  search->k = k;
  search->radius = radius;
  return search_for(search, points, queries);
}

}  // namespace meshrun
