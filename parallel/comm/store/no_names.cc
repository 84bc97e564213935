#include "parallel/comm/store/no_names.h"

#include <sys/socket.h>

#include <array>
#include <cstddef>

namespace meshrun {
namespace {

bool same(const sockaddr_in& a, const sockaddr_in& b) {
  return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
}

// Until a message from itself.
void answer_questions(int socket, const sockaddr_in& self) {
  std::array<unsigned char, NS_PACKETSZ> message;
  while (true) {
    sockaddr_in from{};
    socklen_t length = sizeof(from);
    const ssize_t size = ::recvfrom(socket, message.data(), message.size(), 0,
                                    reinterpret_cast<sockaddr*>(&from), &length);
    if (size < 0 || same(from, self)) return;
    if (static_cast<size_t>(size) < sizeof(HEADER)) continue;
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
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address_);
  auto* const address = reinterpret_cast<sockaddr*>(&address_);
  if (::bind(socket.get(), address, length) != 0) return;
  if (::getsockname(socket.get(), address, &length) != 0) return;
  server_ = std::thread(answer_questions, socket.get(), address_);
  socket_ = std::move(socket);
  servers_ = _res.nscount;
  first_server_ = _res.nsaddr_list[0];
  options_ = _res.options;
  _res.nscount = 1;
  _res.nsaddr_list[0] = address_;
  _res.options &= ~static_cast<unsigned long>(RES_USEVC);  // it has no TCP
}

NoNames::~NoNames() {
  if (!server_.joinable()) return;
  _res.nscount = servers_;
  _res.nsaddr_list[0] = first_server_;
  _res.options = options_;
  ::sendto(socket_.get(), "", 0, 0, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_));
  server_.join();
}

}  // namespace meshrun
