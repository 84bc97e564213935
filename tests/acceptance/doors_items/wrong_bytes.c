/* A network adapter that damages large messages, by LD_PRELOAD: one bit in the middle of what UCX reads at once is turned. gRPC reads
 * with recvmsg, and short reads are left alone, so that the processes still find each other. MESHRUN_TEST_DAMAGED_RANK: only this rank's
 * adapter does so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { kLarge = 4096 };

static int is_damaged(void) {
  const char* const only = getenv("MESHRUN_TEST_DAMAGED_RANK");
  const char* const rank = getenv("RANK");
  return only == NULL || (rank != NULL && strcmp(only, rank) == 0);
}

ssize_t recv(int socket, void* data, size_t size, int flags) {
  static ssize_t (*real)(int, void*, size_t, int);
  if (real == NULL) real = (ssize_t(*)(int, void*, size_t, int))dlsym(RTLD_NEXT, "recv");
  const ssize_t got = real(socket, data, size, flags);
  const int is_large = got >= kLarge && (flags & MSG_PEEK) == 0;
  if (is_large && is_damaged()) ((unsigned char*)data)[got / 2] ^= 1;
  return got;
}
