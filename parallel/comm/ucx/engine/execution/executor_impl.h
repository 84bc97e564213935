// What executor*.cc share. One file for each part:
//
//   executor.cc              groups, submission, rounds
//   executor_connections.cc  addresses, peers, control messages
//   executor_movement.cc     header rounds and steps
//   executor_offers.cc       memory of a receiver that a sender writes to
//   executor_failures.cc     every way to end badly
#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallel/comm/ucx/engine/execution/executor.h"
#include "parallel/comm/ucx/engine/execution/running_operation.h"

namespace meshrun::ucx {

using OperationPtr = std::shared_ptr<RunningOperation>;

struct Member {
  enum State : uint8_t { kUnknown, kLookingUp, kKnown };
  State state = kUnknown;
  int world_rank = 0;
  PeerId peer = -1;
  uint32_t group = 0;           // its number for the group
  uint64_t last_called = 0;     // the highest collective that a header of it has told of
  bool shares = false;          // it may offer memory, and is offered some
  PeerHeap* heap = nullptr;     // where that can be reached
  bool writes_no_more = false;  // its group has failed
  uint64_t asks_about = 0;      // its question, to be answered when its address is known; 0: none
};

struct MemberGroup {
  MemberGroup(const GroupConfig& c, uint32_t n)
      : config(std::make_shared<const GroupConfig>(c)), number(n), recorder(c.name) {}

  const std::shared_ptr<const GroupConfig> config;
  const uint32_t number;
  FlightRecorder recorder;
  std::vector<Member> members;
  int known = 0;  // members whose address is
  uint64_t last_sequence = 0;
  uint64_t last_point_to_point = 0;
  std::deque<OperationPtr> queued;        // collectives behind kMaxActive
  std::vector<OperationPtr> collectives;  // started, not ended
  std::map<uint64_t, OperationPtr> point_to_point;
  bool is_starting = false;
  std::optional<Failure> failure;

  // In the order of submission, sends and receives last.
  std::vector<OperationPtr> unfinished() const;
  bool is_full(bool is_point_to_point) const {
    if (failure) return false;
    return is_point_to_point ? point_to_point.size() >= Executor::kMaxPointToPoint
                             : queued.size() >= Executor::kMaxQueued;
  }
};

class Executor::Impl {
 public:
  Impl(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host, SharedHeap* heap);

  // executor.cc
  uint32_t add_group(const GroupConfig& config);
  void remove_group(uint32_t number);
  AddressRecord address_record(uint32_t number) const;
  template <typename Spec>
  OperationPtr try_submit(uint32_t number, Spec&& spec);
  template <typename Spec>
  OperationPtr submit(uint32_t number, Spec&& spec, std::optional<SteadyNanos> since);
  bool progress();
  std::optional<SteadyNanos> next_deadline() const;
  WaitReport wait_report(const std::vector<const Operation*>& operations) const;
  WaitCall wait_call(const RunningOperation& operation) const;
  std::vector<std::pair<std::string, std::vector<FlightRecord>>> flight_records() const;
  void close(const std::string& reason);
  MemberGroup* find(uint32_t number) const;
  MemberGroup& group(uint32_t number) const;

  // executor_connections.cc
  void found(uint32_t number, int rank, const std::optional<AddressRecord>& record,
             const std::string& reason);

  // executor_failures.cc
  void heard(const PeerNews& news);
  void fail_group(MemberGroup& group, Failure failure);
  std::vector<int> missing_ranks(const RunningOperation& operation) const;

  const std::unique_ptr<Transport> transport_;
  const Clock& clock_;
  const uint64_t host_;
  const uint64_t process_;
  SharedHeap* const heap_;
  std::map<uint64_t, uint64_t> host_of_process_;
  Actions actions_;
  Counters counters_;
  int unfinished_ = 0;
  int unfinished_for_thread_ = 0;

 private:
  // The first bytes of a control message.
  struct ControlHead {
    enum Type : uint64_t { kFailure, kQuestion, kAnswer };
    Type type;
    uint64_t sequence;  // kQuestion, kAnswer: of the operation asked about
    uint64_t called;    // kAnswer
  };
  struct ControlMessage {
    Request request;
    std::string bytes;
  };
  struct Gone {
    bool left = false;
    std::string reason;
    SteadyNanos since{0};
  };
  struct ReadyStep {
    RunningOperation* operation;
    StepId step;
    int64_t done = 0;  // bytes, of a copy that a round has broken off
    // Of what is copied: a copy's target; the receiver's memory, or what is sent then; where what
    // was received belongs.
    StridedSpan to = {};
    int64_t to_offset = 0;
  };

  // executor.cc
  template <typename Spec>
  OperationPtr submit_to(MemberGroup& group, Spec&& spec, std::optional<SteadyNanos> since);
  void accept(MemberGroup& group, const OperationPtr& operation, SteadyNanos since);
  void dispatch(Request& request);
  void start_queued(MemberGroup& group);

  // executor_connections.cc
  PeerId peer_of(MemberGroup& group, int rank);
  // Whose addresses `operation` needs and the group lacks.
  std::vector<int> unknown_peers(const RunningOperation& operation) const;
  void look_up(MemberGroup& group, const std::vector<int>& ranks);
  void send_control(const MemberGroup& group, int rank, const ControlHead& head,
                    std::string_view bytes = {});
  void post_control_receive();
  void control_done(Request& request);
  void control_received(uint32_t group, int sender, std::span<const std::byte> bytes);

