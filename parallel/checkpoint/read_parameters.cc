#include "parallel/checkpoint/read_parameters.h"

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/checkpoint/open_tensors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/hand_on.h"
#include "parallel/checkpoint/patience.h"
#include "parallel/checkpoint/status_errors.h"

namespace meshrun {
namespace {

using detail::Outline;
using detail::Part;
using detail::Parts;

// Most names that an error lists of each kind; it counts the others.
constexpr size_t kNamed = 8;

// First character of what rank 0 says: what is wrong, or which tensors follow.
enum Said : char {
  kDamaged = 'd',
  kMismatch = 'm',
  kFile = 'f',
  kParameters = 'p',
  kAll = 'a',
};

// "a, b and 3 more".
std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamed);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<int64_t>(shown));
  const std::string more =
      shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

bool holds_buffers(const Outline& file, const Parts& parts) {
  return std::any_of(parts.list.begin(), parts.list.end(), [&](const Part& part) {
    return !part.is_parameter && file.contains(part.name);
  });
}

// One sentence; empty: the file fits.
std::string misfit(const std::string& path, const Outline& file, const Parts& parts) {
  const bool with_buffers = holds_buffers(file, parts);
  std::vector<std::string> missing, unknown, different;
  std::set<std::string> known;
  for (const Part& part : parts.list) {
    known.insert(part.name);
    const auto found = file.find(part.name);
    if (found == file.end()) {
      if (part.is_parameter || with_buffers) missing.push_back(part.name);
      continue;
    }
    const TensorInfo wanted = part.info();
    if (found->second == wanted) continue;
    different.push_back(fmt::format("{} as {} instead of {}", part.name,
                                    DescribeTensor(found->second), DescribeTensor(wanted)));
  }
  for (const auto& [name, tensor] : file) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  std::vector<std::string> problems;
  if (!missing.empty()) problems.push_back("it lacks " + some_of(missing));
  if (!unknown.empty()) {
    problems.push_back("it holds " + some_of(unknown) + ", which the module does not have");
  }
  if (!different.empty()) problems.push_back("it holds " + some_of(different));
  if (problems.empty()) return "";
  return fmt::format("{} is not of this module: {}{}", path, fmt::join(problems, "; "),
                     detail::hint_on_wrapper(detail::names_of(file), known));
}

// Rank 0's part: what all ranks are told. Nothing escapes, since they wait.
std::string read_first(const std::string& path, const Parts& parts, TensorSourcePtr& source) {
  try {
    source = value_of(OpenTensors(path));
    const std::string problem = misfit(path, source->Tensors(), parts);
    if (!problem.empty()) return char{kMismatch} + problem;
    return std::string(1, holds_buffers(source->Tensors(), parts) ? kAll : kParameters);
  } catch (const DamagedCheckpoint& error) {
    return char{kDamaged} + std::string(error.what());
  } catch (const c10::Error& error) {
    return char{kFile} + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return char{kFile} + std::string(error.what());
  }
}

void raise_if_problem(const std::string& said) {
  const std::string problem = said.substr(1);
  if (said[0] == kDamaged) throw CheckpointDamagedError(problem);
  if (said[0] == kMismatch) throw CheckpointMismatchError(problem);
  if (said[0] == kFile) throw CheckpointFileError(problem);
}

}  // namespace

void read_parameters(const std::string& path, torch::nn::Module& module,
                     const GroupArgument& group) {
  const GroupArgument::Handle handle = group.get();
  const KeptValues none;
  const Parts parts(module, none);
  const c10::Device device = parts.device();
  TensorSourcePtr source;
  std::string said;
  detail::run_patiently(*handle, device, [&] {
    if (handle->getRank() == 0) said = read_first(path, parts, source);
  });
  said = broadcast_text(*handle, device, said);
  raise_if_problem(said);

  std::vector<detail::Target> targets;
  for (const Part& part : parts.list) {
    if (!part.is_parameter && said[0] == kParameters) continue;
    targets.emplace_back(detail::kModel, part.name, part.info(), part.local(), part.cut);
  }
  try {
    detail::broadcast_targets(handle, 0, device, targets,
                              [&](const detail::Target& target, uint64_t from, std::span<char> to) {
                                check_status(source->Read(target.name(), from, to));
                              });
  } catch (const DamagedCheckpoint& error) {
    throw CheckpointDamagedError(error.what());
  } catch (const std::runtime_error& error) {
    throw CheckpointFileError(error.what());
  }
  for (detail::Target& target : targets) target.finish();
}

}  // namespace meshrun
