// A pseudo-terminal in place of a pipe, for ranks that look whether one is there. It passes bytes
// on as they are: no newline is translated, nothing is echoed, no character is a signal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/os/fd.h"

namespace meshrun::worker {

struct TerminalSize {
  uint16_t columns = 80;
  uint16_t rows = 24;
};

// "80x24". Absent where the text is anything else.
std::optional<TerminalSize> ParseTerminalSize(std::string_view text);
std::string FormatTerminalSize(const TerminalSize& size);

// `reader` does not block: it reads what is written to `writer`, and EIO once all writers are
// closed. It is nobody's controlling terminal. Errors: from the system, which has a limit on
// pseudo-terminals (kernel.pty.max).
absl::Status OpenTerminal(const TerminalSize& size, os::UniqueFd* reader, os::UniqueFd* writer);

}  // namespace meshrun::worker
