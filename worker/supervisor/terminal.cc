#include "worker/supervisor/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <cerrno>
#include <utility>

#include "core/os/files.h"
#include "core/parse_integer.h"

namespace meshrun::worker {

std::optional<TerminalSize> ParseTerminalSize(std::string_view text) {
  const size_t cross = text.find('x');
  if (cross == std::string_view::npos) return std::nullopt;
  const auto columns = ParseInteger<uint16_t>(text.substr(0, cross));
  const auto rows = ParseInteger<uint16_t>(text.substr(cross + 1));
  if (!columns || !rows || *columns == 0 || *rows == 0) return std::nullopt;
  return TerminalSize{*columns, *rows};
}

std::string FormatTerminalSize(const TerminalSize& size) {
  return fmt::format("{}x{}", size.columns, size.rows);
}

absl::Status OpenTerminal(const TerminalSize& size, os::UniqueFd* reader, os::UniqueFd* writer) {
  constexpr int kFlags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  os::UniqueFd master(::posix_openpt(kFlags | O_NONBLOCK));
  if (!master || ::grantpt(master.get()) != 0 || ::unlockpt(master.get()) != 0) {
    return os::ErrnoStatus(errno, "a pseudo-terminal");
  }
#ifdef TIOCGPTPEER
  // Without its name, which may be another one's in this mount namespace.
  os::UniqueFd slave(::ioctl(master.get(), TIOCGPTPEER, kFlags));
#else
  os::UniqueFd slave;
#endif
  if (!slave) {
    char name[128];
    if (::ptsname_r(master.get(), name, sizeof(name)) == 0) slave.reset(::open(name, kFlags));
  }
  if (!slave) return os::ErrnoStatus(errno, "the end of a pseudo-terminal");
  termios mode = {};
  if (::tcgetattr(slave.get(), &mode) != 0) return os::ErrnoStatus(errno, "a pseudo-terminal");
  ::cfmakeraw(&mode);
  winsize window = {};
  window.ws_col = size.columns;
  window.ws_row = size.rows;
  if (::tcsetattr(slave.get(), TCSANOW, &mode) != 0 ||
      ::ioctl(slave.get(), TIOCSWINSZ, &window) != 0) {
    return os::ErrnoStatus(errno, "a pseudo-terminal");
  }
  *reader = std::move(master);
  *writer = std::move(slave);
  return absl::OkStatus();
}

}  // namespace meshrun::worker
