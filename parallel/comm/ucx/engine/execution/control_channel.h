// Messages beside the operations: that a group has failed, and, once an operation's time is up, how
// far a member is.
//
//   kFailure   a Failure                       to all members that are known, once
//   kQuestion  "have you called number n?"     to all members
//   kAnswer    number n, and the last called   to the member that asked
//   kLeft      it takes no part any more       to all members that are known, once
//
// One receive for all groups is always posted. Threads: under the engine's lock. No errors: what is
// not understood is ignored, and a send that fails is forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/transport/transport.h"
#include "parallel/comm/ucx/engine/values/failure.h"

namespace meshrun::ucx {

// The first bytes of a message. On the wire as it stands.
struct ControlHead {
  enum Type : uint64_t { kFailure, kQuestion, kAnswer, kLeft };
  Type type = kFailure;
  uint64_t sequence = 0;  // kQuestion, kAnswer: of the operation asked about
  uint64_t called = 0;    // kAnswer
};

struct ControlMessage {
  uint32_t group = 0;  // this process's number for it; it may be gone
  int sender = 0;      // a rank of the group, if that is not gone
  ControlHead head;
  std::optional<Failure> failure;  // kFailure; absent: not understood
};

class ControlChannel {
 public:
  // Posts the receive. `transport` outlives it.
  explicit ControlChannel(Transport& transport);
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  // To a member that is known.
  void send(const MemberGroup& group, int rank, const ControlHead& head,
            std::string_view bytes = {});
  // To all members that are known.
  void send_failure(const MemberGroup& group);
  void send_failure(const MemberGroup& group, int rank);
  void send_left(const MemberGroup& group);
  // A request whose owner is null is done: it is one of this object's. What has come by it, if
  // anything.
  std::optional<ControlMessage> done(Request& request);

  // Before the transport is closed.
  void cancel_receive();
  // Afterwards.
  void forget_sends() { sends_.clear(); }

 private:
  struct Send {
    Request request;
    std::string bytes;
  };
  void post_receive();

  Transport& transport_;
  Request receive_;
  std::vector<std::byte> buffer_;
  std::list<Send> sends_;
};

}  // namespace meshrun::ucx
