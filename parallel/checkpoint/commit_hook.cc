#include "parallel/checkpoint/commit_hook.h"

#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "fmt/format.h"

extern char** environ;

namespace meshrun {
namespace {

// Empty: it has done its work.
std::string problem_of_call(const std::string& program, const std::string& checkpoint) {
  std::string name = program;
  std::string argument = checkpoint;
  char* const arguments[] = {name.data(), argument.data(), nullptr};
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, program.c_str(), nullptr, nullptr, arguments, environ);
  if (error != 0) return fmt::format("cannot be started: {}", std::strerror(error));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    // Somebody else in this process has collected it.
    if (errno != EINTR) return "";
  }
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return "";
  return fmt::format("exited with {}", WEXITSTATUS(status));
}

}  // namespace

CommitHook::CommitHook(std::string program, std::function<void(const std::string&)> say)
    : state_(std::make_shared<State>()) {
  state_->program = std::move(program);
  state_->say = std::move(say);
}

void CommitHook::call(const std::string& checkpoint) {
  const std::scoped_lock lock(state_->mu);
  state_->calls.push_back(checkpoint);
  if (state_->calls.size() == 1) std::thread([state = state_] { run(state); }).detach();
}

void CommitHook::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mu);
  while (!state->calls.empty()) {
    const std::string checkpoint = state->calls.front();
    lock.unlock();
    const std::string problem = problem_of_call(state->program, checkpoint);
    if (!problem.empty()) {
      state->say(
          fmt::format("{} {} {}; the checkpoint is whole", state->program, checkpoint, problem));
    }
    lock.lock();
    state->calls.pop_front();
    state->changed.notify_all();
  }
}

std::set<std::string> CommitHook::held() const {
  const std::scoped_lock lock(state_->mu);
  std::set<std::string> names;
  for (const std::string& checkpoint : state_->calls) {
    names.insert(std::filesystem::path(checkpoint).filename().string());
  }
  return names;
}

bool CommitHook::wait_for(std::chrono::milliseconds most) const {
  std::unique_lock lock(state_->mu);
  return state_->changed.wait_for(lock, most, [&] { return state_->calls.empty(); });
}

}  // namespace meshrun
