// The page in a browser of this machine: an HTTP server on 127.0.0.1 that passes calls on to the
// coordinator, over its Unix socket or with this user's certificate.
//
// Every user of this machine can connect to 127.0.0.1, and every site that a browser shows can make
// it send calls there. So a call must have two random numbers of 128 bits: one in its path, and one
// in a cookie. It must name this server as its host, which a name that leads here by DNS does not;
// and, where it says which page sends it, must come from this one.
//
// Why both. A cookie alone goes to all ports of 127.0.0.1, also with SameSite=Strict: browsers
// count them as one site, and a server of another user at another port would get it. This cookie is
// for the secret path alone, which that server does not know: Referrer-Policy keeps the path out of
// what the browser sends elsewhere. The path alone would stand in the browser's history, and be
// good for everybody who sees it. A key that scripts hold (sessionStorage, Authorization) would go
// to no other port either, but not with pictures, module scripts and new tabs, and any script on
// the page could read it.
//
// The key comes to the browser in an address with "?key=", which stands on this user's terminal and
// in a file of his (redirect_page.h), and on no command line.
//
// Left: root sees everything; and a server that had this port before, and whose pages this browser
// has shown, may have left a service worker, which sees what the browser does at this port.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/http/http_client.h"
#include "core/http/message.h"

namespace meshrun::client {

// What a call must have; pure.
class PageKey {
 public:
  // Whether a key that is not this one is as good. Asked only about calls that it would let in.
  using IsGood = std::function<bool(std::string_view key)>;

  // Random letters and digits, none of which can stand for another.
  struct Secrets {
    // In the address that leads to the page.
    std::string key;
    // The page is below /s/PLACE/.
    std::string place;
    std::string cookie;
  };

  // `host`: "127.0.0.1:40001".
  PageKey(std::string host, Secrets secrets);

  // The address that gives a browser its cookie. `key`: this one, or another that is as good.
  std::string Url(const std::string& key) const;
  std::string Url() const { return Url(secrets_.key); }
  // The answer to a call that is not passed on: a refusal or, for the key's address, the cookie and
  // the way to the page. Absent: the call is passed on.
  std::optional<http::Response> Judge(const http::Request& request,
                                      const IsGood& is_good = nullptr) const;
  // For a call that is passed on.
  std::string_view PathAtCoordinator(std::string_view path) const;

 private:
  http::Response Welcome() const;
  bool Shows(const http::Request& request) const;

  const std::string host_;
  const Secrets secrets_;
  // "/s/PLACE/"
  const std::string path_;
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
  // For a browser that this program starts: good for one use. It must stand on no command line all
  // the same, because another user could be faster.
  virtual std::string url_for_once() const = 0;
  // `used` is called when url_for_once() is used, on a thread of the server, before Stop() returns.
  virtual void OnUse(std::function<void()> used) = 0;
  // Ends all connections. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace meshrun::client
