#include "core/http/tls_context.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <utility>

#include "core/log.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::http {
namespace {

// The last error of OpenSSL's on this thread, and none is left.
std::string TakeError() {
  std::array<char, 256> text{};
  ::ERR_error_string_n(::ERR_peek_last_error(), text.data(), text.size());
  ::ERR_clear_error();
  return text.data();
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const rpc::TlsFiles& files) {
  std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(::TLS_server_method()), ::SSL_CTX_free);
  if (context == nullptr) return absl::ResourceExhaustedError("TLS: " + TakeError());
  SSL_CTX* const raw = context.get();
  ::SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  // A resumed session would show no certificate.
  ::SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  ::SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  ::SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  const auto refuse = [](std::string_view flag, const std::string& file) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} cannot be used: {}", flag, file, TakeError()));
  };
  if (::SSL_CTX_use_certificate_chain_file(raw, files.cert.c_str()) != 1) {
    return refuse("--tls-cert", files.cert);
  }
  if (::SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return refuse("--tls-key", files.key);
  }
  if (::SSL_CTX_load_verify_locations(raw, files.ca.c_str(), nullptr) != 1) {
    return refuse("--tls-ca", files.ca);
  }
  // Tells a browser which of its certificates to offer.
  ::SSL_CTX_set_client_CA_list(raw, ::SSL_load_client_CA_file(files.ca.c_str()));
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const rpc::TlsFiles& files,
                                                             std::chrono::seconds reread) {
  MESHRUN_ASSIGN_OR_RETURN(Loaded loaded, Read(files, {}));
  return std::unique_ptr<TlsContext>(new TlsContext(files, reread, std::move(loaded)));
}

TlsContext::TlsContext(const rpc::TlsFiles& files, std::chrono::seconds reread, Loaded loaded)
    : files_(files),
      reread_(reread),
      loaded_(std::move(loaded)),
      read_at_(std::chrono::steady_clock::now()) {}

absl::StatusOr<TlsContext::Loaded> TlsContext::Read(const rpc::TlsFiles& files,
                                                    const Loaded& known) {
  Loaded loaded;
  for (const std::string* const path : {&files.cert, &files.key, &files.ca}) {
    MESHRUN_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(*path));
    loaded.text += text;
  }
  if (loaded.text == known.text) return known;
  MESHRUN_ASSIGN_OR_RETURN(loaded.context, MakeContext(files));
  return loaded;
}

std::shared_ptr<SSL_CTX> TlsContext::Current() {
  Loaded known;
  {
    MutexLock lock(mu_);
    const auto now = std::chrono::steady_clock::now();
    if (now - read_at_ < reread_) return loaded_.context;
    read_at_ = now;
    known = loaded_;
  }
  auto loaded = Read(files_, known);
  if (!loaded.ok()) {
    log::Warning("the HTTP server keeps the certificate that it has", {{"error", loaded.status()}});
    return known.context;
  }
  MutexLock lock(mu_);
  loaded_ = *std::move(loaded);
  return loaded_.context;
}

std::string PeerCertificate(const SSL& tls) {
  const std::unique_ptr<X509, decltype(&::X509_free)> certificate(::SSL_get1_peer_certificate(&tls),
                                                                  &::X509_free);
  const std::unique_ptr<BIO, decltype(&::BIO_free_all)> out(::BIO_new(::BIO_s_mem()),
                                                            &::BIO_free_all);
  if (certificate == nullptr || out == nullptr ||
      ::PEM_write_bio_X509(out.get(), certificate.get()) != 1) {
    return "";
  }
  char* data = nullptr;
  const long size = ::BIO_get_mem_data(out.get(), &data);
  return {data, static_cast<size_t>(size)};
}

}  // namespace meshrun::http
