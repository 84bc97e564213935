// One TCP connection handed on to a server, until it is told to swallow: then both ends still have
// a live socket, and no byte arrives any more, as when a host loses its power.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "core/os/fd.h"

namespace meshrun::testing {

class ByteProxy {
 public:
  // On 127.0.0.1, to a port there.
  explicit ByteProxy(uint16_t server_port);
  ~ByteProxy();

  std::string address() const;
  void Swallow() { swallow_ = true; }
  // HTTP/2 PING frames that the client has sent of its own.
  int client_pings() const { return client_pings_; }

 private:
  void Run();
  void CountPings(const char* data, size_t size);

  os::UniqueFd listener_;
  os::UniqueFd stop_;
  uint16_t port_ = 0;
  const uint16_t server_port_;
  std::atomic<bool> swallow_ = false;
  std::atomic<int> client_pings_ = 0;
  // What the client has sent of a frame that is not whole yet.
  std::string frames_;
  bool preface_seen_ = false;
  std::thread thread_;
};

}  // namespace meshrun::testing
