#include "client/cli/run_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "client/cli/context.h"
#include "client/run_directory.h"
#include "core/os/files.h"
#include "core/status.h"
#include "core/stream_choice.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

// Least and most bytes of one stream in the spool.
constexpr uint64_t kLeastOfStream = uint64_t{1} << 20;
constexpr uint64_t kMostOfStream = uint64_t{1} << 30;

// All streams together fill half of the room that there is. A screen that is slower than its ranks
// loses what does not fit.
uint64_t LimitOfStream(uint32_t ranks) {
  struct statvfs info = {};
  if (::statvfs(RunDirectory::DefaultParent().c_str(), &info) != 0 || info.f_blocks == 0) {
    return kMostOfStream;
  }
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  return std::clamp(free / 2 / (2 * std::max<uint64_t>(ranks, 1)), kLeastOfStream, kMostOfStream);
}

absl::StatusOr<std::string> LogDirectory(const RunOutputFlags& flags) {
  if (flags.log_dir.empty()) {
    std::string made = RunDirectory::DefaultParent() + "/meshrun-logs.XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) return os::ErrnoStatus(errno, made);
    return made;
  }
  std::error_code error;
  const auto path = std::filesystem::absolute(flags.log_dir, error);
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("--log-dir {}: {}", flags.log_dir,
                    error ? error.message() : std::string("is not a directory")));
  }
  if (::access(path.c_str(), W_OK | X_OK) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("--log-dir {}: {}", flags.log_dir, std::strerror(errno)));
  }
  return path.lexically_normal().string();
}

absl::StatusOr<StreamChoice> ParseStreams(std::string_view flag, const std::string& text) {
  if (text.empty()) return StreamChoice();
  auto choice = StreamChoice::Parse(text);
  if (!choice.ok()) return Annotate(choice.status(), flag);
  return choice;
}

// May this process read from its terminal? A shell's job in the background may not.
bool InForeground() {
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground <= 0 || foreground == ::getpgrp();
}

absl::Status PrepareInput(const std::string& text, uint32_t ranks, RunOutput* out) {
  if (text == "none") return absl::OkStatus();
  const bool all = text == "all";
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), out->input_rank);
  if (!all && (error != std::errc{} || end != text.data() + text.size() || out->input_rank < 0 ||
               static_cast<uint32_t>(out->input_rank) >= ranks)) {
    return absl::InvalidArgumentError(
        fmt::format("--stdin {}: write all, none, or a rank from 0 to {}", text, ranks - 1));
  }
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal && !InForeground()) return absl::OkStatus();
  if (all && ranks > 1) {
    MESHRUN_ASSIGN_OR_RETURN(out->input_of_all, InputBroadcast::Start(ranks));
    return absl::OkStatus();
  }
  // Above the descriptors that a child gets.
  out->input.reset(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  if (terminal) out->view.input_rank = out->input_rank;
  return absl::OkStatus();
}

}  // namespace

Style StyleForRanks(uint32_t ranks) {
  const Style error = StyleOf(STDERR_FILENO);
  Style style = error.terminal ? error : StyleOf(STDOUT_FILENO);
  const int prefix = ranks < 2 ? 0 : static_cast<int>(fmt::formatted_size("0-{}: ", ranks - 1));
  style.width = std::max(style.width - prefix, 1);
  style.height = std::max(style.height, 1);
  return style;
}

void AddRunOutputFlags(FlagSet& flags, RunOutputFlags* values) {
  flags.Section("Output and input");
  flags.Text("--log-dir", &values->log_dir, "DIR",
             "Keep what the ranks write in DIR/<job>/attempt_<n>/<rank>/stdout.log and stderr.log");
  flags.Text("-t,--tee", &values->tee, "STREAMS",
             "What goes to files and is shown: 1 stdout, 2 stderr, 3 both, or by rank 0:3,1:2 "
             "(default 3 with --log-dir)");
  flags.Text("-r,--redirects", &values->redirects, "STREAMS", "What goes to files alone");
  flags.Text(
      "--log-line-prefix-template", &values->prefix_template, "TEXT",
      "What stands before each line that is shown, as torchrun's: '${hostname}:${rank}: '; also "
      "${local_rank}, ${role_name}");
  flags.Text("--local-ranks-filter", &values->local_ranks_filter, "RANKS",
             "Show what these ranks write, for example 0,2");
  flags.Text("--stdin", &values->input, "RANK|all|none",
             "Who reads the standard input: one rank (default 0), or each all of it");
  flags.Switch("--tty", &values->tty,
               "Ranks write to pseudo-terminals as wide as this terminal, so that they draw and "
               "colour as on one");
}

