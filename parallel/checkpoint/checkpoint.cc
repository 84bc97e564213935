#include "parallel/checkpoint/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "core/checkpoint/safetensors.h"
#include "core/hash.h"
#include "core/os/files.h"
#include "parallel/base/no_collectives.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/checkpoint/checkpoint_writer.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/random_streams.h"
#include "parallel/checkpoint/read_checkpoint.h"
#include "parallel/checkpoint/seen_sequences.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/checkpoint/tensor_file.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {
namespace {

using detail::FoundCheckpoint;
using detail::Mismatch;
using detail::Parts;
using nlohmann::json;

// The end of a rank's part.
enum class Outcome { kDone, kNothing, kDamaged, kMismatch, kRefused, kFile };

struct Result {
  Outcome outcome = Outcome::kDone;
  std::string problem;
};

// Runs a rank's part. Nothing escapes, since other ranks wait.
template <typename Work>
Result guarded(const Work& work) {
  try {
    return {work(), ""};
  } catch (const Mismatch& error) {
    return {Outcome::kMismatch, error.what()};
  } catch (const CommitRefused& error) {
    return {Outcome::kRefused, error.what()};
  } catch (const DamagedCheckpoint& error) {
    return {Outcome::kDamaged, error.what()};
  } catch (const c10::Error& error) {
    return {Outcome::kFile, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {Outcome::kFile, error.what()};
  }
}

void raise(Outcome outcome, const std::string& problem) {
  if (outcome == Outcome::kDamaged) throw CheckpointDamagedError(problem);
  if (outcome == Outcome::kMismatch) throw CheckpointMismatchError(problem);
  if (outcome == Outcome::kRefused) throw CheckpointRefusedError(problem);
  if (outcome == Outcome::kFile) throw CheckpointFileError(problem);
}

// Collective: what one rank has met is raised on all.
void raise_together(c10d::ProcessGroup& group, c10::Device device, const Result& own) {
  const char kind = static_cast<char>('0' + static_cast<int>(own.outcome));
  const bool is_problem = own.outcome != Outcome::kDone;
  const std::string common = common_problem(group, device, is_problem ? kind + own.problem : "");
  if (common.empty()) return;
  raise(static_cast<Outcome>(common[0] - '0'), common.substr(1));
}

// Collective: what rank 0 has found, in the words of all ranks.
json broadcast_found(c10d::ProcessGroup& group, c10::Device device, const Result& result,
                     const std::optional<FoundCheckpoint>& found) {
  json header;
  if (group.getRank() == 0) {
    header = {{"outcome", static_cast<int>(result.outcome)}, {"problem", result.problem}};
    if (found) {
      header["name"] = std::filesystem::path(found->path).filename().string();
      header["digest"] = HexEncode(Sha256(found->contents.manifest));
      header["remedy"] = found->remedy;
    }
  }
  return json::parse(
      broadcast_text(group, device, header.dump(-1, ' ', false, json::error_handler_t::replace)));
}

// Null where this rank does not see the checkpoint.
std::unique_ptr<detail::CheckpointReader> open_if_seen(const std::string& path,
                                                       const std::string& digest) {
  const std::string manifest = path + "/" + kManifestName;
  const auto text = os::ReadFile(manifest);
  if (!text.ok() || HexEncode(Sha256(*text)) != digest) return nullptr;
  return std::make_unique<detail::CheckpointReader>(
      StepDirectory{path, value_of(DecodeManifest(manifest, *text))});
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::string path, CheckpointOptions options)
    : writer_(std::make_shared<detail::CheckpointWriter>(path, options)),
      path_(std::move(path)),
      options_(std::move(options)) {}

namespace {

void check_call(const char* name, const torch::nn::Module& module,
                torch::optim::Optimizer& optimizer, const KeptValues& kept) {
  check_collectives_allowed([&] { return std::string(name) + "()"; });
  check_parameters_of(optimizer, module);
  kept.check_stepped(module);
  kept.list_moments();
  optimizer_kind(optimizer);  // raises for an unknown one
}

}  // namespace

void CheckpointDirectory::save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                               const TrainingProgress& progress, const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::save";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->save(module, optimizer, progress, kept, /*in_background=*/false);
}

void CheckpointDirectory::save_async(const torch::nn::Module& module,
                                     torch::optim::Optimizer& optimizer,
                                     const TrainingProgress& progress, const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::save_async";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->save(module, optimizer, progress, kept, /*in_background=*/true);
}

void CheckpointDirectory::wait() {
  constexpr const char* kName = "CheckpointDirectory::wait";
  const CallScope scope(kName);
  check_collectives_allowed([&] { return std::string(kName) + "()"; });
  writer_->wait();
}

bool CheckpointDirectory::is_writing() const { return writer_->is_writing(); }

std::optional<TrainingProgress> CheckpointDirectory::load(torch::nn::Module& module,
                                                          torch::optim::Optimizer& optimizer,
                                                          const KeptValues& kept) {
  constexpr const char* kName = "CheckpointDirectory::load";
  const CallScope scope(kName);
  check_call(kName, module, optimizer, kept);
  writer_->wait();
  const GroupArgument::Handle group = options_.group.get();
  const Parts parts(module, kept);
  const c10::Device device = parts.device();

  std::optional<FoundCheckpoint> found;
  Result result;
  detail::run_patiently(*group, device, [&] {
    if (group->getRank() != 0) return;
    result = guarded([&] {
      found = detail::find_newest(path_, step_to_load(path_), options_.identity,
                                  options_.former_file, parts, optimizer, kept);
      return found ? Outcome::kDone : Outcome::kNothing;
    });
  });
  const json header = broadcast_found(*group, device, result, found);
  const auto outcome = static_cast<Outcome>(header.at("outcome").get<int>());
  raise(outcome, header.at("problem").get<std::string>());
  if (outcome == Outcome::kNothing) return std::nullopt;

  // What is damaged is found before anything is changed.
  const std::string path = path_ + "/" + header.at("name").get<std::string>();
  const auto remedy = header.at("remedy").get<std::string>();
  std::unique_ptr<detail::CheckpointReader> reader;
  const auto with_remedy = [&](const std::function<void()>& work) {
    detail::run_patiently(*group, device, [&] {
      result = guarded([&] {
        work();
        return Outcome::kDone;
      });
    });
    if (result.outcome == Outcome::kDamaged) result.problem += remedy;
    raise_together(*group, device, result);
  };
  with_remedy([&] {
    reader = open_if_seen(path, header.at("digest").get<std::string>());
    if (found && !reader) throw std::runtime_error(path + " has changed while it was read");
  });
  const std::vector<int64_t> sees = number_by_rank(*group, device, reader ? 1 : 0);
  const auto readers = static_cast<size_t>(std::count(sees.begin(), sees.end(), 1));
  const auto place = sees.begin() + group->getRank();
  const auto index = static_cast<size_t>(std::count(sees.begin(), place, 1));
  with_remedy([&] {
    if (reader) reader->verify(index, readers);
  });

  Manifest manifest;
  try {
    manifest = detail::hand_on(group, 0, found ? std::optional(found->contents) : std::nullopt,
                               "the checkpoint in " + path_, parts, optimizer, kept,
                               [&](std::vector<detail::Target>& targets) {
                                 if (readers == sees.size())
                                   return with_remedy([&] { reader->fill(targets); });
                                 detail::broadcast_targets(
                                     group, 0, device, targets,
                                     [&](const detail::Target& target, uint64_t from,
                                         std::span<char> to) { reader->read(target, from, to); });
                               });
  } catch (const Mismatch& error) {
    throw CheckpointMismatchError(error.what());
  } catch (const DamagedCheckpoint& error) {
    throw CheckpointDamagedError(error.what() + remedy);
  } catch (const std::runtime_error& error) {
    throw CheckpointFileError(error.what());
  }
  detail::note_sequence(path_, manifest.sequence);
  detail::set_saved_generators(device, manifest, *group);
  return TrainingProgress{manifest.step, manifest.sampler};
}

void write_parameters(const std::string& path, const torch::nn::Module& module) {
  const KeptValues nothing;
  const Parts parts(module, nothing);
  std::map<std::string, at::Tensor> tensors;
  for (const detail::Part& part : parts.list) {
    if (part.is_parameter) tensors[part.name] = part.whole();
  }
  write_tensors(path, tensors);
}

}  // namespace meshrun
