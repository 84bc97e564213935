#include "worker/supervisor/program_search.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/text.h"
#include "core/utf8.h"
#include "worker/launch/launch_plan.h"
#include "worker/supervisor/rank_user.h"

namespace meshrun::worker {
namespace {

// First byte of the answer: the working directory is there. The found program follows.
constexpr char kWorkingDirectorySeen = 'w';

[[noreturn]] void Search(const v1::ProgramSearch& search, const v1::RankUser* user, int answer) {
  v1::ProgramFound found;
  if (user != nullptr) {
    const absl::Status status = Become(*user);
    if (!status.ok()) found.set_error(EscapeBytes(std::string(status.message())));
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The supervisor's sockets must end with the supervisor, also while a file system holds this
  // process.
  constexpr int kAnswer = STDIN_FILENO;
  ::dup2(answer, kAnswer);
#ifdef SYS_close_range
  ::syscall(SYS_close_range, kAnswer + 1, ~0u, 0u);
#endif
  if (found.error().empty()) {
    found = FindProgram(search, [] { (void)!::write(kAnswer, &kWorkingDirectorySeen, 1); });
  }
  const std::string bytes = found.SerializeAsString();
  (void)!::write(kAnswer, bytes.data(), bytes.size());
  ::_exit(0);
}

}  // namespace

absl::StatusOr<ProgramSearch> ProgramSearch::Begin(const v1::ProgramSearch& search,
                                                   const v1::RankUser* user) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os::ErrnoStatus(errno, "pipe");
  os::UniqueFd answer(ends[0]);
  const os::UniqueFd child_end(ends[1]);
  ::fcntl(answer.get(), F_SETFL, O_NONBLOCK);
  const pid_t child = ::fork();
  if (child < 0) return os::ErrnoStatus(errno, "fork");
  if (child == 0) Search(search, user, child_end.get());
  return ProgramSearch(search, std::move(answer), child);
}

ProgramSearch::ProgramSearch(const v1::ProgramSearch& search, os::UniqueFd answer, pid_t child)
    : search_(search),
      answer_(std::move(answer)),
      child_(child),
      deadline_(std::chrono::steady_clock::now() + FromProto(search.deadline())) {}

std::optional<v1::ProgramFound> ProgramSearch::Read() {
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(answer_.get(), buffer, sizeof(buffer))) > 0) bytes_.append(buffer, n);
  if (n < 0) return std::nullopt;
  std::string_view bytes = bytes_;
  if (!bytes.empty() && bytes[0] == kWorkingDirectorySeen) bytes.remove_prefix(1);
  v1::ProgramFound found;
  if (bytes.empty() || !found.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    found.Clear();
    found.set_error("the search for the program was killed");
  }
  return found;
}

v1::ProgramFound ProgramSearch::GiveUp() {
  ::kill(child_, SIGKILL);
  const std::string patience = FormatDuration(FromProto(search_.deadline()));
  std::string error;
  v1::ProgramFound out;
  if (bytes_.empty()) {
    error = fmt::format("working directory {} has not answered for {}: its file system hangs",
                        search_.working_dir(), patience);
  } else if (!search_.shipped_job().empty()) {
    error = fmt::format("{} has not answered for {}: its file system hangs", search_.jobs_dir(),
                        patience);
  } else {
    const bool along_path = search_.command().find('/') == std::string::npos;
    error = fmt::format("{} was not found within {}: a file system {} hangs", search_.command(),
                        patience,
                        along_path ? "of PATH (" + search_.path_variable() + ")"
                                   : "that it is on (from " + search_.working_dir() + ")");
  }
  out.set_error(EscapeBytes(error));
  return out;
}

}  // namespace meshrun::worker
