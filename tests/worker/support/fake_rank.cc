// A rank without LibTorch, in a state that debuggers meet. READY names a file that it makes once it
// may be traced by all (kernel.yama.ptrace_scope 1).
//   waits
//   child PROGRAM ARGS...  it waits beside a program that it has started
//   in-kernel FILE         it is in a call of the kernel that no signal ends, until FILE is there
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string_view mode = argv[1];
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (const char* ready = std::getenv("READY")) ::close(::open(ready, O_CREAT | O_WRONLY, 0600));
  if (mode == "child" && ::fork() == 0) {
    ::execv(argv[2], argv + 2);
    ::_exit(127);
  }
  if (mode == "in-kernel" && ::vfork() == 0) {
    while (::access(argv[2], F_OK) != 0) ::usleep(1000);
    ::_exit(0);
  }
  while (true) ::pause();
}
