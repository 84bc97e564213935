#include "parallel/checkpoint/stored_contents.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/checkpoint/read_checkpoint.h"
#include "parallel/checkpoint/regions.h"
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

// The host that wrote a file of several, "node-b", and the file.
std::string writer_of_file(const Manifest& manifest, const std::string& name) {
  // "model-00002-of-00003.safetensors".
  const size_t dash = name.find('-');
  const size_t site = dash == name.npos ? 0 : std::strtoull(name.c_str() + dash + 1, nullptr, 10);
  if (site == 0 || site > manifest.hosts.size()) return name;
  return fmt::format("{} ({})", manifest.hosts[site - 1], name);
}

// No rank sees the files of a host, and others do not have all that they hold.
[[noreturn]] void raise_missing(const StepDirectory& checkpoint, const OutlinesByFile& stored,
                                const std::string& tensor) {
  std::vector<std::string> missing;
  for (const auto& [name, file] : checkpoint.manifest.files) {
    if (kind_of_file(name) && !stored.contains(name)) {
      missing.push_back(writer_of_file(checkpoint.manifest, name));
    }
  }
  if (missing.empty()) {
    throw DamagedCheckpoint(
        fmt::format("the checkpoint {} is damaged: its pieces of {} do not fit "
                    "together",
                    checkpoint.path, tensor));
  }
  throw std::runtime_error(fmt::format(
      "the checkpoint {} lacks the part of host {}: a part of {} is in none of the files that the "
      "ranks see. Run on that host, too, or copy its files of the checkpoint to this directory",
      checkpoint.path, fmt::join(missing, ", "), tensor));
}

// A tensor of which files hold pieces.
struct PiecedTensor {
  TensorInfo info;  // without a dtype: no file that is seen has any of it
  std::vector<Region> seen;
};

// Tensors of all files that somebody sees, whole.
ByFile<Outline> whole_outlines(const StepDirectory& checkpoint, const OutlinesByFile& stored) {
  ByFile<Outline> outlines;
  ByFile<std::map<std::string, PiecedTensor>> in_pieces;
  for (const auto& [name, file] : checkpoint.manifest.files) {
    const auto kind = kind_of_file(name);
    if (!kind) continue;
    const auto outline = stored.find(name);
    for (const auto& [stored_name, piece] : file.pieces) {
      PiecedTensor& tensor = in_pieces[*kind][piece.tensor];
      tensor.info.shape = piece.global_shape;
      if (outline == stored.end()) continue;
      const TensorInfo& box = outline->second.at(stored_name);
      tensor.info.dtype = box.dtype;
      tensor.seen.push_back({piece.global_shape, piece.begin, box.shape});
    }
    if (outline == stored.end()) continue;
    for (const auto& [stored_name, info] : outline->second) {
      if (!file.pieces.contains(stored_name)) outlines[*kind][stored_name] = info;
    }
  }
  for (size_t kind = 0; kind < outlines.size(); ++kind) {
    const auto is_of_kind = [&](const auto& file) { return kind_of_file(file.first) == kind; };
    if (std::ranges::any_of(checkpoint.manifest.files, is_of_kind) &&
        std::ranges::none_of(stored, is_of_kind)) {
      raise_missing(checkpoint, stored, kFileNames[kind]);
    }
    for (auto& [name, tensor] : in_pieces[kind]) {
      if (!cover_tensor(std::move(tensor.seen))) raise_missing(checkpoint, stored, name);
      outlines[kind][name] = std::move(tensor.info);
    }
  }
  return outlines;
}

}  // namespace

Contents contents_of(const StepDirectory& checkpoint, const OutlinesByFile& stored,
                     const std::map<std::string, std::string>& identity, const Parts& parts,
                     const torch::optim::Optimizer& optimizer, const KeptValues& kept) {
  check_identity(checkpoint, identity, optimizer_kind(optimizer));
  Contents contents;
  contents.manifest = EncodeManifest(checkpoint.manifest);
  contents.outlines = whole_outlines(checkpoint, stored);
  const auto& outlines = contents.outlines;
  contents.kept_names = kept_names(outlines[kKept], checkpoint.manifest.kept_values);
  const std::string source = "the checkpoint " + checkpoint.path;
  std::string problem = difference_of_names(source, contents.kept_names, kept.names());
  if (problem.empty()) problem = difference_of_kinds(source, names_of(outlines[kKept]), kept);
  if (!problem.empty()) throw Mismatch(problem);
  const auto path = [&](FileKind kind) { return checkpoint.path + "/" + kFileNames[kind]; };
  check_parts(path(kModel), outlines[kModel], parts.list);
  check_parts(path(kKept), outlines[kKept], parts.kept);
  check_optimizer(path(kOptimizer), outlines[kOptimizer], parts, optimizer);
  return contents;
}

}  // namespace meshrun::detail