  // executor_movement.cc
  void start(const OperationPtr& operation);
  void start_connected(RunningOperation& operation);
  void begin_round(RunningOperation& operation);
  void end_rounds(RunningOperation& operation);
  void header_received(RunningOperation& operation, const Request& request);
  void begin_moving(RunningOperation& operation);
  void make_ready(RunningOperation& operation, StepId id);
  void post_step(RunningOperation& operation, StepId id);
  void post_point_to_point(RunningOperation& operation);
  void post_send(RunningOperation& operation, int rank, Tag tag, std::span<const std::byte> bytes,
                 Request& request);
  void post_receive(RunningOperation& operation, Tag tag, Tag mask, std::span<std::byte> bytes,
                    Request& request);
  // Of an operation that has not ended.
  void message_done(RunningOperation& operation, const Request& request);
  // `bytes`: none where they have been written into the receiver's memory.
  void send_data(RunningOperation& operation, StepId id, std::span<const std::byte> bytes);
  static Tag data_tag(const MemberGroup& group, const Step& step, uint64_t sequence);
  // Moves what a staged receive has brought to where it belongs.
  void unstage(RunningOperation& operation, StepId id);
  void connection_broke(RunningOperation& operation, const Request& request);
  void wrong_length(RunningOperation& operation, const Request& request);
  void finish_step(RunningOperation& operation, StepId id);
  void finish_if_done(RunningOperation& operation);
  // Posts what can be posted, computes within the round's bound.
  void run_ready();
  void run_posts();
  void compute_later(const ReadyStep& ready);
  // At most `budget` bytes of a copy, or all of a reduction; returns how many.
  int64_t compute(const ReadyStep& ready, int64_t budget);
  int64_t move_bytes(ReadyStep ready, int64_t budget);
  int64_t reduce_bytes(const ReadyStep& ready);
  void forget_ready(RunningOperation& operation);
  Scratch take_scratch(int64_t bytes);
  void return_scratch(Scratch scratch);

  // executor_offers.cc
  // Whether the two ends of the message speak of memory first.
  bool has_offer(const MemberGroup& group, const Step& step) const;
  void exchange_offer(RunningOperation& operation, StepId id);
  void make_offer(RunningOperation& operation, StepId id);
  // What is offered of a region; no offset: nothing.
  OfferMessage describe_memory(const RunningOperation& operation, const Region& region) const;
  void await_offer(RunningOperation& operation, StepId id);
  void offer_received(RunningOperation& operation, const Request& request);
  // Of a step that is posted, and whose offer is known.
  void send_step(RunningOperation& operation, StepId id);
  // Its memory is there, and what can be said of it before the ranks agree is said.
  void prepare(RunningOperation& operation);

  // executor_failures.cc
  void end_operation(RunningOperation& operation, std::optional<Failure> failure, int source = -1);
  // Of operations that have ended: a member of the group has said that it writes no more.
  void give_back_memory(uint32_t group, int sender);
  // Of operations that have ended: what is lent to processes that have. Again later, if some
  // process that is gone may still write.
  void give_back_memory_of_the_dead();
  // Lets go of those that have ended, hold no request, and lend nothing, if `is_changed`.
  template <typename Change>
  void bury(Change is_changed);
  // Once no request is left, and no peer writes to its memory.
  void release(RunningOperation& operation);
  // At once, or after the round's messages, some of which may be its own.
  void cancel_receives(RunningOperation& operation);
  void cancel_open_receives(RunningOperation& operation);
  // The data will not be sent: the ranks disagree, or the operation failed.
  void cancel_offers(RunningOperation& operation);
  void check_deadlines();
  void expire(RunningOperation& operation);
  bool ask_members(RunningOperation& operation);
  void answered(MemberGroup& group, int rank, const ControlHead& head);
  std::string timeout_text(const RunningOperation& operation, std::vector<int>* ranks) const;
  void gone(int world_rank, bool left, const std::string& reason);
  void broken(PeerId peer, const std::string& reason);
  void check_gone();
  // When `operation` fails for the sake of a rank that is gone; absent: it needs none.
  std::optional<SteadyNanos> fails_at(const RunningOperation& operation, int* rank) const;
  Failure gone_failure(const RunningOperation& operation, int rank) const;
  void decided(const WaitVerdict& verdict);

  SteadyNanos now_{0};
  SteadyNanos last_round_{0};
  // When rounds were last resumed after a pause (nobody waits, or the process was stopped): what
  // gone ranks sent may lie unread.
  SteadyNanos resumed_{0};
  uint32_t last_group_ = 0;
  std::map<uint32_t, std::unique_ptr<MemberGroup>> groups_;
  std::map<PeerId, int> world_rank_of_;
  std::map<uint64_t, std::unique_ptr<PeerHeap>> heap_of_process_;  // null: out of reach
  std::map<int, Gone> gone_;                                       // by world rank
  std::string stopping_;
  // Lower bounds.
  SteadyNanos next_deadline_ = SteadyNanos::max();
  SteadyNanos next_gone_check_ = SteadyNanos::max();
  SteadyNanos next_look_for_the_dead_ = SteadyNanos::max();

  Completions completions_;
  bool is_dispatching_ = false;
  std::vector<OperationPtr> to_cancel_;
  std::deque<ReadyStep> posts_, computes_;
  std::vector<const std::byte*> sources_;
  std::vector<Scratch> free_scratch_;
  int64_t free_scratch_bytes_ = 0;
  // Ended, with requests that the transport still holds.
  std::unordered_map<RunningOperation*, OperationPtr> zombies_;

  Request control_receive_;
  std::vector<std::byte> control_buffer_;
  std::list<ControlMessage> control_sends_;
  bool closed_ = false;
};

}  // namespace meshrun::ucx
