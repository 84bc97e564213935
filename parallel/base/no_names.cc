#include "parallel/base/no_names.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <system_error>

namespace meshrun {
namespace {

sockaddr_in6* ipv6_server() { return _res._u._ext.nsaddrs[0]; }

void answer_questions(int socket, const std::atomic<bool>& is_over) {
  std::array<unsigned char, NS_PACKETSZ> message;
  while (true) {
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    const ssize_t size = ::recvfrom(socket, message.data(), message.size(), 0,
                                    reinterpret_cast<sockaddr*>(&from), &length);
    if (is_over || (size < 0 && errno != EINTR)) return;
    if (size < static_cast<ssize_t>(sizeof(HEADER))) continue;
    auto& header = reinterpret_cast<HEADER&>(message);
    header.qr = 1;
    header.ra = 1;
    header.rcode = ns_r_nxdomain;
    ::sendto(socket, message.data(), static_cast<size_t>(size), 0,
             reinterpret_cast<const sockaddr*>(&from), length);
  }
}

}  // namespace

NoNames::NoNames() {
  if ((_res.options & RES_INIT) == 0 && ::res_ninit(&_res) != 0) return;
  os::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(own);
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (::bind(socket.get(), address, length) != 0) return;
  if (::getsockname(socket.get(), address, &length) != 0) return;
  try {
    server_ = std::thread(answer_questions, socket.get(), std::cref(is_over_));
  } catch (const std::system_error&) {
    return;  // no thread can be had: the name servers are asked
  }
  socket_ = std::move(socket);
  servers_ = _res.nscount;
  first_server_ = _res.nsaddr_list[0];
  if (ipv6_server() != nullptr) first_ipv6_server_ = *ipv6_server();
  options_ = _res.options;
  _res.nscount = 1;
  _res.nsaddr_list[0] = own;
  _res.options &= ~static_cast<unsigned long>(RES_USEVC);  // it has no TCP
  _res.options |= RES_NORELOAD;
}

NoNames::~NoNames() {
  if (!server_.joinable()) return;
  _res.nscount = servers_;
  _res.nsaddr_list[0] = first_server_;
  if (ipv6_server() != nullptr) *ipv6_server() = first_ipv6_server_;
  _res.options = options_;
  is_over_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);  // wakes recvfrom, though it calls itself not connected
  server_.join();
}

}  // namespace meshrun
