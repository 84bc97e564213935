#include "parallel/checkpoint/read_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "core/hash.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

void check_tensor(const std::string& file, const Outline& tensors, const std::string& name,
                  const TensorInfo& wanted) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw Mismatch(file + " lacks " + name);
  const TensorInfo& stored = found->second;
  if (stored.dtype != wanted.dtype || stored.shape != wanted.shape) {
    throw Mismatch(file + " holds " + name + " as " + DescribeTensor(stored) +
                   ", but this run's is " + DescribeTensor(wanted));
  }
}

void check_no_more(const std::string& file, const Outline& tensors,
                   const std::set<std::string>& known) {
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name)) throw Mismatch(file + " holds " + name + ", which this run lacks");
  }
}

void check_parts(const std::string& file, const Outline& tensors, const std::vector<Part>& parts) {
  std::set<std::string> known;
  for (const Part& part : parts) known.insert(part.name);
  const std::string hint = hint_on_wrapper(names_of(tensors), known);
  for (const Part& part : parts) {
    if (!hint.empty() && !tensors.contains(part.name)) {
      throw Mismatch(file + " lacks " + part.name + hint);
    }
    check_tensor(file, tensors, part.name, part.info());
  }
  check_no_more(file, tensors, known);
}

void check_optimizer(const std::string& file, const Outline& tensors, const Parts& parts,
                     const torch::optim::Optimizer& optimizer) {
  std::set<std::string> known;
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    std::set<std::string> found;
    for (const std::string& moment : moment_names(optimizer)) {
      const std::string key = moment_key(moment, part.name);
      if (!tensors.contains(key)) continue;
      check_tensor(file, tensors, key, part.info());
      found.insert(moment);
      known.insert(key);
    }
    const std::string step = moment_key(kStepName, part.name);
    if (tensors.contains(step)) check_tensor(file, tensors, step, {"I64", {}});
    known.insert(step);
    if (found.empty()) continue;
    std::vector<std::string> required = required_moments(optimizer);
    if (counts_steps(optimizer)) required.push_back(kStepName);
    for (const std::string& moment : required) {
      const std::string key = moment_key(moment, part.name);
      if (!tensors.contains(key)) throw Mismatch(file + " lacks " + key);
    }
  }
  check_no_more(file, tensors, known);
}

void check_identity(const StepDirectory& checkpoint,
                    const std::map<std::string, std::string>& identity, const std::string& kind) {
  const std::string what = "the checkpoint " + checkpoint.path + " was written with ";
  const std::string remedy = "; give the same flags, or another directory";
  const auto& theirs = checkpoint.manifest.identity;
  for (const auto& [flag, ours] : identity) {
    const auto found = theirs.find(flag);
    const std::string value = found == theirs.end() ? "nothing" : found->second;
    if (value != ours) {
      throw Mismatch(what + flag + " " + value + ", but this run has " + ours + remedy);
    }
  }
  for (const auto& [flag, value] : theirs) {
    if (!identity.contains(flag)) {
      throw Mismatch(what + flag + " " + value + ", but this run has nothing" + remedy);
    }
  }
  if (checkpoint.manifest.optimizer != kind) {
    throw Mismatch(what + "the optimizer " + checkpoint.manifest.optimizer + ", but this run has " +
                   kind);
  }
}

// What to do where the newest is damaged. Nothing falls back by itself: steps would be lost unseen.
std::string older_one_of(const std::vector<StepDirectory>& checkpoints) {
  if (checkpoints.size() < 2) return "";
  const StepDirectory& older = checkpoints[checkpoints.size() - 2];
  return "; to go on from the one before, " + older.path + ", remove " + checkpoints.back().path +
         " and submit a new job";
}

std::vector<std::string> kept_names(const Outline& tensors, const Manifest& manifest) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  for (const auto& [name, bytes] : manifest.kept_values) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

CheckpointReader::CheckpointReader(StepDirectory step) : step_(std::move(step)) {
  for (size_t kind = 0; kind < kFileNames.size(); ++kind) {
    const auto file = step_.manifest.files.find(kFileNames[kind]);
    if (file == step_.manifest.files.end()) {
      if (kind == kKept) continue;
      throw DamagedCheckpoint(step_.path + "/" + kManifestName + " does not name " +
                              kFileNames[kind]);
    }
    files_[kind] = value_of(CheckedFile::Open(step_.path + "/" + kFileNames[kind], file->second));
  }
}

