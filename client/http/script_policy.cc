#include "client/http/script_policy.h"

#include <fmt/format.h>

#include "absl/strings/escaping.h"
#include "core/hash.h"

namespace meshrun::client {

std::string ScriptPolicy(std::string_view script) {
  return fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; img-src data:; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'",
      absl::Base64Escape(Sha256(script)));
}

}  // namespace meshrun::client
