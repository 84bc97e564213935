// Structured logging: a sentence and key=value fields, as text or as one JSON object per line.
//
//   log::Info("node lost", {{"node", node_id}, {"silent_ms", silence}});
//
// Thread-safe. Lines go to stderr. Nothing is logged per training step at info. After Configure no
// caller waits for stderr: a thread writes, and lines that it has no room for (1 MiB) are lost and
// counted, which the next line says. A line that there is no memory for is lost too: logging raises
// nothing.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace meshrun::log {

enum class Format { kText, kJson };
enum class Level { kDebug, kInfo, kWarning, kError };

// One field; numbers and booleans stay such in JSON.
struct Field {
  Field(std::string_view k, std::string_view v) : key(k), value(v), quoted(true) {}
  Field(std::string_view k, const char* v) : Field(k, std::string_view(v)) {}
  Field(std::string_view k, const std::string& v) : Field(k, std::string_view(v)) {}
  Field(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  Field(std::string_view k, const absl::Status& v) : Field(k, std::string_view(v.ToString())) {}
  template <typename Number>
  requires(std::integral<Number> || std::floating_point<Number>) Field(std::string_view k, Number v)
      : key(k), value(std::to_string(v)) {}

  std::string_view key;
  std::string value;
  bool quoted = false;
};

using Fields = std::initializer_list<Field>;

// `component` appears on each line, for example "coordinator". Call once, at the start of main.
// What waits when the process exits is written first, unless that takes a second.
void Configure(std::string_view component, Format format, Level level);

// "debug", "info", "warning", "error"; INVALID_ARGUMENT lists them otherwise.
absl::Status ParseLevel(std::string_view text, Level* level);

void Debug(std::string_view message, Fields fields = {});
void Info(std::string_view message, Fields fields = {});
void Warning(std::string_view message, Fields fields = {});
void Error(std::string_view message, Fields fields = {});

}  // namespace meshrun::log
