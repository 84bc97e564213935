// A model in several safetensors files with an index of them, as Hugging Face's libraries write it:
// {"metadata": {...}, "weight_map": {"<tensor>": "model-00001-of-00002.safetensors", ...}}.
//
// Errors: see tensor_source.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

inline constexpr char kSafetensorsIndexName[] = "model.safetensors.index.json";

// The tensors that the index in `directory` names. All of its files must be there.
absl::StatusOr<TensorSourcePtr> OpenSafetensorsIndex(const std::string& directory);

}  // namespace meshrun
