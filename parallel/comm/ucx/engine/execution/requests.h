// The messages of operations: posts them on the transport, and cancels what is still open when an
// operation fails. RunningOperation::outstanding counts what the transport holds.
//
// Threads: under the engine's lock. No errors.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/comm/ucx/engine/execution/connections.h"
#include "parallel/comm/ucx/engine/execution/group_config.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

class Requests {
 public:
  // All outlive it.
  Requests(Transport& transport, Connections& connections, Counters& counters)
      : transport_(transport), connections_(connections), counters_(counters) {}

  // To a member that is known. True: it is done already, with the status in `request`, and nobody
  // hears of it again.
  [[nodiscard]] bool send(RunningOperation& operation, int rank, Tag tag,
                          std::span<const std::byte> bytes, Request& request);
  void receive(RunningOperation& operation, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request);
  // A collective's, from a member that is known.
  void receive_data(RunningOperation& operation, int rank, Tag tag, std::span<std::byte> bytes,
                    Request& request);

  // Cancels all open receives of an operation that has failed.
  void cancel_receives(RunningOperation& operation);
  // The ranks disagree, so nobody sends data: receives of offers, after the round's messages.
  void cancel_offers(RunningOperation& operation);

  // Call them around the handling of a round's completions. A receive that is complete but not yet
  // handled must not be cancelled, so cancelling waits until the end.
  void begin_round() { is_in_round_ = true; }
  void end_round();

 private:
  void cancel_open_receives(RunningOperation& operation);
  void cancel_open_offers(RunningOperation& operation);

  Transport& transport_;
  Connections& connections_;
  Counters& counters_;
  bool is_in_round_ = false;
  std::vector<OperationPtr> to_cancel_;
};

}  // namespace meshrun::ucx
