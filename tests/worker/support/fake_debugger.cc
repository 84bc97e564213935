// A debugger that is called as gdb is ("-p PID"), attaches to the process, and has no answer: for
// tests of what becomes of the process. FAKE_DEBUGGER says how it ends:
//   deaf      it ignores SIGTERM
//   detaches  at SIGTERM it lets the process go
//   fails     it exits with 1 at once
// It does not wait for the process to stop, save to let it go: so the kernel leaves the process
// with the SIGSTOP of PTRACE_ATTACH, as where a debugger ends in that moment, or while a thread
// cannot stop yet.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  pid_t pid = 0;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "-p") pid = std::atoi(argv[i + 1]);
  }
  const char* const variable = std::getenv("FAKE_DEBUGGER");
  const std::string_view mode = variable == nullptr ? "" : variable;
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  if (::ptrace(PTRACE_ATTACH, pid, nullptr, nullptr) != 0) {
    std::perror("ptrace");
    return 1;
  }
  if (mode == "fails") return 1;
  if (mode == "detaches") {
    ::waitpid(pid, nullptr, 0);
    int signal = 0;
    sigwait(&term, &signal);
    ::ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
    std::puts("detached");
    return 1;
  }
  while (true) ::pause();
}
