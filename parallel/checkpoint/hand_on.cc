#include "parallel/checkpoint/hand_on.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/raised_by.h"
#include "parallel/checkpoint/status_errors.h"
#include "parallel/checkpoint/together.h"
#include "parallel/checkpoint/told_json.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using nlohmann::json;

constexpr uint64_t kMessageBytes = uint64_t{64} << 20;

Outline outline_of(const std::vector<Part>& parts) {
  Outline outline;
  for (const Part& part : parts) outline[part.name] = part.info();
  return outline;
}

// All that the optimizer may have.
Outline outline_of_states(const Parts& parts, const torch::optim::Optimizer& optimizer) {
  const std::vector<std::string> moments = possible_moments(optimizer);
  Outline tensors;
  for (const Part& part : parts.list) {
    if (!part.is_parameter) continue;
    for (const std::string& moment : moments) {
      tensors[moment_key(moment, part.name)] = part.info();
    }
    tensors[moment_key(kStepName, part.name)] = {"I64", {}};
  }
  return tensors;
}

// Why the root's tensors are not those of this run, with both sides; empty: they are.
// `may_lack`: the root need not have all of them.
std::string difference_of_tensors(const std::string& source, const Outline& theirs,
                                  const Outline& ours, bool may_lack = false) {
  const std::string hint =
      may_lack ? std::string() : hint_on_wrapper(names_of(theirs), names_of(ours));
  for (const auto& [name, wanted] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end()) {
      if (may_lack) continue;
      return source + " lacks " + name + ", which this run has when it restores" + hint;
    }
    if (found->second.dtype == wanted.dtype && found->second.shape == wanted.shape) continue;
    return source + " holds " + name + " as " + DescribeTensor(found->second) +
           ", but this run's is " + DescribeTensor(wanted);
  }
  for (const auto& [name, tensor] : theirs) {
    if (!ours.contains(name)) {
      return source + " holds " + name + ", which this run lacks when it restores";
    }
  }
  return "";
}

std::string difference_of_optimizers(const std::string& source, const Manifest& manifest,
                                     const torch::optim::Optimizer& optimizer) {
  const std::string kind = optimizer_kind(optimizer);
  if (manifest.optimizer != kind) {
    return source + " has the optimizer " + manifest.optimizer + ", but this run has " + kind;
  }
  // Absent in checkpoints of earlier versions: then the options stay the constructor's.
  const size_t groups = manifest.optimizer_options.size();
  if (groups == 0 || groups == optimizer.param_groups().size()) return "";
  return source + " has an optimizer with " + std::to_string(groups) +
         " groups of parameters, but this run's has " +
         std::to_string(optimizer.param_groups().size());
}

// Between what the root has and this run; empty: none.
std::string difference_of(const std::string& source, const Contents& contents,
                          const Manifest& manifest, const Parts& parts,
                          const torch::optim::Optimizer& optimizer, const KeptValues& kept) {
  const auto& outlines = contents.outlines;
  std::string problem = difference_of_names(source, contents.kept_names, kept.names());
  if (problem.empty()) problem = difference_of_kinds(source, names_of(outlines[kKept]), kept);
  if (problem.empty()) problem = difference_of_optimizers(source, manifest, optimizer);
  if (problem.empty()) {
    problem = difference_of_tensors(source, outlines[kModel], outline_of(parts.list));
  }
  if (problem.empty()) {
    problem = difference_of_tensors(source, outlines[kKept], outline_of(parts.kept));
  }
  if (problem.empty()) {
    problem = difference_of_tensors(source, outlines[kOptimizer],
                                    outline_of_states(parts, optimizer), /*may_lack=*/true);
  }
  return problem;
}

// Collective: those of the root, on every rank.
Contents broadcast_contents(c10d::ProcessGroup& group, int root, c10::Device device,
                            const std::optional<Contents>& contents) {
  json header;
  if (contents) {
    // The manifest's own form, in which binary states are text.
    header = {{"manifest", contents->manifest},
              {"kept_names", contents->kept_names},
              {"outlines", contents->outlines}};
  }
  header = json::parse(broadcast_text(
      group, device, header.dump(-1, ' ', false, json::error_handler_t::replace), root));
  return {header.at("manifest").get<std::string>(),
          header.at("kept_names").get<std::vector<std::string>>(),
          header.at("outlines").get<ByFile<Outline>>()};
}

