#include "core/line_queue.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/mutex.h"

namespace meshrun {
namespace {

// A descriptor that reports an error loses the rest.
void WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(n);
    } else if (errno == EAGAIN) {
      pollfd room = {fd, POLLOUT, 0};
      ::poll(&room, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

struct LineQueue::Shared {
  Shared(int descriptor, size_t most) : fd(descriptor), most_bytes(most) {}
  void Write() MESHRUN_EXCLUDES(mu);

  const int fd;
  const size_t most_bytes;
  Mutex mu;
  CondVar changed;
  std::string waiting MESHRUN_GUARDED_BY(mu);
  bool writing MESHRUN_GUARDED_BY(mu) = false;
  bool closed MESHRUN_GUARDED_BY(mu) = false;
};

void LineQueue::Shared::Write() {
  while (true) {
    std::string bytes;
    {
      MutexLock lock(mu);
      writing = false;
      changed.NotifyAll();
      while (waiting.empty() && !closed) changed.Wait(mu);
      if (closed) return;
      bytes.swap(waiting);
      writing = true;
    }
    WriteAll(fd, bytes);
  }
}

LineQueue::LineQueue(int fd, size_t most_bytes)
    : shared_(std::make_shared<Shared>(fd, most_bytes)) {
  std::thread([shared = shared_] { shared->Write(); }).detach();
}

LineQueue::~LineQueue() {
  MutexLock lock(shared_->mu);
  shared_->closed = true;
  shared_->changed.NotifyAll();
}

bool LineQueue::TryPush(std::string_view line) {
  MutexLock lock(shared_->mu);
  if (shared_->waiting.size() + line.size() > shared_->most_bytes) return false;
  const bool first = shared_->waiting.empty();
  shared_->waiting += line;
  if (first) shared_->changed.NotifyAll();
  return true;
}

bool LineQueue::Flush(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(shared_->mu);
  while (!shared_->waiting.empty() || shared_->writing) {
    if (!shared_->changed.WaitUntil(shared_->mu, deadline)) return false;
  }
  return true;
}

}  // namespace meshrun
