// A disk that is slow, short, broken or full, for the files below one directory; preloaded into
// ranks by tests/acceptance/checkpoints. What it does stands in a file, which is read at each call,
// so that a test changes it while ranks run:
//
//   MESHRUN_SHIM_BELOW   the directory
//   MESHRUN_SHIM_FILE    words, separated by spaces:
//     sync=8        seconds that fsync and fdatasync take beside their own time
//     write=0.05    seconds that each write takes
//     short         a write takes half of what it is given
//     eio           writes fail with EIO
//     eio-sync      fsync and fdatasync fail with EIO
//     enospc        writes fail with ENOSPC, and so does reserving room
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace {

bool is_below(int fd) {
  const char* const below = ::getenv("MESHRUN_SHIM_BELOW");
  if (below == nullptr) return false;
  char link[64];
  char path[4096];
  ::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link, path, sizeof(path) - 1);
  return size > 0 && std::string(path, static_cast<size_t>(size)).starts_with(below);
}

// Words of the file; empty where there is none.
std::string words() {
  const char* const name = ::getenv("MESHRUN_SHIM_FILE");
  if (name == nullptr) return "";
  const int fd = ::open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[256];
  const ssize_t size = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  return " " + std::string(text, size > 0 ? static_cast<size_t>(size) : 0) + " ";
}

bool has(const std::string& text, const char* word) {
  return text.find(" " + std::string(word) + " ") != std::string::npos;
}

void wait(const std::string& text, const char* key) {
  const size_t place = text.find(" " + std::string(key) + "=");
  if (place == std::string::npos) return;
  const double seconds = ::strtod(text.c_str() + place + 2 + ::strlen(key), nullptr);
  ::usleep(static_cast<useconds_t>(seconds * 1e6));
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// What a write is allowed to do: an error, or how many bytes.
int refusal(int fd, size_t& count) {
  if (!is_below(fd)) return 0;
  const std::string text = words();
  wait(text, "write");
  if (has(text, "eio")) return EIO;
  if (has(text, "enospc")) return ENOSPC;
  if (has(text, "short") && count > 1) count /= 2;
  return 0;
}

int sync_refusal(int fd) {
  if (!is_below(fd)) return 0;
  const std::string text = words();
  wait(text, "sync");
  return has(text, "eio-sync") ? EIO : 0;
}

int fail(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (const int error = refusal(fd, count)) return fail(error);
  return real(fd, bytes, count, offset);
}

ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  if (const int error = refusal(fd, count)) return fail(error);
  return real(fd, bytes, count, offset);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (const int error = refusal(fd, count)) return fail(error);
  return real(fd, bytes, count);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  static const auto real = next<int (*)(int, int, off_t, off_t)>("fallocate");
  if (is_below(fd) && has(words(), "enospc")) return fail(ENOSPC);
  return real(fd, mode, offset, length);
}

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  if (const int error = sync_refusal(fd)) return fail(error);
  return real(fd);
}

int fdatasync(int fd) {
  static const auto real = next<int (*)(int)>("fdatasync");
  if (const int error = sync_refusal(fd)) return fail(error);
  return real(fd);
}

}  // extern "C"
