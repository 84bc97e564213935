// The bytes of one connection, as the parser of HTTP reads and writes them, with or without TLS.
//
// A deadline counts for all bytes of a request and not for each read, so that a client which sends
// a byte a second does not last. An answer has a time and, for its bytes, a least rate. After a
// deadline or an error the connection is broken, and stays so. After too many bytes of a request
// nothing more is read, and the answer can say so.
//
// Threads: that of its connection.
#pragma once

#include <httplib.h>
#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "core/http/server.h"

namespace meshrun::http {

class Wire : public httplib::Stream {
 public:
  // Speaks TLS with `context`, plaintext where it is null. The socket does not block, and outlives
  // this object.
  Wire(int socket, const Limits& limits, const std::shared_ptr<SSL_CTX>& context);

  // False: the peer shows no certificate that holds, or too slowly.
  bool Handshake();
  // Waits for the first byte of a request. False: none came in this time.
  bool AwaitRequest(std::chrono::milliseconds time);
  // The head of a request has been read; its body may follow.
  void BeginBody();
  // A piece of an endless body is written next.
  void BeginPiece() { answers_ = false; }
  // The peer has gone, or can be given nothing more.
  bool Ended() const;
  // After the last answer. Waits a moment for a peer that is still sending: a reset would take the
  // answer from it.
  void Close();

  bool broken() const { return broken_; }
  // The head of the request, or its body, has more bytes than its limit.
  bool head_too_long() const { return full_ && !in_body_; }
  bool body_too_long() const { return full_ && in_body_; }
  // Null: plaintext.
  const SSL* tls() const { return tls_.get(); }

  // httplib's.
  bool is_readable() const override { return !broken_; }
  bool is_writable() const override { return !broken_; }
  // As of read(2).
  ssize_t read(char* to, size_t size) override;
  // All of it, or -1.
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  // httplib only compares it with the most that select() takes; it never selects here.
  socket_t socket() const override { return 0; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  // As of read(2) and write(2), once they would not block.
  ssize_t Receive(char* to, size_t size, Time deadline);
  ssize_t Send(const char* from, size_t size, Time deadline);
  // `result` of OpenSSL: whether to try again, once the socket is ready; else the connection is
  // broken.
  bool AwaitTls(int result, Time deadline);
  bool AwaitSocket(short events, Time deadline);
  ssize_t Break();

  const int socket_;
  const Limits& limits_;
  std::unique_ptr<SSL, decltype(&::SSL_free)> tls_;
  bool broken_ = false;
  bool in_body_ = false;
  bool full_ = false;
  std::array<char, 8192> buffer_{};
  size_t begin_ = 0;
  size_t end_ = 0;
  // Bounds of the request that is read: by when, and how many bytes it may still have.
  Time deadline_;
  size_t room_ = 0;
  // Bounds of the answer, or the piece, that is written.
  bool answers_ = false;
  Time answer_began_;
  size_t answered_ = 0;
};

}  // namespace meshrun::http
