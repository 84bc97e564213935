#include "parallel/nn/graph/graph_agreement.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/extents.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;

// What each rank tells all others.
struct Facts {
  int64_t is_bipartite = 0;
  int64_t num_src = -1;  // as given
  int64_t num_dst = -1;
  int64_t above_src = 0;  // the largest id + 1
  int64_t above_dst = 0;
  int64_t src_kind = 0;
  int64_t dst_kind = 0;
  int64_t src_digest = 0;  // of the sizes
  int64_t dst_digest = 0;
  int64_t src_owners = 0;
  int64_t dst_owners = 0;
  int64_t num_edges = 0;
};
constexpr size_t kNumFacts = sizeof(Facts) / sizeof(int64_t);

// The same numbers to every rank; the result is by rank.
Numbers all_gather(const Numbers& own, ListExchange& exchange) {
  RankLists lists;
  for (int r = 0; r < exchange.world(); ++r) {
    lists.values.insert(lists.values.end(), own.begin(), own.end());
  }
  lists.sizes.assign(static_cast<size_t>(exchange.world()), static_cast<int64_t>(own.size()));
  return exchange.all_to_all(lists).values;
}

int64_t above(std::span<const int64_t> ids) {
  return ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end()) + 1;
}

int64_t digest_of(const Numbers& numbers) {
  const std::string_view bytes(reinterpret_cast<const char*>(numbers.data()),
                               numbers.size() * sizeof(int64_t));
  return static_cast<int64_t>(Fingerprint(bytes));
}

std::string check_ids(const char* name, std::span<const int64_t> ids) {
  const auto negative = std::find_if(ids.begin(), ids.end(), [](int64_t id) { return id < 0; });
  if (negative == ids.end()) return {};
  return fmt::format("{}[{}] is {}; node ids are 0 or greater", name, negative - ids.begin(),
                     *negative);
}

std::string check_split(const char* name, const NodeSplit& split, int world) {
  if (split.kind == NodeSplit::Kind::kConsecutive && !split.sizes.empty()) {
    if (split.sizes.size() != static_cast<size_t>(world)) {
      return fmt::format("{} sizes are [{}]; one for each of the {} ranks is expected", name,
                         fmt::join(split.sizes, ", "), world);
    }
    if (*std::min_element(split.sizes.begin(), split.sizes.end()) < 0) {
      return fmt::format("{} sizes are [{}]; 0 or more is expected", name,
                         fmt::join(split.sizes, ", "));
    }
  }
  if (split.kind == NodeSplit::Kind::kMapped) {
    for (size_t i = 0; i < split.owners.size(); ++i) {
      const int64_t owner = split.owners[i];
      if (owner >= 0 && owner < world) continue;
      return fmt::format(
          "the owner of {} node {} of this rank's block is {}; a rank of {} is "
          "expected",
          name, i, owner, world);
    }
  }
  return {};
}

std::string check(const GraphInput& input, int world) {
  if (!input.problem.empty()) return input.problem;
  if (input.src.size() != input.dst.size()) {
    return fmt::format("src has {} edges and dst has {}", input.src.size(), input.dst.size());
  }
  for (const auto& given : {input.num_src_nodes, input.num_dst_nodes}) {
    if (given && *given < 0) return fmt::format("a number of nodes is {}", *given);
  }
  std::string problem = check_ids("src", input.src);
  if (problem.empty()) problem = check_ids("dst", input.dst);
  if (problem.empty()) problem = check_split("source", input.src_split, world);
  if (problem.empty() && input.is_bipartite) {
    problem = check_split("destination", input.dst_split, world);
    const bool metis = input.src_split.kind == NodeSplit::Kind::kMetis;
    if (problem.empty() && metis != (input.dst_split.kind == NodeSplit::Kind::kMetis)) {
      problem = "METIS splits source and destination nodes together or not at all";
    }
  }
  return problem;
}

Facts facts_of(const GraphInput& input) {
  Facts facts;
  facts.is_bipartite = input.is_bipartite ? 1 : 0;
  facts.num_src = input.num_src_nodes.value_or(-1);
  facts.above_src = above(input.src);
  facts.above_dst = above(input.dst);
  const auto tell = [](const NodeSplit& split, int64_t& kind, int64_t& digest, int64_t& owners) {
    kind = static_cast<int64_t>(split.kind);
    if (split.kind == NodeSplit::Kind::kConsecutive) digest = digest_of(split.sizes);
    if (split.kind == NodeSplit::Kind::kMapped) owners = static_cast<int64_t>(split.owners.size());
  };
  tell(input.src_split, facts.src_kind, facts.src_digest, facts.src_owners);
  if (input.is_bipartite) {
    facts.num_dst = input.num_dst_nodes.value_or(-1);
    tell(input.dst_split, facts.dst_kind, facts.dst_digest, facts.dst_owners);
  } else {
    // One set of nodes: an edge's two ends count alike.
    facts.above_src = facts.above_dst = std::max(facts.above_src, facts.above_dst);
  }
  facts.num_edges = static_cast<int64_t>(input.src.size());
  return facts;
}

// The facts of all ranks. All ranks compare them in the same order, so they raise the same error.
class Comparison {
 public:
  explicit Comparison(std::vector<Facts> facts) : facts_(std::move(facts)) {}

