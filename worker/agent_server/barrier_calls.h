// Barriers as this host enters them: its ranks that come at about the same time make one call to
// the coordinator, which so has one call per host and not one per rank.
//
//   gathering --every rank of this host is in, or kGather is over--> sent --answer--> each is told
//   sent --one of its ranks goes away--> cancelled --> sent again for the others
//
// On the loop's thread, except NewId.
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "meshrun/v1/store_service.pb.h"
#include "worker/event_loop/event_loop.h"

namespace meshrun::worker {

class BarrierCalls {
 public:
  // How long a rank waits here for the others of its host. The barrier does not open later for it:
  // the last rank of a host does not wait.
  static constexpr std::chrono::milliseconds kGather{20};

  // Makes the call; the last argument is called once, on any thread.
  using Start = std::function<void(grpc::ClientContext*, const v1::EnterBarrierRequest*,
                                   v1::EnterBarrierResponse*, std::function<void(grpc::Status)>)>;
  struct Entry {
    // With the fence that the coordinator is to see.
    v1::EnterBarrierRequest request;
    std::chrono::system_clock::time_point deadline;
    // How many ranks of this host the barrier has.
    size_t local = 1;
    // Called once, on the loop.
    std::function<void(const grpc::Status&)> done;
  };

  BarrierCalls(EventLoop& loop, Start start) : loop_(loop), start_(std::move(start)) {}

  uint64_t NewId() { return next_id_.fetch_add(1); }
  void Enter(uint64_t id, Entry entry);
  // The rank has gone away: `done` is called with CANCELLED, once the coordinator knows. Not an
  // error for one that is done.
  void Leave(uint64_t id);

 private:
  using Clock = std::chrono::steady_clock;
  // Job, generation, barrier; and the barrier's ranks.
  using Barrier = std::tuple<std::string, uint64_t, std::string>;
  using Key = std::pair<Barrier, std::string>;
  struct Waiting {
    Entry entry;
    Clock::time_point expires;
    bool leaves = false;
  };
  struct Call {
    Key key;
    std::map<uint64_t, Waiting> entries;
    bool sent = false;
    EventLoop::TimerId timer = 0;
    grpc::ClientContext context;
    v1::EnterBarrierRequest request;
    v1::EnterBarrierResponse response;
  };

  Call& NewCall(const Key& key);
  void Add(Call& call, uint64_t id, Waiting waiting);
  void Send(Call& call);
  void OnAnswer(Call& call, const grpc::Status& status);

  EventLoop& loop_;
  const Start start_;
  std::atomic<uint64_t> next_id_{1};
  std::map<Call*, std::unique_ptr<Call>> calls_;
  std::map<Key, Call*> gathering_;
  std::map<uint64_t, Call*> by_entry_;
  // Ranks of this host that the coordinator knows to wait.
  std::map<Barrier, size_t> sent_;
};

}  // namespace meshrun::worker
