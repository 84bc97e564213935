/* A network adapter that damages large messages, by LD_PRELOAD: one bit in the middle of what UCX reads at once is turned. gRPC reads
 * with recvmsg, and short reads are left alone, so that the processes still find each other. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { kLarge = 4096 };

ssize_t recv(int socket, void* data, size_t size, int flags) {
  static ssize_t (*real)(int, void*, size_t, int);
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t, int))dlsym(RTLD_NEXT, "recv");
  const ssize_t got = real(socket, data, size, flags);
  if (got >= kLarge && (flags & MSG_PEEK) == 0) ((unsigned char*)data)[got / 2] ^= 1;
  return got;
}