absl::StatusOr<RunOutput> RunOutput::Prepare(const RunOutputFlags& flags, uint32_t ranks) {
  RunOutput out;
  MESHRUN_ASSIGN_OR_RETURN(StreamChoice tee, ParseStreams("--tee", flags.tee));
  MESHRUN_ASSIGN_OR_RETURN(const StreamChoice redirects,
                           ParseStreams("--redirects", flags.redirects));
  out.tee = flags.tee.empty() ? "0" : flags.tee;
  out.redirects = flags.redirects.empty() ? "0" : flags.redirects;
  if (flags.tty) {
    const Style style = StyleForRanks(ranks);
    out.terminal = fmt::format("{}x{}", style.width, style.height);
  }
  // torchrun's word for no files at all.
  const bool none = flags.log_dir == "/dev/null";
  if (!flags.log_dir.empty() && tee.empty() && redirects.empty()) {
    tee = StreamChoice::All();
    out.tee = "3";
  }
  std::vector<int> shown;
  if (!flags.local_ranks_filter.empty()) {
    const auto filter = ParseRanks(flags.local_ranks_filter);
    if (!filter.ok()) return Annotate(filter.status(), "--local-ranks-filter");
    shown = *filter;
    if (static_cast<uint32_t>(*std::max_element(shown.begin(), shown.end())) >= ranks) {
      return absl::InvalidArgumentError(fmt::format(
          "--local-ranks-filter {}: the ranks are 0 to {}", flags.local_ranks_filter, ranks - 1));
    }
  }
  MESHRUN_RETURN_IF_ERROR(PrepareInput(flags.input, ranks, &out));
  if (!none && !(tee.empty() && redirects.empty())) {
    MESHRUN_ASSIGN_OR_RETURN(out.log_dir, LogDirectory(flags));
  }
  out.view.shown_ranks = static_cast<int>(shown.size());
  out.view.shows = [tee, redirects, shown](int rank, bool is_stderr) {
    const bool wanted = shown.empty() || std::find(shown.begin(), shown.end(), rank) != shown.end();
    return wanted && (tee.Has(rank, is_stderr) || !redirects.Has(rank, is_stderr));
  };
  out.log_limit_bytes = LimitOfStream(ranks);
  return out;
}

bool RunOutput::names_ranks() const {
  return tee.find(':') != std::string::npos || redirects.find(':') != std::string::npos;
}

absl::Status RunOutput::CountFrom(std::optional<uint32_t> first) {
  for (const auto& [flag, text] :
       {std::pair<const char*, std::string*>{"--tee", &tee}, {"--redirects", &redirects}}) {
    if (text->find(':') == std::string::npos) continue;
    if (!first) {
      return absl::InvalidArgumentError(
          fmt::format("{} {}: which ranks this host gets is known beforehand with --node-rank and "
                      "as many hosts "
                      "as --nnodes says; without, write 1, 2 or 3",
                      flag, *text));
    }
    std::string counted;
    for (size_t from = 0; from <= text->size();) {
      const size_t comma = std::min(text->find(',', from), text->size());
      const std::string part = text->substr(from, comma - from);
      // Both parts have been parsed.
      counted += fmt::format("{}{}{}", counted.empty() ? "" : ",",
                             std::strtoul(part.c_str(), nullptr, 10) + *first,
                             part.substr(std::min(part.find(':'), part.size())));
      from = comma + 1;
    }
    *text = counted;
  }
  return absl::OkStatus();
}

void RunOutput::AddTo(LocalCluster::Options* options) const {
  if (input_of_all) {
    options->worker_flags.insert(options->worker_flags.end(),
                                 {"--rank-stdin-directory", input_of_all->directory()});
  }
  options->log_limit_bytes = log_limit_bytes;
  if (!terminal.empty()) {
    options->worker_flags.insert(options->worker_flags.end(), {"--rank-terminal", terminal});
  }
  if (!log_dir.empty()) {
    options->worker_flags.insert(
        options->worker_flags.end(),
        {"--rank-log-dir", log_dir, "--rank-log-tee", tee, "--rank-log-redirects", redirects});
  }
  if (input) {
    options->worker_flags.insert(options->worker_flags.end(),
                                 {"--rank-stdin-fd", fmt::format("{}", input.get()),
                                  "--rank-stdin-rank", fmt::format("{}", input_rank)});
    options->worker_fds.push_back(input.get());
  }
}

}  // namespace meshrun::client
