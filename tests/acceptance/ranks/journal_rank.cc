// A rank that computes, commits checkpoints, and writes down when it did which. Its steps wait for
// nobody, so a rank that should stand still and does not is seen.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <optional>

#include "agent/agent.h"
#include "core/clock.h"
#include "core/os/files.h"
#include "tests/acceptance/ranks/journal.h"

namespace meshrun::acceptance {
namespace {

using agent::Agent;
using std::chrono::milliseconds;

struct Options {
  std::string journal;
  int step_ms = 20;
  int64_t steps = 1'000'000;
  // 0: no checkpoints.
  int64_t commit_every = 0;
  // Where they lie; empty: with the journals.
  std::string checkpoints;
  // Size of one checkpoint.
  size_t checkpoint_bytes = 2;
  bool in_process = false;
  bool ignore_term = false;
  // Each step ends with a barrier of all.
  bool lockstep = false;
  bool print = false;
};

constexpr char kName[] = "journal";
std::atomic<bool> terminated = false;

int Failed(const std::string& what, const absl::Status& status) {
  std::fprintf(stderr, "journal_rank: %s: %s\n", what.c_str(),
               std::string(status.message()).c_str());
  return 1;
}

// What the agent's thread hears of one generation. Outlives the agent.
struct News {
  std::atomic<bool> over = false;
  std::atomic<bool> quiesce = false;
  // A checkpoint is wanted before it stands still.
  std::atomic<bool> save = false;
};

class Rank {
 public:
  Rank(const Options& options, std::unique_ptr<Agent> agent)
      : options_(options), agent_(std::move(agent)), journal_(options.journal, place()) {}

  int Run() {
    Enter();
    while (steps_ < options_.steps) {
      if (terminated && !std::exchange(term_written_, true)) journal_.Write("term");
      if (terminated && !options_.ignore_term) return Leave(143);
      if (options_.in_process && (news_->over || news_->quiesce)) {
        if (!MoveOn()) return Leave(143);
        continue;
      }
      Step();
    }
    return Leave(0);
  }

 private:
  const agent::Assignment& place() const { return agent_->assignment(); }

  int Leave(int code) {
    EndCommit(/*wait=*/true);
    journal_.Write("left", {{"code", code}});
    return code;
  }

  // In each generation: listens, and goes on from the highest step that a rank has.
  void Enter() {
    news_ = std::make_shared<News>();
    agent_->Watch(
        {.on_lost =
             [this, news = news_](int rank, const std::string& reason) {
               journal_.Write("lost", {{"peer", rank}, {"reason", reason}});
               news->over = true;
             },
         .on_left = [](int) {},
         .on_stopping =
             [this](const std::string& reason) {
               journal_.Write("stopping", {{"reason", reason}});
             },
         .on_verdict = [](const WaitVerdict&) {},
         .flight_record = [](int) { return std::string(); },
         .on_quiesce =
             [this, news = news_](const agent::Quiesce& quiesce) {
               journal_.Write("quiesce", {{"reason", quiesce.reason}, {"save", quiesce.save}});
               news->save = quiesce.save;
               news->quiesce = true;
             },
         .on_superseded = [news = news_](uint64_t) { news->over = true; }});
    committed_.reset();
    if (const auto newest = agent_->CommittedCheckpoint(kName); newest.ok() && *newest) {
      committed_ = (*newest)->step;
    }
    steps_ = std::max(steps_, committed_.value_or(0));
    if (!options_.in_process || place().generation == 1) return;
    std::vector<std::string> keys;
    for (int rank = 0; rank < place().world_size; ++rank) keys.push_back(std::to_string(rank));
    (void)agent_->Set(keys[place().rank], std::to_string(steps_));
    // A peer that is lost meanwhile ends this wait with the generation.
    if (const auto known = agent_->MultiGet(keys, milliseconds(20000), {}); known.ok()) {
      for (const std::string& steps : *known) steps_ = std::max<int64_t>(steps_, std::stoll(steps));
    }
    journal_.Write("resumed", {{"step", steps_}});
  }

  // False: no generation follows for this process.
  bool MoveOn() {
    if (news_->save && options_.commit_every > 0 && place().rank == 0) {
      EndCommit(/*wait=*/true);
      if (committed_ != steps_) Commit();
      EndCommit(/*wait=*/true);
    }
    if (news_->quiesce) (void)agent_->ReportQuiesced(steps_, milliseconds(10000));
    EndCommit(/*wait=*/true);
    while (!terminated || options_.ignore_term) {
      auto next = agent_->NextGeneration(milliseconds(1000));
      if (next.ok()) {
        agent_ = *std::move(next);
        journal_.Move(place());
        Enter();
        return true;
      }
      if (!absl::IsDeadlineExceeded(next.status()) && !absl::IsUnavailable(next.status())) {
        journal_.Write("no generation", {{"why", std::string(next.status().message())}});
        return false;
      }
    }
    return false;
  }

