#include "client/cli/event_queue.h"

#include <sys/eventfd.h>

#include <chrono>
#include <utility>

namespace meshrun::client {
namespace {

size_t OutputBytes(const Event& event) {
  const auto* output = std::get_if<Output>(&event);
  return output == nullptr ? 0 : output->chunk.data().size();
}

}  // namespace

EventQueue::EventQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool EventQueue::Push(Event event, const std::stop_token& stop) {
  const size_t bytes = OutputBytes(event);
  {
    MutexLock lock(mu_);
    while (bytes > 0 && output_bytes_ > kMaxOutputBytes) {
      if (stop.stop_requested()) return false;
      // TakeAll wakes it; the deadline is for a stop, which wakes nothing.
      room_.WaitUntil(mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
    }
    output_bytes_ += bytes;
    events_.push_back(std::move(event));
  }
  ::eventfd_write(fd_.get(), 1);
  return true;
}

std::vector<Event> EventQueue::TakeAll() {
  eventfd_t count;
  ::eventfd_read(fd_.get(), &count);
  std::vector<Event> events;
  MutexLock lock(mu_);
  for (Event& event : events_) events.push_back(std::move(event));
  events_.clear();
  output_bytes_ = 0;
  room_.NotifyAll();
  return events;
}

}  // namespace meshrun::client
