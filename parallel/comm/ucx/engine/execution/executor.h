// Carries out the operations of all groups of this process over one transport. Single-threaded and
// without clocks, sockets or waits of its own: events go in, progress() moves what can move, what
// others must do comes out (actions.h). Engine (engine.h) puts threads around it; tests step many
// executors over one MemoryNetwork in seeded orders. It composes:
//
//   MemberGroup     a group's members and operations, and the order in which collectives start
//   Connections     addresses of members, connections, memory of processes on this host
//   HeaderRounds    whether all ranks mean the same operation
//   StepScheduler   steps of schedules: messages, copies, sums
//   Offers          memory of one end of a message that the other one writes to or reads
//   Requests        messages of operations on the transport, and their cancelling
//   ScratchPool     memory that schedules stage in
//   ControlChannel  messages beside the operations: failures, and questions at a timeout
//   PeerLiveness    ranks that are gone, and what fails for their sake
//   Timeouts        operations whose time is up
//   Zombies         operations that have ended, and whose memory something may still touch
//
// Order: collectives of a group start in the order of their sequence numbers and end in any. At
// most kMaxActive of a group run at once, none beside one that is 2^16 older (tag.h), and
// kMaxQueued more wait (member_group.h). Sends and receives start at once, since two ranks may post
// them in any order; receives are matched in the order of submission. A group with kMaxQueued
// collectives waiting, or kMaxPointToPoint sends and receives under way, is full: is_full()
// refuses, and Engine waits for room.
//
// When something ends badly:
//   disagreement     the operation fails, on all ranks; the group goes on: no tensor was written.
//                    An operation fails in the same way if its schedule on any rank has more
//                    messages than tags can number
//   verdict          the operations it names fail; the group goes on at the verdict's number
//   timeout          the operation fails, the group with it
//   peer lost, left  operations that still need it fail PeerLiveness::kGrace later (what it sent
//                    before may be on its way or unread), and their groups with them; so do later
//                    ones
//   abort            all of the group's operations fail, the group with them
// A group that fails here tells the members it is connected to, once (control_channel.h). A member
// that hears of it fails the group with the same sentence and passes it on. Receives are cancelled;
// what cannot be, and the memory that peers may write to or read, is kept (zombies.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/execution/actions.h"
#include "parallel/comm/ucx/engine/execution/connections.h"
#include "parallel/comm/ucx/engine/execution/control_channel.h"
#include "parallel/comm/ucx/engine/execution/header_rounds.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/execution/offers.h"
#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/execution/peer_liveness.h"
#include "parallel/comm/ucx/engine/execution/requests.h"
#include "parallel/comm/ucx/engine/execution/scratch_pool.h"
#include "parallel/comm/ucx/engine/execution/step_scheduler.h"
#include "parallel/comm/ucx/engine/execution/timeouts.h"
#include "parallel/comm/ucx/engine/execution/zombies.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

class Executor : private StepScheduler::Listener {
 public:
  // `host` is that of the AddressRecord. `heap` outlives it; null: peers write nothing into this
  // rank's memory. `watch_sees_ends`: PeerWatch::sees_ends() of whoever calls heard().
  Executor(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host = 0,
           SharedHeap* heap = nullptr, bool watch_sees_ends = false);
  ~Executor() override;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The number under which peers address this group; goes into its AddressRecord. 0: this process
  // has made as many groups as tags can number.
  uint32_t add_group(const GroupConfig& config);
  // Its unfinished operations fail (kAborted), here and on the other ranks.
  void remove_group(uint32_t group);
  AddressRecord address_record(uint32_t group) const;

  // `spec`: an OperationSpec or a PointToPointSpec. Goes to a full group, too. The operation's
  // timeout counts from `since`; absent: from now.
  template <typename Spec>
  std::shared_ptr<Operation> submit(uint32_t group, Spec&& spec,
                                    std::optional<SteadyNanos> since = std::nullopt);
  // For collectives, or for sends and receives. False on a group that has failed.
  bool is_full(uint32_t group, bool is_point_to_point) const;

  // Events.
  void found(uint32_t group, int rank, std::optional<AddressRecord> record,
             const std::string& reason);
  void heard(const PeerNews& news);
  void abort(uint32_t group, const Failure& failure);
  // This rank takes no part in the group any more: later operations fail here, and on other members
  // those that need this rank, as with one that has exited.
  void leave(uint32_t group, const Failure& failure);

