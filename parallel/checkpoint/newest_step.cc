#include "parallel/checkpoint/newest_step.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/checkpoint/background_saves.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/sites.h"
#include "parallel/checkpoint/status_errors.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;

// A checkpoint in the directory of a rank, which looks for its host.
struct OfferedStep {
  CommittedStep which;
  int64_t sequence = 0;
  std::string path;
  bool is_named = false;
  int rank = 0;
};

// Digests are hexadecimal on their way between ranks.
CommittedStep step_in(const json& told) {
  return {told.at("step").get<int64_t>(),
          value_of(BytesFromHex(told.at("digest").get<std::string>()))};
}

struct JobCommit {
  CommittedStep which;
  bool is_of_this_generation = false;
};

// Those with their own name. Where one cannot be read, the error says which other one there is.
std::vector<StepDirectory> named_in(const std::string& directory) {
  try {
    return value_of(ListStepDirectories(directory));
  } catch (const DamagedCheckpoint& error) {
    const std::optional<CommittedStep> other = newest_named(directory);
    if (!other) throw;
    throw DamagedCheckpoint(
        fmt::format("{}; to go on from {}, remove the damaged checkpoint and submit a new job",
                    error.what(), named_path(directory, other->step)));
  }
}

// What a rank finds for its host.
json offers_in(const std::string& directory) {
  json offers = json::array();
  const auto add = [&](const StepDirectory& found, bool is_named) {
    const std::string digest = Sha256(read_file(found.path + "/" + kManifestName));
    offers.push_back({{"step", found.manifest.step},
                      {"digest", HexEncode(digest)},
                      {"sequence", found.manifest.sequence},
                      {"path", named_path(directory, found.manifest.step)},
                      {"named", is_named}});
  };
  for (const StepDirectory& found : named_in(directory)) add(found, true);
  for (const StepDirectory& found : unfinished_steps(directory)) add(found, false);
  return offers;
}

std::vector<OfferedStep> offers_of_all(const std::vector<std::string>& texts) {
  std::vector<OfferedStep> offers;
  int rank = 0;
  for (const std::string& text : texts) {
    const json told = text.empty() ? json::array() : json::parse(text).at("offers");
    for (const json& one : told) {
      offers.push_back({step_in(one), one.at("sequence").get<int64_t>(),
                        one.at("path").get<std::string>(), one.at("named").get<bool>(), rank});
    }
    ++rank;
  }
  return offers;
}

// "a, b".
std::string hosts_of_all(const std::vector<std::string>& texts) {
  std::vector<std::string> hosts;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    const auto host = json::parse(text).at("host").get<std::string>();
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  return fmt::format("{}", fmt::join(hosts, ", "));
}

// The job's newest commit, which rank 0 asks for.
std::optional<JobCommit> newest_commit(c10d::ProcessGroup& group, c10::Device device,
                                       const std::string& directory, const Together& together) {
  json told;
  together([&] {
    if (group.getRank() != 0) return;
    const CommitRight right = right_of(directory);
    const auto newest = right.newest();
    if (!newest) return;
    told = {{"step", newest->step},
            {"digest", HexEncode(newest->digest)},
            {"now", newest->generation == right.generation()}};
  });
  told = json::parse(broadcast_text(group, device, told.dump()));
  if (told.is_null()) return std::nullopt;
  return JobCommit{step_in(told), told.at("now").get<bool>()};
}

[[noreturn]] void raise_elsewhere(const std::string& directory, const CommittedStep& which,
                                  const std::string& hosts, const std::vector<OfferedStep>& named) {
  throw CheckpointFileError(fmt::format(
      "the job's newest checkpoint in {}, of step {}, is not on {}, where the ranks are now: it is "
      "on another host, or was removed, or has lost its manifest.json. The newest here is {}. Use "
      "a directory that all hosts share; or copy step-{} from a host that wrote it; to go on from "
      "what is here, submit a new job",
      directory, which.step, hosts,
      named.empty() ? "none" : fmt::format("that of step {}", named.back().which.step),
      which.step));
}

