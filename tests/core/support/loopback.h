// Plain connections of tests to a server on 127.0.0.1.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "core/os/fd.h"

namespace meshrun::testing {

// A connection that says nothing. `host`: one of the loopback's addresses, to come from.
inline os::UniqueFd ConnectFrom(const char* host, int port) {
  os::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, host, &address.sin_addr);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

// Whether the server has ended it. What it has sent is read.
inline bool Ended(const os::UniqueFd& socket) {
  char bytes[1024];
  ssize_t got;
  while ((got = ::recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
  }
  return got == 0 || errno == ECONNRESET;
}

}  // namespace meshrun::testing
