// Tensors of whatever a path names. Errors: see tensor_source.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

// Tells the format by the content:
//   a step-N of ours, or a directory of them (the newest complete one)
//   a safetensors file, or a directory with model.safetensors.index.json or model.safetensors
//   a file of torch.save() (a zip; its tensors by their names in nested dicts, joined by ".")
//   a directory of torch.distributed.checkpoint (.metadata)
//   a .mdlus of PhysicsNeMo
absl::StatusOr<TensorSourcePtr> OpenTensors(const std::string& path,
                                            StepFiles files = StepFiles::kAll);

}  // namespace meshrun
