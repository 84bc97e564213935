#include "parallel/elastic/stop_signal.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace meshrun {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> requested_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void request(int signal_number) {
  int nobody = 0;
  requested_signal.compare_exchange_strong(nobody, signal_number);
}

void handle(int signal_number) {
  static_assert(std::atomic<int64_t>::is_always_lock_free, "used in a signal handler");
  static constinit RepeatedSignal terminate;
  static constinit RepeatedSignal interrupt;
  request(signal_number);
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  RepeatedSignal& same = signal_number == SIGINT ? interrupt : terminate;
  if (!same.insists(int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec)) return;
  // It comes as soon as this handler returns.
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

}  // namespace

void catch_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigaction(signal_number, &action, nullptr);
    sigaddset(&signals, signal_number);
  }
  // A parent may have left them blocked.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void request_stop(IntArgument signal_number) { request(signal_number.to_int()); }

bool RepeatedSignal::insists(int64_t now) {
  constexpr int64_t kTogether = 1'000'000'000;
  int64_t first = 0;
  return !first_.compare_exchange_strong(first, now) && now - first > kTogether;
}

void stop_together() {
  request_stop(SIGTERM);
  std::signal(SIGTERM, SIG_IGN);
}

bool stop_requested() { return requested_signal != 0; }

int stop_signal() { return requested_signal; }

}  // namespace meshrun
