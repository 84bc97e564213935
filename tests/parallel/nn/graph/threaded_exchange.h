// All ranks of a plan in one process, one thread each.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "parallel/nn/graph/list_exchange.h"

namespace meshrun {

class Mailbox {
 public:
  explicit Mailbox(int world) : lists_(static_cast<size_t>(world)) {}

  RankLists all_to_all(int rank, const RankLists& lists) {
    lists_[static_cast<size_t>(rank)] = &lists;
    meet();
    RankLists received;
    for (const RankLists* from : lists_) {
      int64_t begin = 0;
      for (int r = 0; r < rank; ++r) begin += from->sizes.at(static_cast<size_t>(r));
      const int64_t size = from->sizes.at(static_cast<size_t>(rank));
      received.sizes.push_back(size);
      received.values.insert(received.values.end(), from->values.begin() + begin,
                             from->values.begin() + begin + size);
    }
    meet();
    return received;
  }

 private:
  void meet() {
    std::unique_lock lock(mu_);
    const int64_t round = round_;
    if (++here_ == lists_.size()) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
    } else if (!all_here_.wait_for(lock, std::chrono::seconds(20),
                                   [&] { return round_ != round; })) {
      throw std::runtime_error("a rank did not come");
    }
  }

  std::mutex mu_;
  std::condition_variable all_here_;
  size_t here_ = 0;
  int64_t round_ = 0;
  std::vector<const RankLists*> lists_;
};

class ThreadedExchange : public ListExchange {
 public:
  ThreadedExchange(Mailbox& mailbox, int rank, int world)
      : mailbox_(mailbox), rank_(rank), world_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  RankLists all_to_all(const RankLists& lists) override {
    return mailbox_.all_to_all(rank_, lists);
  }

 private:
  Mailbox& mailbox_;
  const int rank_;
  const int world_;
};

// What each rank's call throws, "" for nothing.
inline std::vector<std::string> run_threads(int world,
                                            const std::function<void(ListExchange&)>& call) {
  Mailbox mailbox(world);
  std::vector<std::string> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadedExchange exchange(mailbox, rank, world);
      try {
        call(exchange);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace meshrun
