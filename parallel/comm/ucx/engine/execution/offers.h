// Memory that a receiver lends to a sender on its host (shared_heap.h): for which messages, what is
// offered, and where the sender may write.
//
//   receiver: exchange() --OfferMessage--> sender: exchange(), received() -> Offer::target
//
// Offers travel beside the headers, so that nobody waits for them; those of memory that an earlier
// step uses come later. What is lent and not yet returned is in RunningOperation::is_lent.
//
// Threads: under the engine's lock. No errors: where nothing can be offered, or what came is not
// understood, the message is sent.
#pragma once

#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/execution/requests.h"
#include "parallel/comm/ucx/engine/protocol/offer_message.h"

namespace meshrun::ucx {

class Offers {
 public:
  // Both outlive it. `heap`: this process's; null: none, and no member shares memory.
  Offers(Requests& requests, const SharedHeap* heap) : requests_(requests), heap_(heap) {}

  // Whether the two ends of the message speak of memory first. Alike at both.
  static bool is_exchanged(const MemberGroup& group, const Step& step);
  // Of an operation that has its scratch memory: what can be said before the ranks agree.
  void prepare(RunningOperation& operation);
  // Of a step for which is_exchanged(): makes the offer, or awaits it. Once.
  void exchange(RunningOperation& operation, StepId id);
  // The receive of an offer is done; its connection did not break. True: the sender knows now, and
  // the step may be sent. False: there is another one to come, or nothing will be sent.
  bool received(RunningOperation& operation, const Request& request);

 private:
  void make(RunningOperation& operation, StepId id);
  void await(RunningOperation& operation, StepId id);
  // What is offered of a region; no offset: nothing.
  OfferMessage describe(const RunningOperation& operation, const Region& region) const;

  Requests& requests_;
  const SharedHeap* const heap_;
};

}  // namespace meshrun::ucx
