// LD_PRELOAD: a file system that hangs. Calls on paths below $MESHRUN_HANG_BELOW wait for as long
// as the file $MESHRUN_HANG_WHILE exists, in every process that inherits both. With
// $MESHRUN_HANG_ONLY only what makes data durable hangs, and what is cached can be read.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

void WaitWhile(const char* flag) {
  while (::syscall(SYS_faccessat, AT_FDCWD, flag, F_OK) == 0) {
    const timespec pause = {0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

void Hold(const char* path) {
  const char* const below = std::getenv("MESHRUN_HANG_BELOW");
  const char* const flag = std::getenv("MESHRUN_HANG_WHILE");
  if (below == nullptr || flag == nullptr || path == nullptr) return;
  if (std::strncmp(path, below, std::strlen(below)) == 0) WaitWhile(flag);
}

bool Only() { return std::getenv("MESHRUN_HANG_ONLY") != nullptr; }

void OnPath(const char* path) {
  if (!Only()) Hold(path);
}

void OnSync(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const long n = ::syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof(path) - 1);
  if (n <= 0) return;
  path[n] = '\0';
  Hold(path);
}

void OnFd(int fd) {
  if (!Only()) OnSync(fd);
}

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

// Forwards a call after waiting for its path or descriptor.
#define FORWARD(result, name, parameters, wait, arguments) \
  result name parameters {                                 \
    static auto* const next = Next(&name, #name);          \
    wait;                                                  \
    return next arguments;                                 \
  }
#define FORWARD_OPEN(name)                                                              \
  int name(const char* path, int flags, ...) {                                          \
    static auto* const next =                                                           \
        reinterpret_cast<int (*)(const char*, int, mode_t)>(::dlsym(RTLD_NEXT, #name)); \
    va_list arguments;                                                                  \
    va_start(arguments, flags);                                                         \
    const mode_t mode = ModeOf(flags, arguments);                                       \
    va_end(arguments);                                                                  \
    OnPath(path);                                                                       \
    return next(path, flags, mode);                                                     \
  }

extern "C" {
FORWARD_OPEN(open)
FORWARD_OPEN(open64)
FORWARD(int, stat, (const char* path, struct stat* out), OnPath(path), (path, out))
FORWARD(int, lstat, (const char* path, struct stat* out), OnPath(path), (path, out))
FORWARD(int, fstatat, (int fd, const char* path, struct stat* out, int flags), OnPath(path),
        (fd, path, out, flags))
FORWARD(int, access, (const char* path, int mode), OnPath(path), (path, mode))
FORWARD(int, mkdir, (const char* path, mode_t mode), OnPath(path), (path, mode))
FORWARD(int, chdir, (const char* path), OnPath(path), (path))
FORWARD(int, rename, (const char* from, const char* to), OnPath(from), (from, to))
FORWARD(int, unlink, (const char* path), OnPath(path), (path))
FORWARD(int, rmdir, (const char* path), OnPath(path), (path))
FORWARD(DIR*, opendir, (const char* path), OnPath(path), (path))
FORWARD(int, fsync, (int fd), OnSync(fd), (fd))
FORWARD(int, fdatasync, (int fd), OnSync(fd), (fd))
FORWARD(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t at), OnFd(fd),
        (fd, data, size, at))
FORWARD(ssize_t, pwrite64, (int fd, const void* data, size_t size, off64_t at), OnFd(fd),
        (fd, data, size, at))
FORWARD(ssize_t, pread, (int fd, void* data, size_t size, off_t at), OnFd(fd), (fd, data, size, at))
}
