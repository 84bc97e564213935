// While one lives, its thread's queries to name servers are answered at once with "there is no such
// name". A name server of its own on a loopback port answers them. Names in /etc/hosts are still
// found.
//
// For code that asks for names which nobody needs. Where the name servers do not answer, as on many
// compute nodes, each question takes 5 to 10 s. Works through the thread's resolver state (man 3
// resolver), so it does nothing for names that come from systemd-resolved's module, and nothing
// where no loopback port can be had.
#pragma once

#include <arpa/nameser.h>
#include <netinet/in.h>
#include <resolv.h>

#include <atomic>
#include <thread>

#include "core/os/fd.h"

namespace meshrun {

class NoNames {
 public:
  NoNames();
  ~NoNames();
  NoNames(const NoNames&) = delete;
  NoNames& operator=(const NoNames&) = delete;

 private:
  os::UniqueFd socket_;
  std::atomic<bool> is_over_{false};
  std::thread server_;
  // Servers that the thread's resolver had before. It keeps an IPv6 server elsewhere and puts ours
  // in that place.
  int servers_ = 0;
  sockaddr_in first_server_{};
  sockaddr_in6 first_ipv6_server_{};
  unsigned long options_ = 0;
};

}  // namespace meshrun