Outline CheckpointReader::outline(FileKind kind) const {
  Outline outline;
  if (files_[kind] == nullptr) return outline;
  for (const auto& [name, entry] : files_[kind]->header().tensors) outline[name] = entry.tensor;
  return outline;
}

void CheckpointReader::verify(size_t part, size_t parts) const {
  for (const auto& file : files_) {
    if (file == nullptr) continue;
    const size_t chunks = file->chunk_count();
    if (chunks == 0 && part > 0) continue;
    check_status(file->Verify(chunks * part / parts, chunks * (part + 1) / parts));
  }
}

void CheckpointReader::read(const Target& target, uint64_t from, std::span<char> to) const {
  const CheckedFile& file = *files_[target.kind()];
  const uint64_t begin = file.header().tensors.at(target.name()).begin + from;
  const CheckedFile::Interval interval{begin, begin + to.size()};
  check_status(file.Read({&interval, 1}, [&](uint64_t offset, std::string_view bytes) {
    std::ranges::copy(bytes, to.begin() + static_cast<int64_t>(offset - begin));
  }));
}

void CheckpointReader::fill(std::vector<Target>& targets) const {
  for (size_t kind = 0; kind < files_.size(); ++kind) {
    if (files_[kind] == nullptr) continue;
    const auto& entries = files_[kind]->header().tensors;
    std::vector<std::pair<uint64_t, Target*>> ordered;
    for (Target& target : targets) {
      // An empty one begins where the next one does.
      if (target.kind() != kind || target.size() == 0) continue;
      ordered.emplace_back(entries.at(target.name()).begin, &target);
    }
    std::ranges::sort(ordered, {}, [](const auto& each) { return each.first; });
    std::vector<CheckedFile::Interval> intervals;
    for (const auto& [begin, target] : ordered) {
      target->visit_needed([&, begin = begin](uint64_t first, uint64_t last) {
        if (first < last) intervals.push_back({begin + first, begin + last});
      });
    }
    auto next = ordered.begin();
    check_status(files_[kind]->Read(intervals, [&](uint64_t offset, std::string_view bytes) {
      while (std::next(next) != ordered.end() && std::next(next)->first <= offset) ++next;
      next->second->take(offset - next->first, bytes);
    }));
  }
}

std::optional<FoundCheckpoint> find_newest(const std::string& directory,
                                           std::optional<int64_t> step,
                                           const std::map<std::string, std::string>& identity,
                                           const std::string& former_file, const Parts& parts,
                                           const torch::optim::Optimizer& optimizer,
                                           const KeptValues& kept) {
  std::vector<StepDirectory> checkpoints = value_of(ListStepDirectories(directory));
  if (checkpoints.empty()) {
    const auto former = std::filesystem::path(directory) / former_file;
    if (!former_file.empty() && std::filesystem::exists(former)) {
      throw Mismatch(former.string() +
                     " is a checkpoint in the format of an earlier version, which this one does "
                     "not read; delete it, or give another directory, to start anew");
    }
    return std::nullopt;
  }
  if (step) {  // which one of them has
    std::ranges::stable_partition(
        checkpoints, [&](const StepDirectory& one) { return one.manifest.step != *step; });
  }
  const StepDirectory& newest = checkpoints.back();
  check_identity(newest, identity, optimizer_kind(optimizer));
  FoundCheckpoint found;
  found.path = newest.path;
  found.remedy = older_one_of(checkpoints);
  std::optional<CheckpointReader> reader;
  try {
    reader.emplace(newest);
  } catch (const DamagedCheckpoint& error) {
    throw DamagedCheckpoint(error.what() + found.remedy);
  }
  auto& outlines = found.contents.outlines;
  for (size_t kind = 0; kind < outlines.size(); ++kind) {
    outlines[kind] = reader->outline(static_cast<FileKind>(kind));
  }
  found.contents.manifest = read_file(newest.path + "/" + kManifestName);
  found.contents.kept_names = kept_names(outlines[kKept], newest.manifest);
  const std::string source = "the checkpoint " + newest.path;
  std::string problem = difference_of_names(source, found.contents.kept_names, kept.names());
  if (problem.empty()) problem = difference_of_kinds(source, names_of(outlines[kKept]), kept);
  if (!problem.empty()) throw Mismatch(problem);
  const auto path = [&](FileKind kind) { return newest.path + "/" + kFileNames[kind]; };
  check_parts(path(kModel), outlines[kModel], parts.list);
  check_parts(path(kKept), outlines[kKept], parts.kept);
  check_optimizer(path(kOptimizer), outlines[kOptimizer], parts, optimizer);
  return found;
}

}  // namespace meshrun::detail
