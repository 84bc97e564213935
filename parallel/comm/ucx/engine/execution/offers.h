// Memory that one end of a message lends to the other one on its host (shared_heap.h): for which
// messages, what is lent, and where the other end may write or read.
//
//   receiver: exchange() --OfferMessage--> sender: exchange(), received() -> Offer::there: writes
//
//   sender: lend_source() --OfferMessage in place of the bytes--> receiver: find_source() ->
//           Offer::there: reads
//           received() <--OfferMessage-- receiver: answer(): it has read, or cannot: send the bytes
//
// Offers travel beside the headers, so that nobody waits for them; those of memory that an earlier
// step uses come later. A source is lent when its step would be sent, and its operation is not done
// before the answer has come. What is lent and not yet returned is in RunningOperation::is_lent.
//
// Threads: under the engine's lock. No errors: where nothing can be lent, or what came is not
// understood, the message is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/execution/requests.h"
#include "parallel/comm/ucx/engine/protocol/offer_message.h"

namespace meshrun::ucx {

class Offers {
 public:
  // All outlive it. `heap`: this process's; null: none, and no member shares memory.
  Offers(Requests& requests, Counters& counters, const SharedHeap* heap)
      : requests_(requests), counters_(counters), heap_(heap) {}

  // Whether the two ends of the message speak of memory first. Alike at both.
  static bool is_exchanged(const MemberGroup& group, const Step& step);
  // Prepares the offers of an operation that has its scratch memory: what can be said before the
  // ranks agree.
  void prepare(RunningOperation& operation);
  // Makes the offer of a step for which is_exchanged(), or awaits it. Once.
  void exchange(RunningOperation& operation, StepId id);
  // The receive of an offer or of an answer is done; its connection did not break. True: the sender
  // knows now, and the step may go on. False: there is another one to come, or nothing will be
  // sent.
  bool received(RunningOperation& operation, const Request& request);

  // Whether the sender of the message may lend its source. Both ends get the same answer. They also
  // agree on the message's size, so what comes with the size of an OfferMessage instead is one.
  static bool may_be_read(const MemberGroup& group, const Step& step);
  // For a step that sends: tells where its bytes lie, under the tag that the bytes would have, and
  // awaits the answer. False: the bytes must be sent.
  bool lend_source(RunningOperation& operation, StepId id, Tag tag);
  // Whether a receive that is done has brought a source in place of the bytes.
  static bool is_source(const RunningOperation& operation, const Request& request);
  // Where the source of such a receive lies: in Offer::there, if it can be reached.
  enum class Source : uint8_t {
    kHere,
    kOutOfReach,
    kStale,  // of an operation that this rank has left behind
  };
  Source find_source(RunningOperation& operation, StepId id);
  // To the sender of a source: it has been read, or it must be sent. False: it failed at once.
  bool answer(RunningOperation& operation, StepId id, bool was_read);

 private:
  void make(RunningOperation& operation, StepId id);
  void await(RunningOperation& operation, StepId id);
  // To the other end of the step. False: it failed at once.
  bool say(RunningOperation& operation, StepId id, Tag tag, std::span<const std::byte> words);
  // The receiver's word.
  bool say(RunningOperation& operation, StepId id);
  // Where a region of a piece lies in the heap; no offset: not there.
  OfferMessage describe(const RunningOperation& operation, const ConstStridedSpan& piece,
                        const Region& region) const;

  Requests& requests_;
  Counters& counters_;
  const SharedHeap* const heap_;
};

}  // namespace meshrun::ucx
