// The flags of core/rpc/security.h, the same on every program.
#pragma once

#include <CLI/CLI.hpp>

#include "core/rpc/security.h"

namespace meshrun::rpc {

inline void AddSecurityFlags(CLI::App& app, Security* security) {
  TlsFiles& tls = security->tls;
  app.add_option("--tls-cert", tls.cert, "PEM file: own certificate")->envname("MESHRUN_TLS_CERT");
  app.add_option("--tls-key", tls.key, "PEM file: own private key")->envname("MESHRUN_TLS_KEY");
  app.add_option("--tls-ca", tls.ca, "PEM file: certificates that sign the peers'")
      ->envname("MESHRUN_TLS_CA");
  // No variable: a test says it where a reader sees it.
  app.add_flag("--insecure-loopback", security->insecure_loopback,
               "For tests: allow plaintext on 127.0.0.1, where every user of the host can connect");
}

}  // namespace meshrun::rpc
