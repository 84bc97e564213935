#include "coordinator/services/sender.h"

#include "core/rpc/caller.h"

namespace meshrun::coordinator {

Sender SenderOf(const grpc::CallbackServerContext& context) {
  Sender out{.peer = context.peer()};
  const auto peer = context.auth_context();
  if (!rpc::ShowsCertificate(*peer)) return out;
  out.shows_certificate = true;
  out.identity = rpc::IdentityOf(*peer);
  out.certificate = rpc::CertificateOf(*peer);
  return out;
}

}  // namespace meshrun::coordinator
