// Which handler answers which path, and which row of the table of roles its callers need.
#pragma once

#include <map>
#include <string>

#include "core/http/message.h"

namespace meshrun::http {

class Routes {
 public:
  // `path`: a whole one, or with a '/' at its end all that begin with it, of which the longest
  // decides. `method`: as of rpc::CheckCall, for callers with a certificate; empty: the handler
  // checks them itself. GET and HEAD alone, unless it takes POST: then it is given every method.
  void Add(std::string path, std::string method, Handler handler, bool takes_post = false);

  // NOT_FOUND (404), PERMISSION_DENIED (403), MethodNotAllowed.
  Answer Handle(const Request& request) const;

 private:
  struct Route {
    std::string method;
    Handler handler;
    bool takes_post = false;
  };
  const Route* Find(const std::string& path) const;

  std::map<std::string, Route> routes_;
};

}  // namespace meshrun::http
