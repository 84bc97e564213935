#include "parallel/elastic/stop_signal.h"

#include <atomic>
#include <csignal>

namespace meshrun {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> requested_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void handle(int signal_number) {
  int nobody = 0;
  requested_signal.compare_exchange_strong(nobody, signal_number);
}

}  // namespace

void catch_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(signal_number, &action, nullptr);
    sigaddset(&signals, signal_number);
  }
  // A parent may have left them blocked.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void request_stop(IntArgument signal_number) { handle(signal_number.to_int()); }

void stop_together() {
  request_stop(SIGTERM);
  std::signal(SIGTERM, SIG_IGN);
}

bool stop_requested() { return requested_signal != 0; }

int stop_signal() { return requested_signal; }

}  // namespace meshrun
