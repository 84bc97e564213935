#include "tests/parallel/support/fork_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

extern char** environ;

namespace meshrun {
namespace {

constexpr size_t kMaxRequest = 128 << 10;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// A packet of strings, each with its NUL, and a descriptor.
void send_request(int socket, const std::string& strings, int output) {
  iovec bytes{const_cast<char*>(strings.data()), strings.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &output, sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) fail("ask the fork server");
}

// The descriptor, -1 at the end of the program that asks. `strings` has room for kMaxRequest.
int receive_request(int socket, std::string& strings) {
  iovec bytes{strings.data(), strings.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const header = count > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || (message.msg_flags & MSG_TRUNC) != 0) return -1;
  strings.resize(static_cast<size_t>(count));
  int output;
  std::memcpy(&output, CMSG_DATA(header), sizeof(int));
  return output;
}

// What the rank registers or makes from here on ends before this; what the program had before main
// is left as it is: LibTorch takes longer to empty its tables of operators than most ranks run.
void end_here(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

[[noreturn]] void become_rank(ForkServer::Body body, std::string strings, int output) {
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> pointers;
  for (size_t at = 0; at < strings.size(); at += std::strlen(&strings[at]) + 1) {
    pointers.push_back(&strings[at]);
  }
  pointers.push_back(nullptr);
  environ = pointers.data() + 1;
  on_exit(end_here, nullptr);
  std::exit(body(pointers[0]));
}

// A process between the server and the rank ends at once, so that the server's parent has the rank
// for a child. Returns the rank's pid, or a negative errno.
pid_t fork_twice(ForkServer::Body body, const std::string& strings, int output, int server) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -errno;
  const pid_t between = fork();
  if (between == 0) {
    pid_t rank = fork();
    if (rank == 0) {
      close(ends[0]);
      close(ends[1]);
      close(server);
      become_rank(body, strings, output);
    }
    if (rank < 0) rank = -errno;
    _exit(write(ends[1], &rank, sizeof(rank)) != sizeof(rank));
  }
  close(ends[1]);
  pid_t rank = between < 0 ? -errno : -EPIPE;
  if (between > 0 && read(ends[0], &rank, sizeof(rank)) != sizeof(rank)) rank = -EPIPE;
  close(ends[0]);
  // After this the rank has its new parent.
  if (between > 0) waitpid(between, nullptr, 0);
  return rank;
}

[[noreturn]] void serve(int socket, ForkServer::Body body) {
  while (true) {
    std::string strings(kMaxRequest, '\0');
    const int output = receive_request(socket, strings);
    if (output < 0) _exit(0);
    const pid_t rank = fork_twice(body, strings, output, socket);
    close(output);
    if (write(socket, &rank, sizeof(rank)) != sizeof(rank)) _exit(0);
  }
}

}  // namespace

ForkServer::ForkServer(Body body) : owner_(getpid()) {
  int ends[2];
  std::fflush(nullptr);
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) fail("PR_SET_CHILD_SUBREAPER");
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  server_ = fork();
  if (server_ < 0) fail("fork");
  if (server_ == 0) {
    close(ends[0]);
    serve(ends[1], body);
  }
  close(ends[1]);
  socket_ = ends[0];
}

ForkServer::~ForkServer() {
  if (getpid() != owner_) return;
  // Not only this end of it: a process that a test has forked may hold it, too.
  shutdown(socket_, SHUT_RDWR);
  close(socket_);
  waitpid(server_, nullptr, 0);
}

pid_t ForkServer::start(const std::string& argument, const std::vector<std::string>& environment,
                        int output) {
  std::string strings = argument + '\0';
  for (const std::string& entry : environment) strings += entry + '\0';
  if (strings.size() > kMaxRequest) {
    throw std::system_error(E2BIG, std::generic_category(), "a rank's environment");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  send_request(socket_, strings, output);
  pid_t rank = -1;
  if (read(socket_, &rank, sizeof(rank)) != sizeof(rank)) rank = -EPIPE;
  if (rank < 0) throw std::system_error(-rank, std::generic_category(), "fork a rank");
  return rank;
}

}  // namespace meshrun
