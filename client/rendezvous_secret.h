// What the nodes of a `meshrun run --nnodes` show each other: one short text, from which each of
// them derives the same certificate authority and signs its own certificate. So nothing has to be
// handed out, and node 0 is known before it is called.
//
//   <fingerprint>.<token>   32 and 32 hexadecimal digits
//   token                   128 random bits; the authority's key is derived from them
//   fingerprint             of that key: a text that was copied wrongly is told at once
//
// Whoever has it is a member: see docs/security.md.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "core/clock.h"

namespace meshrun::client {

class RendezvousSecret {
 public:
  static absl::StatusOr<RendezvousSecret> Make();
  // White space around it does not matter. INVALID_ARGUMENT: it is damaged, or something else; the
  // sentence does not show it.
  static absl::StatusOr<RendezvousSecret> Parse(std::string_view text);
  // INVALID_ARGUMENT: as Parse, or others than this user can read the file. NOT_FOUND.
  static absl::StatusOr<RendezvousSecret> Read(const std::string& path);
  // With mode 0600.
  absl::Status Write(const std::string& path) const;

  const std::string& text() const { return text_; }

  struct Holder {
    // The common name: jobs are submitted under it.
    std::string user;
    // At which it is reached. Empty: it does not serve.
    std::string host;
  };
  // Makes ca.crt, tls.crt and tls.key (0600) in `directory`.
  absl::Status WriteCertificate(const Holder& holder, const std::string& directory,
                                WallNanos now) const;

 private:
  explicit RendezvousSecret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace meshrun::client
