// Messages between processes: the few calls of UCX that the engine needs, behind a seam, so that
// the engine runs on an in-memory network in tests (memory_transport.h) and every UCX call is in
// one file (ucx_transport.cc).
//
// Threads: one call at a time, from any thread (UCS_THREAD_MODE_SERIALIZED); event_fd() and wake()
// alone may be used beside another call, until close(). Nothing here waits.
//
// Ordering: two messages from one process to another with equal tags are matched in the order they
// were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

// A process we can send to; counts from 0 in the order of connect().
using PeerId = int32_t;
inline constexpr PeerId kAnyPeer = -1;

enum class MessageStatus : uint8_t {
  kOk,
  kCancelled,  // by cancel() or close()
  kTruncated,  // the sender's message is longer than the memory offered
  kFailed,     // the connection broke
};

// One posted message. The owner keeps it, and the memory it names, where they are until it is done
// or the transport is closed. A request that is done may be posted again.
struct Request {
  // The owner's, untouched here.
  void* owner = nullptr;
  uint32_t step = 0;
  // The transport's, valid when done.
  MessageStatus status = MessageStatus::kOk;
  int64_t bytes = 0;  // received, where the status is kOk
  Tag tag = 0;        // received, where the status is kOk: the sender's, for receive-from-any
  // The transport's own, while posted.
  void* transport = nullptr;
  void* handle = nullptr;
  uint8_t rail = 0;  // of a receive: rails_transport.h
};

// A peer whose connection broke; told once. Over TCP that is 1 ms after its process ended, by a
// signal or in order, and may come before messages that it sent earlier. Shared memory says so only
// where something is read from the dead process, or at connect().
struct BrokenPeer {
  PeerId peer;
  std::string reason;
};

// What happened since the last call; the owner empties it.
struct Completions {
  std::vector<Request*> done;
  std::vector<BrokenPeer> broken;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // To be told to peers; at most 64 KiB, 215 bytes with UCX, 600 with four rails.
  virtual const std::string& address() const = 0;
  // The same peer for the same address; one's own address is a peer like any other. Errors appear
  // as a broken peer.
  virtual PeerId connect(std::string_view address) = 0;

  // True: done at once, with the status in `request`, which is not listed again: small messages,
  // and any to a peer that has been told to be broken (kFailed). False: listed by progress() when
  // the memory may be reused, which for small messages too can wait for the peer to read. A send to
  // a dead peer over shared memory is never done before close().
  [[nodiscard]] virtual bool send(PeerId to, Tag tag, std::span<const std::byte> bytes,
                                  Request& request) = 0;
  // Always listed by progress(). `from`: the sender, which must be told of a collective's data
  // (TagKind::kData): several connections lead to it. For all else kAnyPeer will do.
  virtual void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
                       Request& request) = 0;
  // Asks for `receive`, which is not yet listed, to end; it is listed soon, kCancelled or
  // otherwise, unless a peer has died in the middle of its data: then it is abandoned until
  // close(). Sends cannot be cancelled.
  virtual void cancel(Request& receive) = 0;

  // Moves what can be moved, without waiting. False: nothing to do now.
  virtual bool progress(Completions& completions) = 0;

  // Before sleeping: true means that event_fd() becomes readable with the next event. False: call
  // progress() again. It can stay false for long (a send queued to a peer that does not read), so
  // a caller that keeps hearing false sleeps for a bounded time instead.
  [[nodiscard]] virtual bool arm() = 0;
  // For poll(); level-triggered; the same for the transport's life.
  virtual int event_fd() const = 0;
  // Makes event_fd() readable, or the next arm() false.
  virtual void wake() = 0;

  // Ends everything, at once, whatever peers do. After it no byte of posted memory is read or
  // written by this process, requests still pending are done or forgotten, and only the destructor
  // may follow. What send() said is done still arrives. A living peer on this host that has matched
  // a large message not yet done copies on from its sender's memory, whatever is there by then: it
  // must not use what it receives. Cancel receives first, or UCX logs a warning for each.
  virtual void close() = 0;
};

}  // namespace meshrun::ucx
