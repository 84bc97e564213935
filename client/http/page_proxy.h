// The page in a browser of this machine: an HTTP server on 127.0.0.1 that passes calls on to the
// coordinator, over its Unix socket or with this user's certificate.
//
// Every user of this machine can connect to 127.0.0.1, and every site that a browser shows can make
// it send calls there. So each call must show a random key, which the browser holds as a cookie
// that no script can read and that it sends for no other site (SameSite=Strict, HttpOnly); must
// name this server as its host, which a name that leads here by DNS does not; and, where it says
// which page sends it, must come from this one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/http/http_client.h"
#include "core/http/message.h"

namespace meshrun::client {

// What a call must have; pure.
class PageKey {
 public:
  // `host`: "127.0.0.1:40001". `key`: letters and digits.
  PageKey(std::string host, std::string key) : host_(std::move(host)), key_(std::move(key)) {}

  // The address that gives a browser its cookie. `key`: this one, or another that is as good.
  std::string Url(const std::string& key) const;
  std::string Url() const { return Url(key_); }
  // The cookie, and the way to the page without a key, which then stands in no history.
  http::Response Welcome() const;
  // The answer to a call that is not passed on; absent: it is.
  std::optional<http::Response> Judge(const http::Request& request) const;

 private:
  bool Shows(const http::Request& request) const;

  const std::string host_;
  const std::string key_;
};

class PageProxy {
 public:
  // Where the coordinator's HTTP port is now: asked again when it does not answer.
  using Find = std::function<absl::StatusOr<HttpTarget>()>;

  // `port`: 0: any free one. ALREADY_EXISTS: another program listens there.
  static absl::StatusOr<std::unique_ptr<PageProxy>> Start(int port, HttpTarget target, Find find);
  virtual ~PageProxy() = default;

  // For a person.
  virtual std::string url() const = 0;
  // For a program's command line, which every user of this machine can read: good for one use.
  virtual std::string url_for_once() const = 0;
  // Ends all connections. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace meshrun::client
