// A rank without LibTorch, in a state that debuggers meet.
//   child PROGRAM ARGS...  it waits beside a program that it has started
//   in-kernel FILE         it is in a call of the kernel that no signal ends, until FILE is there
#include <unistd.h>

#include <string_view>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  if (std::string_view(argv[1]) == "child") {
    if (::fork() == 0) {
      ::execv(argv[2], argv + 2);
      ::_exit(127);
    }
  } else if (::vfork() == 0) {
    while (::access(argv[2], F_OK) != 0) ::usleep(1000);
    ::_exit(0);
  }
  while (true) ::pause();
}
