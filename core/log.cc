#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>

namespace meshrun::log {
namespace {

struct Sink {
  std::shared_ptr<spdlog::logger> logger;
  std::string component = "meshrun";
  Format format = Format::kText;
};

// Never destroyed: threads may log while the process ends.
Sink& TheSink() {
  static Sink* const sink = [] {
    auto* s = new Sink;
    s->logger = std::make_shared<spdlog::logger>("meshrun",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    s->logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
    s->logger->flush_on(spdlog::level::debug);
    return s;
  }();
  return *sink;
}

std::string Quote(std::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool NeedsQuotes(std::string_view text) {
  return text.empty() || text.find_first_of(" \t\n\"=") != std::string_view::npos;
}

std::string Render(std::string_view message, Fields fields) {
  const Sink& sink = TheSink();
  std::string line;
  if (sink.format == Format::kJson) {
    line = fmt::format(",\"component\":{},\"message\":{}", Quote(sink.component), Quote(message));
    for (const Field& f : fields) {
      line += fmt::format(",{}:{}", Quote(f.key), f.quoted ? Quote(f.value) : f.value);
    }
    return line + "}";
  }
  line = fmt::format("{}: {}", sink.component, message);
  for (const Field& f : fields) {
    line +=
        fmt::format(" {}={}", f.key, f.quoted && NeedsQuotes(f.value) ? Quote(f.value) : f.value);
  }
  return line;
}

void Write(spdlog::level::level_enum level, std::string_view message, Fields fields) {
  Sink& sink = TheSink();
  if (sink.logger->should_log(level)) sink.logger->log(level, Render(message, fields));
}

}  // namespace

void Configure(std::string_view component, Format format, Level level) {
  Sink& sink = TheSink();
  sink.component = std::string(component);
  sink.format = format;
  if (format == Format::kJson) {
    sink.logger->set_pattern("{\"ts\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\"%v");
  }
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  sink.logger->set_level(kLevels[static_cast<int>(level)]);
}

absl::Status ParseLevel(std::string_view text, Level* level) {
  static constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
  for (int i = 0; i < 4; ++i) {
    if (text == kNames[i]) {
      *level = static_cast<Level>(i);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("log level '{}' is unknown: write debug, info, warning or error", text));
}

void Debug(std::string_view message, Fields fields) {
  Write(spdlog::level::debug, message, fields);
}
void Info(std::string_view message, Fields fields) { Write(spdlog::level::info, message, fields); }
void Warning(std::string_view message, Fields fields) {
  Write(spdlog::level::warn, message, fields);
}
void Error(std::string_view message, Fields fields) { Write(spdlog::level::err, message, fields); }

}  // namespace meshrun::log
