#include "jobs/verify/exchange.h"

#include <algorithm>

#include "parallel/manager/distributed_manager.h"

namespace meshrun::verify {

Exchange::Exchange()
    : rank_(DistributedManager::get().rank()),
      size_(DistributedManager::get().world_size()),
      store_(DistributedManager::get().store()) {}

std::string Exchange::key(int64_t call, int rank) {
  return "verify/" + std::to_string(call) + "/" + std::to_string(rank);
}

std::vector<std::string> Exchange::gather(const std::string& text) {
  ++calls_;
  if (rank_ != 0) {
    store_->set(key(calls_, rank_), std::vector<uint8_t>(text.begin(), text.end()));
    return {};
  }
  std::vector<std::string> texts = {text};
  waits_in_ = calls_;
  for (int rank = 1; rank < size_; ++rank) texts.push_back(store_->get_to_str(key(calls_, rank)));
  waits_in_ = 0;
  return texts;
}

std::string Exchange::tell(const std::string& text) {
  ++calls_;
  if (size_ == 1) return text;
  if (rank_ != 0) return store_->get_to_str(key(calls_, 0));
  store_->set(key(calls_, 0), std::vector<uint8_t>(text.begin(), text.end()));
  return text;
}

bool Exchange::any(bool own) {
  const std::vector<std::string> said = gather(own ? "yes" : "");
  const bool is_said =
      std::any_of(said.begin(), said.end(), [](const std::string& text) { return !text.empty(); });
  return !tell(is_said ? "yes" : "").empty();
}

std::vector<int> Exchange::awaited() const {
  std::vector<int> ranks;
  const int64_t call = waits_in_;
  for (int rank = 1; call != 0 && rank < size_; ++rank) {
    if (!store_->check({key(call, rank)})) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace meshrun::verify
