// From exceptions to the codes of meshrun.h, and back on ranks that did not see the exception.
//
// Threads: any. The text of the last error belongs to the thread that made the call.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "parallel/c_api/meshrun.h"

namespace meshrun::c_api {

// An error that already has its code. Its text is a sentence for the caller of the C function.
class CallError : public std::exception {
 public:
  CallError(int code, std::string text) : code_(code), text_(std::move(text)) {}
  int code() const { return code_; }
  const std::string& text() const { return text_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int code_;
  std::string text_;
};

// The exception that is being handled, with its code. For catch blocks.
CallError current_error();

// What `body` raises.
std::optional<CallError> error_of(const std::function<void()>& body);

// Runs the body of a C function: its code, and the text is kept for meshrun_last_error(). Traps of
// floating-point exceptions are off meanwhile: LibTorch's vector code divides lanes that nobody
// reads.
int run_call(const std::function<void()>& body) noexcept;

// Collective over the world: runs `body`; what it raises on a rank, all ranks raise.
void run_together(const std::function<void()>& body);

// Collective, where a rank is known to have failed: raises on all. `own`: null if this rank has
// not.
[[noreturn]] void raise_together(const CallError* own);

}  // namespace meshrun::c_api