  void Step() {
    const double begin = Now();
    ::usleep(options_.step_ms * 1000);
    ++steps_;
    journal_.Write("step", {{"step", steps_}, {"from", begin}});
    if (options_.print) {
      std::printf("line %lld\n", static_cast<long long>(steps_));
      std::fflush(stdout);
    }
    agent_->Report({.step = steps_, .total_steps = options_.steps, .loss = 1.0 / steps_});
    EndCommit(/*wait=*/false);
    if (options_.commit_every > 0 && place().rank == 0 && !commit_.valid() &&
        steps_ % options_.commit_every == 0) {
      Commit();
    }
    while (options_.lockstep && !terminated && !news_->over &&
           !agent_->Barrier("step " + std::to_string(steps_), {}, milliseconds(1000)).ok()) {
    }
  }

  // Beside the steps: none of them waits for the control plane.
  void Commit() {
    const std::string& directory =
        options_.checkpoints.empty() ? options_.journal : options_.checkpoints;
    const std::string file = directory + "/step-" + std::to_string(steps_);
    temporary_ = file + "." + place().node_name + "." + std::to_string(place().generation) + ".tmp";
    if (const absl::Status written = os::WriteFileAtomically(
            temporary_, std::string(options_.checkpoint_bytes - 1, '.') + "\n");
        !written.ok()) {
      std::fprintf(stderr, "no checkpoint of step %lld: %s\n", static_cast<long long>(steps_),
                   std::string(written.message()).c_str());
      journal_.Write("unsaved", {{"step", steps_}, {"why", std::string(written.message())}});
      return;
    }
    committing_ = steps_;
    commit_ = std::async(std::launch::async, [this, expected = committed_, file] {
      const double begin = Now();
      // A writer that is killed before the answer leaves this alone.
      journal_.Write("committing", {{"step", committing_}});
      const absl::Status status =
          agent_->CommitCheckpoint(kName, committing_, std::string(32, 'd'), temporary_, expected);
      if (!status.ok()) {
        journal_.Write(
            "refused",
            {{"step", committing_}, {"from", begin}, {"why", std::string(status.message())}});
        return false;
      }
      std::filesystem::rename(temporary_, file);
      journal_.Write(
          "commit", {{"step", committing_}, {"from", begin}, {"after", expected ? *expected : -1}});
      return true;
    });
  }

  void EndCommit(bool wait) {
    if (!commit_.valid()) return;
    if (!wait && commit_.wait_for(milliseconds(0)) != std::future_status::ready) return;
    if (commit_.get()) committed_ = committing_;
  }

  const Options options_;
  std::unique_ptr<Agent> agent_;
  Journal journal_;
  std::shared_ptr<News> news_;
  int64_t steps_ = 0;
  std::optional<int64_t> committed_;
  int64_t committing_ = 0;
  std::string temporary_;
  std::future<bool> commit_;
  bool term_written_ = false;
};

int Main(const Options& options) {
  std::signal(SIGTERM, [](int) { terminated = true; });
  auto agent = Agent::Connect();
  if (!agent.ok()) return Failed("connect", agent.status());
  // It waits for others in calls of the agent alone.
  (*agent)->SetCollectives(false, Clock::Real().SteadyNow());
  if (options.in_process) {
    const absl::Status status = (*agent)->SetInProcess(true, milliseconds(10000));
    if (!status.ok()) return Failed("in process", status);
  }
  return Rank(options, *std::move(agent)).Run();
}

}  // namespace
}  // namespace meshrun::acceptance

int main(int argc, char** argv) {
  meshrun::acceptance::Options options;
  CLI::App app("A rank that computes, commits, and keeps a journal.", "journal_rank");
  app.add_option("--journal", options.journal, "Directory of journals and checkpoints")->required();
  app.add_option("--step-ms", options.step_ms, "Duration of a step")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "Then it ends")->check(CLI::PositiveNumber);
  app.add_option("--commit-every", options.commit_every, "Steps between commits by rank 0");
  app.add_option("--checkpoints", options.checkpoints, "Their directory");
  app.add_option("--checkpoint-bytes", options.checkpoint_bytes, "Of one")
      ->check(CLI::PositiveNumber);
  app.add_flag("--in-process", options.in_process, "Takes further generations");
  app.add_flag("--ignore-term", options.ignore_term, "SIGTERM does not end it");
  app.add_flag("--lockstep", options.lockstep, "All ranks take each step together");
  app.add_flag("--print", options.print, "A line on stdout for each step");
  CLI11_PARSE(app, argc, argv);
  return meshrun::acceptance::Main(options);
}
