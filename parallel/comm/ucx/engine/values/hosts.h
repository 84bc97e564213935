// Which ranks of a group share a host, as the launcher told every rank alike. Plain values: equal
// on all ranks, since algorithms depend on them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

namespace meshrun::ucx {

class Hosts {
 public:
  Hosts() = default;
  // The host of each rank, by any number; empty: all ranks are on one. Hosts are numbered anew, in
  // the order of their first ranks.
  explicit Hosts(std::span<const int> host_of_rank) {
    std::map<int, int> numbers;
    for (const int given : host_of_rank) {
      const int host = numbers.emplace(given, static_cast<int>(ranks_.size())).first->second;
      if (static_cast<size_t>(host) == ranks_.size()) ranks_.emplace_back();
      place_of_.push_back(static_cast<int>(ranks_[static_cast<size_t>(host)].size()));
      ranks_[static_cast<size_t>(host)].push_back(static_cast<int>(host_of_.size()));
      host_of_.push_back(host);
    }
    for (const auto& ranks : ranks_) most_ranks_ = std::max(most_ranks_, ranks.size());
  }

  bool is_one() const { return ranks_.size() <= 1; }
  // Several hosts, and several ranks on one of them: it is worth to gather what crosses.
  bool has_two_levels() const { return !is_one() && most_ranks_ > 1; }
  int count() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  // Which of its host's ranks it is, from 0.
  int place_of(int rank) const { return place_of_[static_cast<size_t>(rank)]; }
  // In rank order.
  std::span<const int> ranks(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int most_ranks() const { return static_cast<int>(most_ranks_); }
  // By rank; empty: all ranks are on one host.
  std::span<const int> host_of() const { return host_of_; }

 private:
  std::vector<int> host_of_, place_of_;
  std::vector<std::vector<int>> ranks_;
  size_t most_ranks_ = 0;
};

}  // namespace meshrun::ucx
