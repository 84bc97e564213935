#include "parallel/c_api/call_error.h"

#include <cfenv>
#include <new>
#include <stdexcept>
#include <string>

#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/base/errors.h"
#include "parallel/c_api/arguments.h"
#include "parallel/c_api/world.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::c_api {
namespace {

thread_local std::string last_error_text;

class HeldFloatingPointTraps {
 public:
  HeldFloatingPointTraps() { std::feholdexcept(&before_); }
  ~HeldFloatingPointTraps() { std::fesetenv(&before_); }
  HeldFloatingPointTraps(const HeldFloatingPointTraps&) = delete;
  HeldFloatingPointTraps& operator=(const HeldFloatingPointTraps&) = delete;

 private:
  std::fenv_t before_;
};

template <typename Type>
bool is(const c10::Error& error) {
  return dynamic_cast<const Type*>(&error) != nullptr;
}

int code_of(const c10::Error& error) {
  if (is<UninitializedError>(error)) return MESHRUN_INVALID_STATE;
  if (is<EnvironmentError>(error)) return MESHRUN_ENVIRONMENT;
  if (is<CheckpointError>(error)) return MESHRUN_FILE;
  if (is<c10::OutOfMemoryError>(error)) return MESHRUN_OUT_OF_MEMORY;
  if (is<c10::NotImplementedError>(error)) return MESHRUN_NOT_SUPPORTED;
  if (is<c10::DistError>(error)) return MESHRUN_COMMUNICATION;
  if (is<c10::ValueError>(error)) return MESHRUN_INVALID_ARGUMENT;
  return MESHRUN_MODEL;
}

}  // namespace

CallError current_error() {
  try {
    throw;
  } catch (const CallError& error) {
    return error;
  } catch (const c10::Error& error) {
    return {code_of(error), error.what_without_backtrace()};
  } catch (const std::bad_alloc&) {
    return {MESHRUN_OUT_OF_MEMORY, "this process has no memory left"};
  } catch (const std::invalid_argument& error) {
    return {MESHRUN_INVALID_ARGUMENT, error.what()};
  } catch (const std::exception& error) {
    return {MESHRUN_INTERNAL, error.what()};
  } catch (...) {
    return {MESHRUN_INTERNAL, "an exception without a text"};
  }
}

std::optional<CallError> error_of(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (...) {
    return current_error();
  }
}

int run_call(const std::function<void()>& body) noexcept {
  const HeldFloatingPointTraps held;
  try {
    body();
    return MESHRUN_OK;
  } catch (...) {
    try {
      const CallError error = current_error();
      last_error_text = error.text();
      return error.code();
    } catch (...) {
      return MESHRUN_OUT_OF_MEMORY;
    }
  }
}

void run_together(const std::function<void()>& body) {
  DistributedManager& manager = joined_world();
  const std::optional<CallError> own = error_of(body);
  const std::string text =
      own ? fmt::format("{} rank {}: {}", own->code(), manager.rank(), own->text()) : "";
  const std::string common = common_problem(*manager.world(), manager.device(), text);
  if (common.empty()) return;
  if (own) throw *own;
  const size_t space = common.find(' ');
  throw CallError(std::stoi(common.substr(0, space)), common.substr(space + 1));
}

void raise_together(const CallError* own) {
  run_together([own] {
    if (own != nullptr) throw *own;
  });
  throw CallError(MESHRUN_INTERNAL, "a rank reported an error, and then none had one");
}

}  // namespace meshrun::c_api

extern "C" {

const char* meshrun_last_error(void) { return meshrun::c_api::last_error_text.c_str(); }

int meshrun_fail(int code, const char* text) {
  return meshrun::c_api::run_call([&] {
    meshrun::c_api::require_pointer(text, "text");
    throw meshrun::c_api::CallError(code, text);
  });
}

}  // extern "C"
