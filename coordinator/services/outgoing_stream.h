// Write side of a streaming call: messages in order, then the final status. gRPC takes one
// operation at a time, and no thread may touch the call after one has started Finish. So each
// change, and the choice of the next operation, is one step under the lock.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "core/mutex.h"
#include "core/rpc/status_conversion.h"

namespace meshrun::coordinator {

// Reactor: a server reactor that writes Message. Thread-safe.
template <typename Reactor, typename Message>
class OutgoingStream : public Reactor {
 protected:
  // Makes a change under the lock, then writes or finishes if it is time to.
  template <typename Change>
  void Advance(Change change) {
    const Message* write = nullptr;
    grpc::Status end;
    {
      MutexLock lock(mu_);
      change();
      if (writing_ || finished_ || starting_) return;
      if (!queue_.empty()) {
        writing_ = true;
        write = queue_.front().get();
      } else if (end_) {
        finished_ = true;
        end = rpc::ToGrpc(*end_, v1::ERROR_ORIGIN_COORDINATOR);
      } else {
        return;
      }
    }
    if (write != nullptr) {
      this->StartWrite(write);
    } else {
      this->Finish(end);
    }
  }

  // Starts another operation of the call outside of its reactions. Nothing happens where the call
  // has finished. One thread at a time.
  template <typename Start>
  void StartOutside(Start start) {
    {
      MutexLock lock(mu_);
      if (finished_) return;
      starting_ = true;
    }
    start();
    Advance([this]() MESHRUN_REQUIRES(mu_) { starting_ = false; });
  }

  void Push(std::shared_ptr<const Message> message) MESHRUN_REQUIRES(mu_) {
    queue_.push_back(std::move(message));
  }
  // The write under way has ended; returns its message.
  std::shared_ptr<const Message> Written() MESHRUN_REQUIRES(mu_) {
    writing_ = false;
    auto message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }
  // The last message, unless it is being written; null: there is none.
  std::shared_ptr<const Message> TakeUnsent() MESHRUN_REQUIRES(mu_) {
    if (queue_.size() == (writing_ ? 1 : 0)) return nullptr;
    auto message = std::move(queue_.back());
    queue_.pop_back();
    return message;
  }
  // Forgets what is not being written.
  void Drop() MESHRUN_REQUIRES(mu_) { queue_.resize(writing_ ? 1 : 0); }
  // Ends the call after the messages in the queue. A later status replaces an earlier one.
  void EndWith(absl::Status status) MESHRUN_REQUIRES(mu_) { end_ = std::move(status); }

  bool writing() const MESHRUN_REQUIRES(mu_) { return writing_; }
  bool ending() const MESHRUN_REQUIRES(mu_) { return end_.has_value(); }
  bool finished() const MESHRUN_REQUIRES(mu_) { return finished_; }
  // With the message being written.
  size_t pending() const MESHRUN_REQUIRES(mu_) { return queue_.size(); }

  Mutex mu_;

 private:
  std::deque<std::shared_ptr<const Message>> queue_ MESHRUN_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ MESHRUN_GUARDED_BY(mu_);
  bool writing_ MESHRUN_GUARDED_BY(mu_) = false;
  bool finished_ MESHRUN_GUARDED_BY(mu_) = false;
  bool starting_ MESHRUN_GUARDED_BY(mu_) = false;
};

}  // namespace meshrun::coordinator
