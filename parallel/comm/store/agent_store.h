// c10d's store over the rank's worker daemon: what c10d::Reducer, Gloo and NCCL meet through inside
// meshrun.
//
// Keys belong to the rank's (job, generation). NCCL's unique ids, which ProcessGroupNCCL sends as
// ordinary keys, go through the coordinator's one-shot exchange: a rank of an old generation cannot
// hand its id to a new one.
//
// Threads: as agent::Agent, any. setTimeout() and set_stop() are not synchronised with calls in
// progress; give each thread its clone(). Errors: c10::DistStoreError (deadline passed, value
// refused), c10::DistNetworkError (the daemon or coordinator out of reach, or the generation over).
// Queues and listKeys are not offered: c10::NotImplementedError, as in c10d's base.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "agent/agent.h"
#include "parallel/comm/interface/stoppable_store.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

// The last part of the prefix that a process group puts before the keys of its NCCL unique ids.
inline constexpr char kNcclPrefix[] = "nccl";

class AgentStore : public c10d::Store, public StoppableStore {
 public:
  explicit AgentStore(std::shared_ptr<agent::Agent> agent,
                      std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout);

  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

  void set_stop(std::stop_token stop) override { stop_ = std::move(stop); }

 private:
  std::shared_ptr<agent::Agent> agent_;
  std::stop_token stop_;
};

// Whether `key` carries an NCCL unique id: below a prefix that ends in kNcclPrefix, a
// communicator's number, a pair of ranks ("0:1"), or a root ("UniqueNCCLID:0").
bool is_unique_id_key(const std::string& key);

}  // namespace meshrun