// Collective. Raises Mismatch on every rank where a `load` of the program's raises on one.
void load_kept(c10d::ProcessGroup& group, c10::Device device, const KeptValues& kept,
               const std::map<std::string, std::string>& saved) {
  if (saved.empty()) return;
  std::string problem;
  for (const auto& [name, bytes] : saved) {
    const std::string raised = raised_by([&, &name = name, &bytes = bytes] {
      kept.load({{name, bytes}});
    });
    if (raised.empty()) continue;
    problem = "the load function of the kept value \"" + name + "\" raised on rank " +
              std::to_string(group.getRank()) + ": " + raised;
    break;
  }
  problem = common_problem(group, device, problem);
  if (!problem.empty()) throw Mismatch(problem);
}

}  // namespace

Manifest hand_on(const GroupArgument::Handle& group, int root, const std::optional<Contents>& own,
                 const std::string& source, const Parts& parts, torch::optim::Optimizer& optimizer,
                 const KeptValues& kept, const FillTargets& fill) {
  const c10::Device device = parts.device();
  const Contents contents = broadcast_contents(*group, root, device, own);
  const Manifest manifest =
      value_of(DecodeManifest("the manifest of rank " + std::to_string(root), contents.manifest));
  std::string problem;
  const std::string raised = raised_by(
      [&] { problem = difference_of(source, contents, manifest, parts, optimizer, kept); });
  problem = common_problem(*group, device, raised.empty() ? problem : raised);
  if (!problem.empty()) throw Mismatch(problem);
  // Before the moments, whose names depend on it.
  if (!manifest.optimizer_options.empty()) {
    set_group_options(optimizer, manifest.optimizer_options);
  }
  Targets targets(parts, optimizer, contents.outlines);
  fill(targets.list());
  targets.commit();
  load_kept(*group, device, kept, manifest.kept_values);
  return manifest;
}

void broadcast_targets(const GroupArgument::Handle& group, int root, c10::Device device,
                       std::vector<Target>& targets, const ReadTarget& read) {
  uint64_t total = 0;
  for (const Target& target : targets) total += target.size();
  if (total == 0) return;
  const at::Tensor message =
      at::empty({static_cast<int64_t>(std::min(total, kMessageBytes))}, at::kByte);
  auto* const memory = static_cast<char*>(message.data_ptr());
  // Calls use(target, from, part) for the parts of a message from `at` on.
  const auto visit = [&](size_t& index, uint64_t& from, uint64_t size, const auto& use) {
    for (uint64_t place = 0; place < size;) {
      Target& target = targets[index];
      const uint64_t count = std::min(size - place, target.size() - from);
      if (count > 0) use(target, from, std::span<char>(memory + place, count));
      place += count;
      from += count;
      if (from < target.size()) continue;
      ++index;
      from = 0;
    }
  };
  size_t read_index = 0, index = 0;
  uint64_t read_from = 0, from = 0;
  for (uint64_t begin = 0; begin < total; begin += kMessageBytes) {
    const uint64_t size = std::min(kMessageBytes, total - begin);
    read_together(*group, device, [&] {
      if (group->getRank() != root) return;
      visit(read_index, read_from, size,
            [&](const Target& target, uint64_t at, std::span<char> to) { read(target, at, to); });
    });
    if (group->getSize() > 1) {
      std::vector<Tensor> sent = {message.narrow(0, 0, static_cast<int64_t>(size)).to(device)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group->broadcast(sent, options)->wait();
      if (!sent[0].is_cpu()) message.narrow(0, 0, static_cast<int64_t>(size)).copy_(sent[0]);
    }
    visit(index, from, size, [](Target& target, uint64_t at, std::span<char> bytes) {
      target.take(at, {bytes.data(), bytes.size()});
    });
  }
}

}  // namespace meshrun::detail
