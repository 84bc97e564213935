// The caller of a method of a server with TLS, from the certificate that gRPC has verified.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "core/rpc/roles.h"

namespace meshrun::rpc {

// True where a certificate was shown; false on a Unix socket.
bool ShowsCertificate(const grpc::AuthContext& context);
Identity IdentityOf(const grpc::AuthContext& context);
// In PEM's form.
std::string CertificateOf(const grpc::AuthContext& context);

// Whether a certificate, in PEM's form, holds still for a call of the method:
// certificates::Standing. Thread-safe.
using CertificateCheck = std::function<absl::Status(std::string_view pem, std::string_view method)>;

// Whether a call is let in now. `pem`: the caller's certificate. `allowed`: what certificate and
// roles say of it, which is the answer where it is an error. Thread-safe.
using CallAdmission =
    std::function<absl::Status(const Identity& caller, std::string_view pem,
                               std::string_view method, const absl::Status& allowed)>;

// Runs CheckCall before every call of a server, whatever service it belongs to: a refused call
// reaches no service. A connection may be older than the end of its certificate, or its place on a
// deny list: `standing` knows. `admit` is asked last. Both may be null. Thread-safe.
class RoleCheck : public grpc::AuthMetadataProcessor {
 public:
  RoleCheck(CertificateCheck standing, CallAdmission admit)
      : standing_(std::move(standing)), admit_(std::move(admit)) {}
  // It compares a few strings, on the thread that has read the call.
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  const CertificateCheck standing_;
  const CallAdmission admit_;
};

}  // namespace meshrun::rpc
