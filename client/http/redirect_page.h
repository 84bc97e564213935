// The way of a browser to an address that no command line may show, because every user of this
// machine can read command lines: a file of this user's, which leads the browser on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun::client {

// HTML that leads a browser on to `address`, at once and without an entry in its history. The
// fragment of the page's own address goes along.
std::string RedirectPage(const std::string& address);
// Value of Content-Security-Policy for it: its own script may run, and nothing else.
std::string RedirectPolicy();

// Such a page in a file. It is open to this user alone (0600), in a directory of its own (0700),
// and removed with it. Threads: any.
class RedirectFile {
 public:
  // In the first of `parents` where it can be: a parent must be this user's alone to write, or let
  // nobody remove files of others, as /tmp does. The error is that of the last one.
  static absl::StatusOr<RedirectFile> Write(const std::string& address,
                                            const std::vector<std::string>& parents = Parents());
  // $XDG_RUNTIME_DIR, then $TMPDIR, then /tmp. Browsers in snaps read none of them, and nothing
  // hidden: for users of snaps $HOME comes first.
  static std::vector<std::string> Parents();

  RedirectFile(RedirectFile&& other) noexcept;
  RedirectFile& operator=(RedirectFile&&) = delete;
  ~RedirectFile() { Remove(); }

  const std::string& path() const { return path_; }
  // Idempotent; leaves path() as it is.
  void Remove() const;

 private:
  explicit RedirectFile(std::string directory);

  std::string directory_;
  std::string path_;
};

}  // namespace meshrun::client