  // One round: transport, steps that became ready, deadlines. True: something moved, or more is
  // ready.
  bool progress();
  // When the round under way, or the last one, began.
  SteadyNanos now() const { return now_; }
  bool has_actions() const { return !actions_.empty(); }
  Actions take() { return actions_.take(); }

  // The earliest time at which progress() has something to do without an event; absent: none.
  // It may be too early, never too late.
  std::optional<SteadyNanos> next_deadline() const;
  bool has_unfinished() const { return unfinished_ > 0; }
  // Whether any with Drive::kThread is.
  bool has_unfinished_for_thread() const { return unfinished_for_thread_ > 0; }
  void set_drive(Operation& operation, Drive drive);
  // wait_reports.h
  WaitReport wait_report(const std::vector<const Operation*>& operations) const;
  // Operations of the group, in the order of submission, sends and receives last.
  std::vector<std::shared_ptr<Operation>> unfinished(uint32_t group) const;
  std::optional<Failure> group_failure(uint32_t group) const;
  // The first of the group's collectives that has not ended; null: all have.
  std::shared_ptr<Operation> oldest_collective(uint32_t group) const;
  // The number of the group's last collective; 0: none yet.
  uint64_t sequence(uint32_t group) const;
  const FlightRecorder& flight_recorder(uint32_t group) const;
  // Names of all groups' recorders, and of each the last `most` records; 0: kShown.
  std::vector<std::pair<std::string, std::vector<FlightRecord>>> flight_records(int most) const;
  Counters counters() const { return counters_; }
  int64_t sent_bytes() const { return counters_.sent_bytes; }
  // Processes on this host, this one and those met so far.
  int local_ranks() const { return connections_.local_ranks(); }
  Transport& transport() { return *transport_; }

  // Fails everything (kAborted) and closes the transport. Memory is free afterwards, except what
  // peers may still write to or read, which is kept for ever. Only take() may follow, and what
  // reads.
  void close(const std::string& reason);
  // After an exception has left another method: nothing here need be in order. Ends the handles of
  // all operations (kTransport). The transport may still have their memory, so this object must be
  // kept for ever. Only what reads may follow.
  void give_up(const std::string& reason);

 private:
  // executor.cc
  MemberGroup* find(uint32_t number) const;
  MemberGroup& group(uint32_t number) const { return *groups_.at(number); }
  void dispatch(Request& request);

  // executor_operations.cc: an operation from its start to its end.
  void start_queued(MemberGroup& group);
  // Again when the last of its peers' addresses is known.
  void start(RunningOperation& operation);
  void advance(RunningOperation& operation, HeaderRounds::State headers);
  void begin_moving(RunningOperation& operation);
  void enter(RunningOperation& operation, OperationState state);
  // A message of an operation that has not ended is done.
  void message_done(RunningOperation& operation, const Request& request);
  void steps_done(RunningOperation& operation) override { finish_if_done(operation); }
  void send_failed(RunningOperation& operation, const Request& request) override {
    connection_broke(operation, request);
  }
  void connection_broke(RunningOperation& operation, const Request& request);
  void wrong_length(RunningOperation& operation, const Request& request);
  void finish_if_done(RunningOperation& operation);
  void end_operation(RunningOperation& operation, std::optional<Failure> failure, int source = -1);

  // executor_events.cc: what comes from outside, and what fails for it.
  void control_received(const ControlMessage& message);
  void fail_group(MemberGroup& group, Failure failure);
  void check_timeouts();
  void check_gone();
  void look_for_the_dead();
  void decided(const WaitVerdict& verdict);

  const std::unique_ptr<Transport> transport_;
  const Clock& clock_;
  SteadyNanos now_{0};
  Actions actions_;
  Counters counters_;
  Groups groups_;
  uint32_t last_group_ = 0;
  int unfinished_ = 0;
  int unfinished_for_thread_ = 0;
  bool closed_ = false;
  Completions completions_;

  Connections connections_;
  ControlChannel control_;
  ScratchPool scratch_;
  Zombies zombies_;
  Requests requests_;
  HeaderRounds headers_;
  Offers offers_;
  StepScheduler steps_;
  PeerLiveness liveness_;
  Timeouts timeouts_;
};

}  // namespace meshrun::ucx
