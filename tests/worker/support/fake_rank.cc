// A rank without LibTorch, in a state that debuggers meet.
//   child PROGRAM ARGS...  it waits beside a program that it has started
#include <unistd.h>

#include <string_view>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  if (std::string_view(argv[1]) == "child" && ::fork() == 0) {
    ::execv(argv[2], argv + 2);
    ::_exit(127);
  }
  while (true) ::pause();
}
