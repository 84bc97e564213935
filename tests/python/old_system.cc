// Calls functions of deploy/floor; tests/python/wheel builds it, takes the late versions out and
// runs it. Prints what a constructor of the program has written.

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace {

const std::string kByConstructor = [] { return std::string("constructed"); }();

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

void streams() {
  std::ostringstream stream;
  stream << "abc" << 1;
  check(stream.str() == "abc1", "str() const&");
  std::stringbuf buffer;
  buffer.sputn("xyz", 3);
  check(std::move(buffer).str() == "xyz" && buffer.str().empty(), "str()&& moves");
}

void threads() {
  std::promise<int> promise;
  auto future = promise.get_future();
  check(future.wait_for(std::chrono::milliseconds(5)) == std::future_status::timeout, "a timeout");
  std::thread setter([&] { promise.set_value(7); });
  check(future.get() == 7, "a future");
  setter.join();
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread notifier([&] {
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_one();
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  notifier.join();
}

void system_calls(const char* self) {
  struct stat info;
  check(::stat(self, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 1000, "stat");
  check(::lstat("/proc/self/exe", &info) == 0 && S_ISLNK(info.st_mode), "lstat");
  check(::fstat(0, &info) == 0, "fstat");
  check(::stat("/absent", &info) == -1 && errno == ENOENT, "stat of nothing");
  check(arc4random() != arc4random() || arc4random() != arc4random(), "arc4random");
  check(!std::strcmp(sigabbrev_np(11), "SEGV") && !std::strcmp(sigabbrev_np(31), "SYS"), "signals");
  check(!sigabbrev_np(0) && !sigabbrev_np(32), "no signals");
}

void exceptions() {
  volatile long negative = -5;
  bool caught = false;
  try {
    delete[] new int[negative];
  } catch (const std::bad_array_new_length&) {
    caught = true;
  }
  check(caught, "a negative length");
  std::exception_ptr first = std::make_exception_ptr(std::string(100, 'x')), second = first;
  first = nullptr;
  try {
    std::rethrow_exception(second);
  } catch (const std::string& text) {
    check(text == std::string(100, 'x'), "the exception's value");
  }
}

}  // namespace

int main(int, char** argv) {
  streams();
  threads();
  system_calls(argv[0]);
  exceptions();
  std::puts(kByConstructor.c_str());
}
