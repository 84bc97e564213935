// Whether workers and clients will take a coordinator's certificate. If they do not, a coordinator
// that leads keeps everybody out: so it is refused at the start. Who signed it is left out, because
// callers may trust another authority than the coordinator does; and when it ends, because a
// certificate is renewed without a restart.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/rpc/security.h"

namespace meshrun::coordinator {

// INVALID_ARGUMENT: it is a certificate for clients alone. OK where no TLS is used at `listen`, or
// the file cannot be read: others say so.
absl::Status CheckServes(const rpc::Security& security, const std::string& listen);
// INVALID_ARGUMENT: it does not name the host of `address`, where standbys send callers. OK as
// above.
absl::Status CheckNamesHost(const rpc::Security& security, const std::string& address);

}  // namespace meshrun::coordinator
