// The file in which a failed rank says why, where its launcher named one (TORCHELASTIC_ERROR_FILE).
//
// torchelastic's shape, which torchrun and meshrun both read:
//   {"message": {"message": "Type: text",
//                "extraInfo": {"py_callstack": "...", "timestamp": "1689298411"}}}
#pragma once

#include <string>

namespace meshrun::jobs {

struct Failure {
  std::string type;
  std::string text;
  std::string call_stack;
};

std::string format_error_file(const Failure& failure, long long seconds_since_epoch);

// Does nothing where no file is named. Never raises: the failure itself is what matters.
void write_error_file(const Failure& failure) noexcept;

}  // namespace meshrun::jobs
