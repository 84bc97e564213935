#include "parallel/nn/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "fmt/format.h"
#include "parallel/base/process.h"

namespace meshrun::detail {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kEnd = "\n]\n";

// Microseconds, which is what traces count in. As text, since a double has too few digits.
std::string microseconds(int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

std::string metadata(const char* what, int rank, int64_t row, const ordered_json& arguments) {
  return ordered_json{{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", arguments}}
      .dump();
}

std::string event_text(const TraceEvent& event, int rank, int64_t row) {
  ordered_json arguments = {{"step", event.step}};
  if (event.bytes) arguments["bytes"] = *event.bytes;
  const std::string times =
      event.end ? fmt::format(R"("ph":"X","ts":{},"dur":{})", microseconds(event.begin),
                              microseconds(std::max<int64_t>(*event.end - event.begin, 0)))
                : fmt::format(R"("ph":"i","s":"t","ts":{})", microseconds(event.begin));
  return fmt::format(R"({{"name":{},{},"pid":{},"tid":{},"args":{}}})",
                     ordered_json(event.name).dump(), times, rank, row, arguments.dump());
}

std::optional<int64_t> parse_step(std::string_view text) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (error != std::errc() || end != text.data() + text.size() || step < 1) return std::nullopt;
  return step;
}

}  // namespace

TraceFile::TraceFile(const std::string& directory, int rank) : rank_(rank) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string stem =
      std::filesystem::path(directory) / fmt::format("meshrun-trace-rank-{}-{}", rank, ::getpid());
  for (int number = 1; !fd_; ++number) {
    path_ = number == 1 ? stem + ".json" : fmt::format("{}-{}.json", stem, number);
    fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd_ && errno != EEXIST) {
      throw std::runtime_error(fmt::format("{}: {}", path_, std::strerror(errno)));
    }
  }
  append("[\n" +
         metadata("process_name", rank, 0,
                  {{"name", fmt::format("rank {} on {}", rank, host_name())}}) +
         ",\n" + metadata("process_sort_index", rank, 0, {{"sort_index", rank}}));
}

void TraceFile::append(std::string text) {
  const auto length = static_cast<int64_t>(text.size());
  text += kEnd;
  for (size_t written = 0; written < text.size();) {
    const ssize_t now = ::pwrite(fd_.get(), text.data() + written, text.size() - written,
                                 end_ + static_cast<int64_t>(written));
    if (now < 0 && errno == EINTR) continue;
    if (now < 0) throw std::runtime_error(fmt::format("{}: {}", path_, std::strerror(errno)));
    written += static_cast<size_t>(now);
  }
  end_ += length;
}

int64_t TraceFile::row(const std::string& name, std::string& text) {
  const auto known = std::find(rows_.begin(), rows_.end(), name);
  const int64_t number = known - rows_.begin() + 1;
  if (known != rows_.end()) return number;
  rows_.push_back(name);
  text += ",\n" + metadata("thread_name", rank_, number, {{"name", name}});
  text += ",\n" + metadata("thread_sort_index", rank_, number, {{"sort_index", number}});
  return number;
}

void TraceFile::add(const std::vector<TraceEvent>& events) {
  std::string text;
  for (const TraceEvent& event : events) {
    const int64_t number = row(event.row, text);
    text += ",\n" + event_text(event, rank_, number);
  }
  append(std::move(text));
}

std::optional<TracedSteps> parse_traced_steps(const std::string& text) {
  const size_t dash = text.find('-');
  const bool is_range = dash != std::string::npos;
  const std::string_view view = text;
  const auto first = is_range ? parse_step(view.substr(0, dash)) : std::optional<int64_t>(1);
  const auto last = parse_step(is_range ? view.substr(dash + 1) : view);
  if (!first || !last || *first > *last) return std::nullopt;
  return TracedSteps{*first, *last};
}

}  // namespace meshrun::detail
