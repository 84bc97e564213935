// Every collective on uneven pieces, as a pair: what ranks call, and what one process computes that
// has all ranks' tensors. The forward, gradient and numeric tests all run over these pairs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/manager/group_argument.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

enum class Pattern { kEven, kUneven, kSomeZero, kAllOnOne, kAllZero };
enum class MemoryLayout { kContiguous, kSliced, kTransposed };
enum class SizesForm { kAbsent, kExtents, kFullShapes };

// One point of the matrix.
struct Setting {
  at::ScalarType type = at::kFloat;
  int64_t dim = 0;
  Pattern pattern = Pattern::kUneven;
  // The members' extents; empty: those of the pattern.
  std::vector<int64_t> extents;
  MemoryLayout layout = MemoryLayout::kContiguous;
  SizesForm form = SizesForm::kExtents;
  bool use_fp32 = true;
  // Root of gather_v and scatter_v, modulo the group's size.
  int root = 0;
  // Extents beside dim: few, where each element costs evaluations.
  bool is_small = false;
};
std::string to_string(const Setting& setting);

// The members' extents along the dimension.
std::vector<int64_t> extents_of(Pattern pattern, int size);

// The group that is under test, as this rank sees it.
struct Members {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // How it is passed: the handle, a name, nothing for the world.
  GroupArgument argument;
  int rank = 0;
  int size = 1;
  // World ranks of the group's members: contents differ between groups too.
  std::vector<int> world_ranks;
  c10::Device device{c10::DeviceType::CPU};
};

struct Operation {
  std::string name;
  // Input of a member, before its layout is applied. All members have the same dtype.
  std::function<at::Tensor(int rank)> input;
  // By the collective.
  std::function<at::Tensor(const at::Tensor& own)> call;
  // What `rank` gets, out of all members' inputs; differentiable.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, int rank)> expected;
  bool is_differentiable = true;
  // Adds: gloo's and nccl's order of it is their own.
  bool sums = false;
};

std::vector<Operation> operations(const Members& members, const Setting& setting);

// The same values elsewhere in memory.
at::Tensor laid_out(const at::Tensor& tensor, MemoryLayout layout);

}  // namespace meshrun
