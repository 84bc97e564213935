#include "jobs/runtime/error_file.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "parallel/checkpoint/atomic_file.h"

namespace meshrun::jobs {

std::string format_error_file(const Failure& failure, long long seconds_since_epoch) {
  const nlohmann::json extra = {{"py_callstack", failure.call_stack},
                                {"timestamp", std::to_string(seconds_since_epoch)}};
  const std::string text = failure.type + ": " + failure.text;
  const nlohmann::json content = {{"message", {{"message", text}, {"extraInfo", extra}}}};
  // Text of an exception may hold any bytes; JSON may not.
  return content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void write_error_file(const Failure& failure) noexcept try {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  write_file_atomically(path, format_error_file(failure, seconds));
} catch (const std::exception& error) {
  std::cerr << "the error file could not be written: " << error.what() << std::endl;
}

}  // namespace meshrun::jobs
