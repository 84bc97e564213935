#include "parallel/checkpoint/read_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/checkpoint/agreement.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/safetensors.h"
#include "parallel/checkpoint/stored_tensor.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {
namespace {

using at::Tensor;
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

std::string describe(const StoredTensor& stored) {
  return fmt::format("{} [{}]", stored.dtype, fmt::join(stored.shape, ", "));
}

// "a, b and 3 more".
std::string some_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamed);
  const std::vector<std::string> first(names.begin(), names.begin() + static_cast<int64_t>(shown));
  const std::string more =
      shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "";
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

bool holds_buffers(const TensorFile& file, const Parts& parts) {
  return std::any_of(parts.list.begin(), parts.list.end(), [&](const Part& part) {
    return !part.is_parameter && file.tensors.contains(part.name);
  });
}

// One sentence; empty: the file fits.
std::string misfit(const std::string& path, const TensorFile& file, const Parts& parts) {
  const bool with_buffers = holds_buffers(file, parts);
  std::vector<std::string> missing, unknown, different;
  std::set<std::string> known;
  for (const Part& part : parts.list) {
    known.insert(part.name);
    const auto found = file.tensors.find(part.name);
    if (found == file.tensors.end()) {
      if (part.is_parameter || with_buffers) missing.push_back(part.name);
      continue;
    }
    const StoredTensor wanted = detail::expected(part);
    if (found->second.dtype == wanted.dtype && found->second.shape == wanted.shape) continue;
    different.push_back(fmt::format("{} as {} instead of {}", part.name, describe(found->second),
                                    describe(wanted)));
  }
  for (const auto& [name, tensor] : file.tensors) {
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
                     detail::hint_on_wrapper(detail::names_of(file.tensors), known));
}

// Rank 0's part: what all ranks are told. Nothing escapes, since they wait.
std::string read_first(const std::string& path, const Parts& parts, TensorFile& file) {
  try {
    file = read_safetensors(path);
    const std::string problem = misfit(path, file, parts);
    if (!problem.empty()) return char{kMismatch} + problem;
    return std::string(1, holds_buffers(file, parts) ? kAll : kParameters);
  } catch (const SafetensorsError& error) {
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
  const bool reads = handle->getRank() == 0;
  const KeptValues none;
  const Parts parts(module, none);
  const c10::Device device = parts.device();
  TensorFile file;
  const std::string said =
      broadcast_text(*handle, device, reads ? read_first(path, parts, file) : std::string());
  raise_if_problem(said);

  const at::NoGradGuard no_grad;
  for (const Part& part : parts.list) {
    if (!part.is_parameter && said[0] == kParameters) continue;
    const Tensor whole =
        at::empty(part.global_shape(), at::TensorOptions(part.tensor.scalar_type()).device(device));
    if (reads) copy_stored(file.tensors.at(part.name), part.name, whole);
    if (handle->getSize() > 1 && whole.numel() > 0) {
      std::vector<Tensor> sent = {carried(whole)};
      handle->broadcast(sent, c10d::BroadcastOptions())->wait();
    }
    part.tensor.detach().copy_(part.shard == nullptr ? whole : shard_of(whole, *part.shard));
  }
}

}  // namespace meshrun
