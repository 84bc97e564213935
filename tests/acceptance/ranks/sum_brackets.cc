#include "tests/acceptance/ranks/sum_brackets.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "c10/util/Exception.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using Tensors = std::vector<at::Tensor>;

// In every type and world of this test: travels with the headers; goes through the hosts' first
// ranks, or in rank order from everyone to everyone; goes in chunks. A reduce_scatter has no second
// way. Odd, so that shares and chunks are uneven.
constexpr int64_t kCounts[] = {253, 1501, 100001};
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

// Equal on all ranks.
at::Tensor random_contribution(size_t rank, int64_t count) {
  const uint64_t seed = 1000 * rank + static_cast<uint64_t>(count);
  return at::randn({count}, at::detail::createCPUGenerator(seed), at::kFloat);
}

at::Tensor added(const Tensors& terms) {
  at::Tensor sum = terms.at(0);
  for (size_t k = 1; k < terms.size(); ++k) sum = sum + terms[k];
  return sum;
}

at::Tensor added_by_hosts(const Tensors& terms, std::string_view hosts) {
  Tensors partials;
  for (size_t first = 0; first < hosts.size(); ++first) {
    if (hosts.find(hosts[first]) != first) continue;
    Tensors of_host;
    for (size_t rank = first; rank < hosts.size(); ++rank) {
      if (hosts[rank] == hosts[first]) of_host.push_back(terms[rank]);
    }
    partials.push_back(added(of_host));
  }
  return added(partials);
}

// Calls that are under way together.
class Calls {
 public:
  explicit Calls(DistributedManager& manager)
      : group_(manager.group()), rank_(manager.rank()), size_(manager.world_size()) {}

  // One all_reduce and two reduce_scatters. `expected`: the whole result.
  void start(const at::Tensor& mine, const at::Tensor& expected, c10d::ReduceOp op) {
    const int64_t count = mine.numel();
    const std::string what = std::string(op == c10d::ReduceOp::AVG ? "mean" : "sum") + " of " +
                             std::to_string(count) + " " + c10::toString(mine.scalar_type());
    c10d::AllreduceOptions all_reduce;
    all_reduce.reduceOp = op;
    Tensors whole = {mine.clone()};
    add("all_reduce: " + what, whole[0], expected, group_->allreduce(whole, all_reduce));

    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = op;
    const int64_t equal = count / size_;
    at::Tensor all = mine.narrow(0, 0, equal * size_), part = at::empty({equal}, mine.options());
    add("reduce_scatter of equal pieces: " + what, part, expected.narrow(0, rank_ * equal, equal),
        libtorch::reduce_scatter_single(*group_, part, all, scatter));

    // Rank r has r + 1 parts of the whole.
    const auto begin = [&](int64_t rank) {
      return count * rank * (rank + 1) / (int64_t{size_} * (size_ + 1));
    };
    const auto piece = [&](const at::Tensor& of, int rank) {
      return of.narrow(0, begin(rank), begin(rank + 1) - begin(rank));
    };
    std::vector<Tensors> pieces(1);
    for (int rank = 0; rank < size_; ++rank) pieces[0].push_back(piece(mine, rank));
    Tensors uneven = {at::empty_like(pieces[0][rank_])};
    add("reduce_scatter of uneven pieces: " + what, uneven[0], piece(expected, rank_),
        group_->reduce_scatter(uneven, pieces, scatter));
  }

  void finish(BracketReport& report) {
    for (Call& call : calls_) {
      call.work->wait();
      ++report.calls;
      if (at::equal(call.result, call.expected)) continue;
      report.wrong = call.name + ": " +
                     std::to_string(call.result.ne(call.expected).sum().item<int64_t>()) + " of " +
                     std::to_string(call.result.numel()) + " elements are not the oracle's";
    }
    calls_.clear();
  }

 private:
  struct Call {
    std::string name;
    at::Tensor result, expected;
    c10::intrusive_ptr<c10d::Work> work;
  };

  void add(std::string name, at::Tensor result, at::Tensor expected,
           c10::intrusive_ptr<c10d::Work> work) {
    calls_.push_back({std::move(name), std::move(result), std::move(expected), std::move(work)});
  }

  const ProcessGroupPtr group_;
  const int rank_, size_;
  std::vector<Call> calls_;
};

}  // namespace

BracketReport check_brackets(DistributedManager& manager, std::string_view hosts) {
  const auto size = static_cast<size_t>(manager.world_size());
  TORCH_CHECK(hosts.size() == size, "the hosts of ", hosts.size(), " ranks were given, not of ",
              size);
  const char* const order = std::getenv("MESHRUN_REDUCTION_ORDER");
  const bool in_rank_order = order != nullptr && std::string_view(order) == "rank";
  BracketReport report;
  Calls calls(manager);
  for (const int64_t count : kCounts) {
    Tensors contributions;
    for (size_t rank = 0; rank < size; ++rank) {
      contributions.push_back(random_contribution(rank, count));
    }
    for (const at::ScalarType type : kTypes) {
      Tensors terms;
      for (const at::Tensor& each : contributions) terms.push_back(each.to(type).to(at::kFloat));
      const at::Tensor by_ranks = added(terms), by_hosts = added_by_hosts(terms, hosts);
      if (type == at::kFloat) report.told_apart += by_ranks.ne(by_hosts).sum().item<int64_t>();
      const at::Tensor& sum = in_rank_order ? by_ranks : by_hosts;
      const at::Tensor mine = terms[static_cast<size_t>(manager.rank())].to(type);
      calls.start(mine, sum.to(type), c10d::ReduceOp::SUM);
      calls.start(mine, (sum / static_cast<double>(size)).to(type), c10d::ReduceOp::AVG);
      calls.finish(report);
    }
  }
  return report;
}

}  // namespace meshrun
