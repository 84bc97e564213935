// Wires between the coordinator's host and the others.
//
// A stream is ordered: a message that is late makes the ones behind it late. A partition holds what
// travels until it heals; loss appears as a stream that breaks. A stream that its worker has given
// up still delivers what is under way, possibly after the worker's next stream has begun.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "meshrun/v1/session.pb.h"
#include "tests/coordinator/simulation/random.h"
#include "tests/coordinator/simulation/timeline.h"

namespace meshrun::coordinator::simulation {

// What one host's link lets through.
struct Link {
  bool up_blocked = false;
  bool down_blocked = false;
  // Added to each message; a fault raises it.
  nanoseconds delay{milliseconds(1)};
};

// One direction of a stream.
template <typename Message>
class Wire {
 public:
  using Item = std::variant<Message, absl::Status>;  // a status ends the stream
  using Arrive = std::function<void(Item)>;

  Wire(Timeline& timeline, Random& random, const Link& link, const bool& blocked, Arrive arrive)
      : timeline_(timeline),
        random_(random),
        link_(link),
        blocked_(blocked),
        arrive_(std::move(arrive)) {}

  // Nothing follows an end.
  void Put(Item item) {
    if (ended_) return;
    ended_ = std::holds_alternative<absl::Status>(item);
    // Mostly quick; now and then a message takes its time.
    nanoseconds delay = link_.delay + random_.Between(nanoseconds(0), milliseconds(2));
    if (random_.OneIn(200)) delay += random_.Between(nanoseconds(0), milliseconds(800));
    last_ = std::max(last_, timeline_.now() + delay);
    items_.push_back({last_, std::move(item)});
    Plan();
  }
  // The link may let through again.
  void Plan() {
    if (planned_ || blocked_ || items_.empty()) return;
    planned_ = true;
    timeline_.At(items_.front().first, [this, alive = std::weak_ptr<int>(alive_)] {
      if (alive.expired()) return;
      planned_ = false;
      if (blocked_ || items_.empty()) return;
      Item item = std::move(items_.front().second);
      items_.pop_front();
      Plan();
      arrive_(std::move(item));
    });
  }
  // What has not arrived is lost.
  void Cut() {
    items_.clear();
    ended_ = true;
  }
  // The sender's process is gone: what has not arrived is lost, and the end follows.
  void Break(absl::Status status) {
    if (ended_) return;
    items_.clear();
    Put(std::move(status));
  }
  bool ended() const { return ended_; }
  bool done() const { return ended_ && items_.empty(); }

 private:
  Timeline& timeline_;
  Random& random_;
  const Link& link_;
  const bool& blocked_;
  const Arrive arrive_;
  std::deque<std::pair<SteadyNanos, Item>> items_;
  SteadyNanos last_{0};
  bool planned_ = false;
  bool ended_ = false;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

class Host;

// A session's stream, as long as either end knows it.
struct Stream {
  Stream(uint64_t id, Host& host, Timeline& timeline, Random& random, const Link& link,
         Wire<v1::OpenSessionRequest>::Arrive at_coordinator,
         Wire<v1::OpenSessionResponse>::Arrive at_worker)
      : id(id),
        host(host),
        up(timeline, random, link, link.up_blocked, std::move(at_coordinator)),
        down(timeline, random, link, link.down_blocked, std::move(at_worker)) {}

  const uint64_t id;
  Host& host;
  Wire<v1::OpenSessionRequest> up;
  Wire<v1::OpenSessionResponse> down;
};

}  // namespace meshrun::coordinator::simulation
