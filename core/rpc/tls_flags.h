// The three TLS flags, the same on every program.
#pragma once

#include <CLI/CLI.hpp>

#include "core/rpc/security.h"

namespace meshrun::rpc {

inline void AddTlsFlags(CLI::App& app, TlsFiles* tls) {
  app.add_option("--tls-cert", tls->cert, "PEM file: own certificate")->envname("MESHRUN_TLS_CERT");
  app.add_option("--tls-key", tls->key, "PEM file: own private key")->envname("MESHRUN_TLS_KEY");
  app.add_option("--tls-ca", tls->ca, "PEM file: certificates that sign the peers'")
      ->envname("MESHRUN_TLS_CA");
}

}  // namespace meshrun::rpc