  void expect_equal(const char* what, int64_t Facts::*member) const {
    for (size_t r = 1; r < facts_.size(); ++r) {
      if (facts_[r].*member == facts_[0].*member) continue;
      throw std::invalid_argument(fmt::format("rank {} gives another {} than rank 0", r, what));
    }
  }

  // What is given, agreed; else the largest id + 1.
  int64_t count(const char* name, int64_t Facts::*given, int64_t Facts::*above) const {
    int64_t count = -1;
    size_t who = 0;
    for (size_t r = 0; r < facts_.size(); ++r) {
      const int64_t its = facts_[r].*given;
      if (its < 0) continue;
      if (count >= 0 && its != count) {
        throw std::invalid_argument(fmt::format(
            "rank {} says that there are {} {} nodes, rank {} {}", who, count, name, r, its));
      }
      count = its;
      who = r;
    }
    for (size_t r = 0; r < facts_.size(); ++r) {
      const int64_t its = facts_[r].*above;
      if (count >= 0 && its > count) {
        throw std::invalid_argument(fmt::format(
            "rank {} has an edge at {} node {}, but there are {}", r, name, its - 1, count));
      }
    }
    if (count >= 0) return count;
    for (const Facts& its : facts_) count = std::max(count, its.*above);
    return count;
  }

  // Prefix sums over ranks.
  Numbers begins(int64_t Facts::*member) const {
    Numbers begins = {0};
    for (const Facts& its : facts_) begins.push_back(begins.back() + its.*member);
    return begins;
  }

 private:
  const std::vector<Facts> facts_;
};

void check_cover(const char* name, const NodeSplit& split, const Numbers& blocks, int64_t count) {
  if (split.kind == NodeSplit::Kind::kMapped && blocks.back() != count) {
    throw std::invalid_argument(
        fmt::format("the ranks give the owners of {} {} nodes, but there "
                    "are {}",
                    blocks.back(), name, count));
  }
  if (split.kind == NodeSplit::Kind::kConsecutive && !split.sizes.empty()) {
    const int64_t sum = total_extent(split.sizes);
    if (sum == count) return;
    throw std::invalid_argument(fmt::format("{} sizes [{}] sum to {}, but there are {} nodes", name,
                                            fmt::join(split.sizes, ", "), sum, count));
  }
}

}  // namespace

std::string problem_of_any_rank(const std::string& problem, ListExchange& exchange) {
  const auto world = static_cast<size_t>(exchange.world());
  const Numbers lengths = all_gather({static_cast<int64_t>(problem.size())}, exchange);
  const auto found = std::find_if(lengths.begin(), lengths.end(), [](int64_t n) { return n > 0; });
  if (found == lengths.end()) return {};
  // Its rank sends the text to everyone, eight characters a number.
  const auto who = static_cast<int>(found - lengths.begin());
  const auto length = static_cast<size_t>(*found);
  RankLists lists;
  lists.sizes.assign(world, 0);
  if (who == exchange.rank()) {
    Numbers words((length + 7) / 8, 0);
    std::memcpy(words.data(), problem.data(), length);
    for (size_t r = 0; r < world; ++r) {
      lists.sizes[r] = static_cast<int64_t>(words.size());
      lists.values.insert(lists.values.end(), words.begin(), words.end());
    }
  }
  const RankLists received = exchange.all_to_all(lists);
  std::string text(length, '\0');
  std::memcpy(text.data(), received.values.data(), length);
  return fmt::format("rank {}: {}", who, text);
}

namespace detail {

GraphAgreement agree_on_graph(const GraphInput& input, ListExchange& exchange) {
  const int world = exchange.world();
  const std::string problem = problem_of_any_rank(check(input, world), exchange);
  if (!problem.empty()) throw std::invalid_argument(problem);

  const Facts own = facts_of(input);
  Numbers numbers(kNumFacts);
  std::memcpy(numbers.data(), &own, sizeof(own));
  const Numbers gathered = all_gather(numbers, exchange);
  std::vector<Facts> facts(static_cast<size_t>(world));
  std::memcpy(static_cast<void*>(facts.data()), gathered.data(), sizeof(Facts) * facts.size());

  const Comparison ranks(std::move(facts));
  ranks.expect_equal("answer to whether the graph is bipartite", &Facts::is_bipartite);
  ranks.expect_equal("kind of split of the source nodes", &Facts::src_kind);
  ranks.expect_equal("kind of split of the destination nodes", &Facts::dst_kind);
  ranks.expect_equal("table of source sizes", &Facts::src_digest);
  ranks.expect_equal("table of destination sizes", &Facts::dst_digest);

  GraphAgreement agreement;
  agreement.num_src_nodes = ranks.count("source", &Facts::num_src, &Facts::above_src);
  agreement.num_dst_nodes = input.is_bipartite
                                ? ranks.count("destination", &Facts::num_dst, &Facts::above_dst)
                                : agreement.num_src_nodes;
  agreement.src_blocks = ranks.begins(&Facts::src_owners);
  agreement.dst_blocks = ranks.begins(&Facts::dst_owners);
  check_cover("source", input.src_split, agreement.src_blocks, agreement.num_src_nodes);
  if (input.is_bipartite) {
    check_cover("destination", input.dst_split, agreement.dst_blocks, agreement.num_dst_nodes);
  }
  const Numbers edges = ranks.begins(&Facts::num_edges);
  agreement.num_edges = edges.back();
  agreement.first_edge = edges[static_cast<size_t>(exchange.rank())];
  return agreement;
}

}  // namespace detail
}  // namespace meshrun
