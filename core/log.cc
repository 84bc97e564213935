#include "core/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>

#include "core/line_queue.h"

namespace meshrun::log {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v";

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
    s->logger->set_pattern(kPattern);
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

constexpr size_t kMostWaitingBytes = 1 << 20;
constexpr std::chrono::seconds kFarewell(1);

// Hands lines to a thread, so that a stderr that hangs holds nobody.
class QueueSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  bool Flush() { return queue_.Flush(kFarewell); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lost_ > 0) {
      const std::string text =
          Render("lines were lost: stderr did not take them", {{"lines", lost_}});
      if (!Push({message.logger_name, spdlog::level::warn, text})) {
        ++lost_;
        return;
      }
      lost_ = 0;
    }
    if (!Push(message)) ++lost_;
  }
  void flush_() override {}
  bool Push(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    return queue_.TryPush({line.data(), line.size()});
  }

  LineQueue queue_{STDERR_FILENO, kMostWaitingBytes};
  uint64_t lost_ = 0;
};

void Write(spdlog::level::level_enum level, std::string_view message, Fields fields) {
  try {
    Sink& sink = TheSink();
    if (sink.logger->should_log(level)) sink.logger->log(level, Render(message, fields));
  } catch (const std::bad_alloc&) {
    // Who logs that memory is short must not fail for it.
  }
}

}  // namespace

void Configure(std::string_view component, Format format, Level level) {
  Sink& sink = TheSink();
  sink.component = std::string(component);
  sink.format = format;
  static const auto& queue = *new std::shared_ptr<QueueSink>(std::make_shared<QueueSink>());
  sink.logger->sinks() = {queue};
  sink.logger->set_pattern(kPattern);
  std::atexit([] { queue->Flush(); });
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
