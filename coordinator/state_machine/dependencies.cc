#include "coordinator/state_machine/dependencies.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// Jobs that one job waits for, those of arrays among them.
constexpr int kMostAwaited = 2000;

struct DependencyKind {
  std::string_view word;
  // "train-abc123 to succeed".
  std::string_view what;
};

constexpr DependencyKind kKinds[] = {
    {"ok", "to succeed"}, {"failed", "to fail"}, {"any", "to end"}};

struct Dependency {
  const DependencyKind* kind = nullptr;
  std::string job;
};

std::optional<Dependency> Parse(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) return std::nullopt;
  for (const DependencyKind& kind : kKinds) {
    if (text.substr(0, colon) == kind.word)
      return Dependency{&kind, std::string(text.substr(colon + 1))};
  }
  return std::nullopt;
}

bool IsMet(const Dependency& dependency, const Job& ended) {
  const bool succeeded = ended.view.state() == v1::JOB_STATE_SUCCEEDED;
  if (dependency.kind->word == "ok") return succeeded;
  return dependency.kind->word == "any" || !succeeded;
}

std::string Otherwise(const Dependency& dependency, const Job& ended) {
  return fmt::format("it was to wait for {} {}, which is {}", ended.id(), dependency.kind->what,
                     StateName(ended.view.state()));
}

}  // namespace

absl::Status Dependencies::Check(v1::JobSpec* spec) {
  const auto after = spec->after();
  spec->clear_after();
  for (const std::string& text : after) {
    const auto dependency = Parse(text);
    if (!dependency.has_value()) {
      return absl::InvalidArgumentError(
          fmt::format("after: '{}' is no dependency: write ok:ID, failed:ID or any:ID", text));
    }
    const auto named = jobs_.Named(dependency->job);
    if (!named.ok()) return Annotate(named.status(), "after");
    for (const Job* const job : *named) {
      if (job->ended() && !IsMet(*dependency, *job))
        return absl::FailedPreconditionError("after: " + Otherwise(*dependency, *job));
      spec->add_after(fmt::format("{}:{}", dependency->kind->word, job->id()));
    }
    if (spec->after_size() > kMostAwaited) {
      return absl::InvalidArgumentError(fmt::format("after: {} jobs in all, and {} is the most",
                                                    spec->after_size(), kMostAwaited));
    }
  }
  return absl::OkStatus();
}

void Dependencies::OnSubmitted(const Job& job) {
  const auto after = job.view.spec().after();
  for (const std::string& text : after) {
    const Job* const awaited = jobs_.Find(Parse(text)->job);
    if (awaited != nullptr && awaited->ended()) Tell(*awaited);
  }
}

void Dependencies::Resolve() {
  // The end of one may be the end of others that wait for it.
  for (std::vector<std::string> ended = jobs_.TakeEnded(); !ended.empty();
       ended = jobs_.TakeEnded()) {
    for (const std::string& id : ended) {
      if (const Job* const job = jobs_.Find(id)) Tell(*job);
    }
  }
}

void Dependencies::OnRestored() {
  for (const std::string& id : jobs_.Awaited()) {
    const Job* const job = jobs_.Find(id);
    if (job != nullptr && job->ended()) Tell(*job);
    if (job != nullptr) continue;
    // Its row was lost: how it ended, nobody knows.
    for (const std::string& waiting : jobs_.WaitingFor(id)) {
      generations_.Cancel(*jobs_.Find(waiting), /*now=*/false,
                          fmt::format("it was to wait for {}, which is not known any more", id));
    }
  }
  Resolve();
}

void Dependencies::Tell(const Job& ended) {
  for (const std::string& id : jobs_.WaitingFor(ended.id())) {
    Job* const job = jobs_.Find(id);
    if (job == nullptr || job->ended()) continue;
    std::string otherwise;
    auto& waits_for = *job->record.mutable_waits_for();
    const auto met = [&](const std::string& text) {
      const auto dependency = Parse(text);
      if (!dependency.has_value() || dependency->job != ended.id()) return false;
      if (!IsMet(*dependency, ended)) otherwise = Otherwise(*dependency, ended);
      return true;
    };
    waits_for.erase(std::remove_if(waits_for.begin(), waits_for.end(), met), waits_for.end());
    if (otherwise.empty()) {
      jobs_.WaitsForLess(*job);
    } else {
      generations_.Cancel(*job, /*now=*/false, otherwise);
    }
  }
  jobs_.NobodyWaitsFor(ended.id());
}

std::string WaitsFor(const Job& job) {
  const auto first = Parse(job.record.waits_for(0));
  const int more = job.record.waits_for_size() - 1;
  return fmt::format("waits for {} {}{}", first->job, first->kind->what,
                     more == 0 ? "" : fmt::format(", and for {} more", more));
}

}  // namespace meshrun::coordinator
