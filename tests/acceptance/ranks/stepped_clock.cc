// LD_PRELOAD: a host whose wall clock is stepped. Adds the seconds written in the file
// $MESHRUN_CLOCK_OFFSET, read at each call, to what the wall clocks of a process show.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

namespace {

time_t Offset() {
  const char* const path = std::getenv("MESHRUN_CLOCK_OFFSET");
  if (path == nullptr) return 0;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  char text[32] = {};
  const long n = ::syscall(SYS_read, fd, text, sizeof(text) - 1);
  ::syscall(SYS_close, fd);
  return n > 0 ? std::atol(text) : 0;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, out));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    out->tv_sec += Offset();
  }
  return result;
}

int gettimeofday(timeval* out, void*) {
  timespec now = {};
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
}
