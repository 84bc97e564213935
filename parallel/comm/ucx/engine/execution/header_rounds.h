// Carries out the header check (header_check.h) of an operation: its rounds, and, where the ranks
// disagree, the rounds of the explanation. The headers of small operations carry the ranks'
// contributions (Schedule::piggyback) until a rank is heard of that disagrees. After the last round
// all of them are in scratch memory.
//
//   begin() -> kUnderWay -> kAgree
//                  |
//                  +-----> kUnderWay (explaining) -> kDisagree
//
// Threads: under the engine's lock. No errors of its own.
#pragma once

#include <cstdint>

#include "parallel/comm/ucx/engine/execution/requests.h"
#include "parallel/comm/ucx/engine/execution/running_operation.h"

namespace meshrun::ucx {

class HeaderRounds {
 public:
  enum class State : uint8_t {
    kUnderWay,
    kAgree,     // tensors may be written
    kDisagree,  // RunningOperation::disagreement says who; it ends when its requests are done
  };

  // Outlives it.
  explicit HeaderRounds(Requests& requests) : requests_(requests) {}

  // Begins the first round of an operation whose peers are known.
  State begin(RunningOperation& operation);
  // The round's receive is done; its connection did not break.
  State received(RunningOperation& operation, const Request& request);

 private:
  State next(RunningOperation& operation);
  void post(RunningOperation& operation);
  void receive(RunningOperation& operation, Tag tag);

  Requests& requests_;
};

}  // namespace meshrun::ucx
