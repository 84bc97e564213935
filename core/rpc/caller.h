// Who calls a method of a server with TLS: from the certificate that gRPC has verified.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>

#include <map>
#include <string>

#include "core/rpc/roles.h"

namespace meshrun::rpc {

// True where a certificate was shown; false on a Unix socket.
bool ShowsCertificate(const grpc::AuthContext& context);
Identity IdentityOf(const grpc::AuthContext& context);

// Runs CheckCall before every call of a server, whatever service it belongs to: a refused call
// reaches no service. Thread-safe.
class RoleCheck : public grpc::AuthMetadataProcessor {
 public:
  // It compares a few strings, on the thread that has read the call.
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override;
};

}  // namespace meshrun::rpc
