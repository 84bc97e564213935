// Files of PyTorch and of PhysicsNeMo, read without Python and without LibTorch. Pickles are read
// by a machine that knows a list of harmless constructors (tensors, storages, OrderedDict, dtypes,
// torch.distributed.checkpoint's metadata) and executes nothing: any other opcode or name is
// UNIMPLEMENTED, with the opcode, its offset and the name that it would have called.
//
// Errors: see tensor_source.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

// torch.save()'s zip of a state_dict, or of nested dicts and lists that hold tensors ("model" ->
// "layer.weight" is "model.layer.weight"; one tensor alone is "tensor"). Numbers, texts and so on
// beside tensors are Notes().
absl::StatusOr<TensorSourcePtr> OpenTorchSave(const std::string& path);

// A directory of torch.distributed.checkpoint (.metadata and __N_M.distcp): whole tensors, put
// together from their chunks.
absl::StatusOr<TensorSourcePtr> OpenTorchDistributedCheckpoint(const std::string& directory);

// PhysicsNeMo's Module.save(): a zip or a tar with model.pt, args.json and metadata.json, whose
// texts are Notes().
absl::StatusOr<TensorSourcePtr> OpenMdlus(const std::string& path);

}  // namespace meshrun
