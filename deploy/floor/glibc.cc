// Functions that glibc gained after 2.31 and that our programs call, as a shared library that
// packages hold (docs/decisions/0019). The system's headers declare them, so
// g++ compares the signatures.

#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <tuple>

namespace {

using Main = int (*)(int, char**, char**);
using Initializer = void (*)(int, char**, char**);

// struct stat is what the kernel writes.
static_assert(sizeof(struct stat) == 144 && sizeof(struct stat64) == 144);

// Result of a system call as a function of glibc returns it.
template <typename... Arguments>
int call(long number, Arguments... arguments) {
  return static_cast<int>(::syscall(number, arguments...));
}

struct Search {
  ElfW(Addr) address;
  dl_find_object* found;
};

int look_into(dl_phdr_info* object, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const ElfW(Phdr)* holder = nullptr;
  ElfW(Addr) begin = 0, end = 0, unwind_table = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const ElfW(Addr) from = object->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_EH_FRAME) unwind_table = from;
    if (part.p_type != PT_LOAD) continue;
    if (begin == 0) begin = from;
    end = from + part.p_memsz;
    if (search.address - from < part.p_memsz) holder = &part;
  }
  if (holder == nullptr) return 0;
  *search.found = {};
  search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.found->dlfo_map_end = reinterpret_cast<void*>(end);
  search.found->dlfo_eh_frame = reinterpret_cast<void*>(unwind_table);
  return unwind_table != 0 ? 1 : -1;
}

// Runs the constructors of the program itself. glibc 2.31 leaves them to code that newer linkers no
// longer put into programs.
int construct(dl_phdr_info* program, size_t, void* data) {
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = program->dlpi_phdr[i];
    if (part.p_type == PT_DYNAMIC) {
      entry = reinterpret_cast<const ElfW(Dyn)*>(program->dlpi_addr + part.p_vaddr);
    }
  }
  ElfW(Addr) initializer = 0, array = 0;
  size_t bytes = 0;
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_INIT) initializer = program->dlpi_addr + entry->d_un.d_ptr;
    if (entry->d_tag == DT_INIT_ARRAY) array = program->dlpi_addr + entry->d_un.d_ptr;
    if (entry->d_tag == DT_INIT_ARRAYSZ) bytes = entry->d_un.d_val;
  }
  auto& [argc, argv, envp] = *static_cast<std::tuple<int, char**, char**>*>(data);
  if (initializer != 0) reinterpret_cast<Initializer>(initializer)(argc, argv, envp);
  for (size_t i = 0; i < bytes / sizeof(Initializer); ++i) {
    reinterpret_cast<const Initializer*>(array)[i](argc, argv, envp);
  }
  return 1;  // the first object is the program
}

}  // namespace

// Versions that glibc 2.31 has too.
asm(".symver old_libc_start_main, __libc_start_main@GLIBC_2.2.5");
asm(".symver old_timer_create, timer_create@GLIBC_2.3.3");
asm(".symver old_timer_settime, timer_settime@GLIBC_2.3.3");
asm(".symver old_timer_delete, timer_delete@GLIBC_2.3.3");

extern "C" {

int old_libc_start_main(Main, int, char**, Initializer, void (*)(), void (*)(), void*);
int old_timer_create(clockid_t, sigevent*, timer_t*);
int old_timer_settime(timer_t, int, const itimerspec*, itimerspec*);
int old_timer_delete(timer_t);

// libstdc++ reads it to leave out atomic operations; false is always correct.
char __libc_single_threaded = 0;

int __libc_start_main(Main main, int argc, char** argv, Initializer initializer, void (*at_end)(),
                      void (*loader_end)(), void* stack_end) {
  const Initializer constructors = [](int count, char** words, char** environment) {
    std::tuple arguments(count, words, environment);
    dl_iterate_phdr(construct, &arguments);
  };
  return old_libc_start_main(main, argc, argv, initializer != nullptr ? initializer : constructors,
                             at_end, loader_end, stack_end);
}

int stat(const char* path, struct stat* out) noexcept { return call(SYS_stat, path, out); }
int lstat(const char* path, struct stat* out) noexcept { return call(SYS_lstat, path, out); }
int fstat(int fd, struct stat* out) noexcept { return call(SYS_fstat, fd, out); }
int fstatat(int directory, const char* path, struct stat* out, int flags) noexcept {
  return call(SYS_newfstatat, directory, path, out, flags);
}
int stat64(const char* path, struct stat64* out) noexcept { return call(SYS_stat, path, out); }
int lstat64(const char* path, struct stat64* out) noexcept { return call(SYS_lstat, path, out); }
int fstat64(int fd, struct stat64* out) noexcept { return call(SYS_fstat, fd, out); }
int fstatat64(int directory, const char* path, struct stat64* out, int flags) noexcept {
  return call(SYS_newfstatat, directory, path, out, flags);
}

const char* sigabbrev_np(int signal) noexcept {
  static const char* const kNames[] = {
      nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
      "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
      "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
  return signal > 0 && signal < static_cast<int>(std::size(kNames)) ? kNames[signal] : nullptr;
}

uint32_t arc4random() noexcept {
  uint32_t out = 0;
  while (getrandom(&out, sizeof(out), 0) != sizeof(out)) {
    if (errno != EINTR) std::abort();
  }
  return out;
}

// libgcc finds with it the code that an exception passes through.
int _dl_find_object(void* address, dl_find_object* found) noexcept {
  Search search{.address = reinterpret_cast<ElfW(Addr)>(address), .found = found};
  return dl_iterate_phdr(look_into, &search) == 1 ? 0 : -1;
}

// These have two older versions, and the oldest has other identifiers of timers.
int timer_create(clockid_t clock, sigevent* event, timer_t* timer) noexcept {
  return old_timer_create(clock, event, timer);
}
int timer_settime(timer_t timer, int flags, const itimerspec* value, itimerspec* old) noexcept {
  return old_timer_settime(timer, flags, value, old);
}
int timer_delete(timer_t timer) noexcept { return old_timer_delete(timer); }

}  // extern "C"