// Those that may be loaded, the newest last, one of each.
std::vector<OfferedStep> candidates_of(const std::vector<OfferedStep>& offers) {
  std::vector<OfferedStep> named;
  std::set<std::string> known;
  for (const OfferedStep& offer : offers) {
    if (offer.is_named && known.insert(offer.which.digest).second) named.push_back(offer);
  }
  // The lowest rank's is the newest of equal ones.
  std::ranges::reverse(named);
  std::ranges::stable_sort(named, {}, &OfferedStep::sequence);
  return named;
}

// Says which newer step-N of which hosts is not loaded.
void say_passed_over(const std::vector<std::string>& texts, const std::string& directory,
                     std::optional<int64_t> taken) {
  std::map<std::string, std::vector<std::string>> hosts;  // by line
  size_t looked = 0;
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    ++looked;
    const json told = json::parse(text);
    for (const std::string name : told.at("incomplete")) {
      const std::string line = PassedOver(name, taken);
      if (!line.empty()) hosts[line].push_back(told.at("host").get<std::string>());
    }
  }
  for (const auto& [line, of] : hosts) {
    say(fmt::format("{}/{}{}", directory, line,
                    of.size() == looked ? "" : fmt::format(" (on {})", fmt::join(of, ", "))));
  }
}

// What to do where the newest is damaged. Nothing falls back by itself: steps would be lost unseen.
std::string older_one_of(const std::vector<OfferedStep>& candidates) {
  if (candidates.size() < 2) return "";
  const OfferedStep& older = candidates[candidates.size() - 2];
  return "; to go on from the one before, " + older.path + ", remove " + candidates.back().path +
         " and submit a new job";
}

}  // namespace

bool has_commit(c10d::ProcessGroup& group, c10::Device device, const std::string& directory,
                const Together& together) {
  return newest_commit(group, device, directory, together).has_value();
}

std::optional<NewestStep> find_newest(c10d::ProcessGroup& group, c10::Device device,
                                      const std::string& directory, const std::string& former_file,
                                      const Together& together) {
  const std::vector<int> first = first_of_each_host(group, device, directory);
  const bool looks = std::ranges::find(first, group.getRank()) != first.end();
  const std::optional<JobCommit> commit = newest_commit(group, device, directory, together);
  std::string told;
  together([&] {
    if (!looks) return;
    told = json{{"host", worker_name()},
                {"offers", offers_in(directory)},
                {"incomplete", IncompleteSteps(directory)}}
               .dump(-1, ' ', false, json::error_handler_t::replace);
  });
  const std::vector<std::string> all = gather_texts(group, device, told);
  const std::vector<OfferedStep> offers = offers_of_all(all);
  std::vector<OfferedStep> candidates = candidates_of(offers);
  if (commit) {
    const auto is_it = [&](const OfferedStep& offer) {
      return offer.which.digest == commit->which.digest;
    };
    const auto found = std::ranges::find_if(offers, is_it);
    if (found != offers.end()) {
      std::erase_if(candidates, is_it);
      candidates.push_back(*found);
    } else if (!commit->is_of_this_generation) {
      raise_elsewhere(directory, commit->which, hosts_of_all(all), candidates);
    }
  }
  std::optional<int64_t> taken;
  if (!candidates.empty()) taken = candidates.back().which.step;
  if (group.getRank() == 0) say_passed_over(all, directory, taken);
  if (candidates.empty()) {
    together([&] {
      if (group.getRank() != 0) return;
      if (std::filesystem::exists(std::filesystem::path(directory) / kManifestName)) {
        throw Mismatch(directory + " is a checkpoint itself: name the directory that it is in");
      }
      const auto former = std::filesystem::path(directory) / former_file;
      if (former_file.empty() || !std::filesystem::exists(former)) return;
      throw Mismatch(former.string() +
                     " is a checkpoint in the format of an earlier version, which this one does "
                     "not read; delete it, or give another directory, to start anew");
    });
    return std::nullopt;
  }
  const std::string remedy = older_one_of(candidates);
  const CommittedStep newest = candidates.back().which;
  // One after the other, since hosts may share the directory.
  for (const OfferedStep& offer : offers) {
    if (offer.is_named || offer.which.digest != newest.digest) continue;
    together([&] {
      if (group.getRank() != offer.rank || is_named(directory, newest)) return;
      const std::string temporary = temporary_name_of(directory, newest);
      finish_step_directory(directory, newest.step, newest.digest, temporary, say);
    });
  }
  return NewestStep{newest, remedy};
}

}  // namespace meshrun::detail
