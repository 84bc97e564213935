#include "parallel/nn/graph/node_directory.h"

#include <algorithm>
#include <utility>

namespace meshrun::detail {

Routes routes_to(std::span<const int64_t> ranks, int world) {
  Routes routes;
  routes.counts.assign(static_cast<size_t>(world), 0);
  for (const int64_t rank : ranks) ++routes.counts[static_cast<size_t>(rank)];
  std::vector<int64_t> next(static_cast<size_t>(world), 0);
  for (size_t r = 1; r < next.size(); ++r) next[r] = next[r - 1] + routes.counts[r - 1];
  routes.order.resize(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    routes.order[static_cast<size_t>(next[static_cast<size_t>(ranks[i])]++)] =
        static_cast<int64_t>(i);
  }
  return routes;
}

NodeDirectory::NodeDirectory(std::vector<int64_t> blocks, std::vector<int64_t> owners,
                             ListExchange& exchange)
    : blocks_(std::move(blocks)), owners_(std::move(owners)) {
  const auto world = static_cast<size_t>(exchange.world());
  begin_ = blocks_[static_cast<size_t>(exchange.rank())];

  const Routes routes = routes_to(owners_, exchange.world());
  RankLists lists{{}, routes.counts};
  for (const int64_t i : routes.order) lists.values.push_back(begin_ + i);
  // Blocks arrive in rank order, so ids ascend.
  RankLists received = exchange.all_to_all(lists);
  own_nodes_ = std::move(received.values);

  // Each block learns where its nodes are among the owner's, and how many the owner has.
  RankLists answer;
  answer.sizes.assign(world, 2);
  int64_t before = 0;
  for (size_t r = 0; r < world; ++r) {
    answer.values.insert(answer.values.end(), {before, static_cast<int64_t>(own_nodes_.size())});
    before += received.sizes[r];
  }
  const std::vector<int64_t> told = exchange.all_to_all(answer).values;
  std::vector<int64_t> next(world);
  for (size_t r = 0; r < world; ++r) {
    next[r] = told[2 * r];
    num_nodes_of_ranks_.push_back(told[2 * r + 1]);
  }
  for (const int64_t owner : owners_) places_.push_back(next[static_cast<size_t>(owner)]++);
}

int64_t NodeDirectory::block_of(int64_t node) const {
  return std::upper_bound(blocks_.begin(), blocks_.end(), node) - blocks_.begin() - 1;
}

std::vector<int64_t> NodeDirectory::ask(std::span<const int64_t> nodes,
                                        ListExchange& exchange) const {
  RankLists questions{{nodes.begin(), nodes.end()}, {}};
  for (size_t r = 0; r + 1 < blocks_.size(); ++r) {
    questions.sizes.push_back(std::lower_bound(nodes.begin(), nodes.end(), blocks_[r + 1]) -
                              std::lower_bound(nodes.begin(), nodes.end(), blocks_[r]));
  }
  const RankLists asked = exchange.all_to_all(questions);
  RankLists answers;
  for (const int64_t size : asked.sizes) answers.sizes.push_back(2 * size);
  for (const int64_t node : asked.values) {
    answers.values.insert(answers.values.end(), {owner(node), place(node)});
  }
  return exchange.all_to_all(answers).values;
}

}  // namespace meshrun::detail
