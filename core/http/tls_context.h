// TLS of a server whose certificates are renewed while it runs. It is mutual: a peer without a
// certificate that the authority has signed is refused. Threads: any.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "core/rpc/security.h"

namespace meshrun::http {

class TlsContext {
 public:
  // NOT_FOUND or INVALID_ARGUMENT names the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const rpc::TlsFiles& files,
                                                          std::chrono::seconds reread);

  // For a new connection. The files are read again every `reread`; while they are not a pair that
  // works, as in the middle of a renewal, the last one that did holds.
  std::shared_ptr<SSL_CTX> Current() MESHRUN_EXCLUDES(mu_);

 private:
  struct Loaded {
    // What the files held.
    std::string text;
    std::shared_ptr<SSL_CTX> context;
  };

  TlsContext(const rpc::TlsFiles& files, std::chrono::seconds reread, Loaded loaded);
  // `known`: the context of the same text is not made again.
  static absl::StatusOr<Loaded> Read(const rpc::TlsFiles& files, const Loaded& known);

  const rpc::TlsFiles files_;
  const std::chrono::seconds reread_;
  Mutex mu_;
  Loaded loaded_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point read_at_ MESHRUN_GUARDED_BY(mu_);
};

// The certificate that the peer has shown, in PEM's form; empty: none.
std::string PeerCertificate(const SSL& tls);

}  // namespace meshrun::http
