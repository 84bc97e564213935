// The tensors of a training as they lie in a checkpoint's files, and what this rank has of each.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/stored_values.h"

namespace meshrun::detail {

struct FileTensor {
  TensorInfo info;  // of the whole
  // This rank's elements; undefined: it has none of them.
  StoredValues bytes;
  // Null: every rank has all.
  CutPtr cut;
  // Rank 0's values count, also where other ranks have others: a buffer.
  bool is_of_rank_0 = false;
};
using FileTensors = ByFile<std::map<std::string, FileTensor>>;

// What this rank has. Collective where an optimizer's states are.
FileTensors collect(const Parts& parts, torch::optim::Optimizer& optimizer);

// Collective over `group`: marks as rank 0's what ranks have with different values. `is_alike`: all
// ranks have the same names, dtypes and shapes. Else those of the model and of kept tensors are the
// same error on all ranks, c10::ValueError. Moments may differ, since a rank may not have stepped a
// parameter: rank 0's are written, and pieces of zeros where a rank has none of its own.
// Returns the first tensor, other than a buffer, of which the ranks have other values; empty: none.
std::string agree_on(FileTensors& tensors, bool is_alike, c10d::ProcessGroup& group,
                     c10::Device device);

// Digest of names, dtypes and shapes.
int64_t digest_of_outline(const FileTensors& tensors);

// `region` of a tensor, in the elements of its stored form.
Region stored_region(const Region& region, const TensorInfo& info);

}  // namespace meshrun::detail
