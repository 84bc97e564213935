// In which order the queued jobs of several users are placed, within a priority: start-time fair
// queuing (Goyal, Vin and Cheng, 1996) by slots.
//
// Each job has a turn, an interval of the queue's virtual time as long as the slots that it asks
// for at least, divided by its user's weight. A user's turns follow each other; the first one
// begins at the queue's time, which is the begin of the turn that was started last in its order. So
// a user who has nothing running or queued is next, however much others have queued, and users who
// all wait are given slots by their weights. Jobs of one user stay in their order. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

namespace meshrun::coordinator {

struct Turn {
  uint64_t begin = 0;
  uint64_t end = 0;
};

class Turns {
 public:
  // A job of the user's joins the queue behind his others. `slots`: at least 1 counts.
  Turn Join(int32_t priority, const std::string& user, uint64_t slots, double weight);
  // It is in the queue again, with the turn that it had.
  void JoinAgain(int32_t priority, const std::string& user, const Turn& turn);
  // It leaves the queue without having started: its user owes nothing for it.
  void Leave(int32_t priority, const std::string& user, const Turn& turn);
  // It starts. `earliest`: the begin of the first turn that could be taken now. A job that goes
  // before others does not take the queue's time with it.
  void Start(int32_t priority, const std::string& user, const Turn& turn, uint64_t earliest);
  // The user has nothing queued and nothing running: what he had is forgotten.
  void Forget(const std::string& user);

 private:
  // The jobs of one user and priority.
  struct Flow {
    // Ends of the turns that wait, and of the last one that was started.
    std::multiset<uint64_t> queued;
    uint64_t started_end = 0;
  };
  struct Level {
    uint64_t now = 0;
    std::unordered_map<std::string, Flow> flows;
  };

  std::map<int32_t, Level> levels_;
};

}  // namespace meshrun::coordinator
