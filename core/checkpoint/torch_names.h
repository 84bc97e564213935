// Names of what a pickle of torch.save() holds: keys and positions of nested dicts, lists and
// tuples, joined with ".".
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/checkpoint/pickle.h"

namespace meshrun {

// Names of what is not nested at all.
inline constexpr std::string_view kUnnamedTensor = "tensor";
inline constexpr std::string_view kUnnamedValue = "value";

struct TorchNames {
  std::map<std::string, const PickleValue*> tensors;
  // All other values, as text.
  std::map<std::string, std::string> notes;
};

// Values of `pickle`, which must outlive the result. Errors begin with `where`. DATA_LOSS: values
// are nested without end. UNIMPLEMENTED: two tensors have one name, or a key has no text.
absl::StatusOr<TorchNames> NameTorchValues(const std::string& where, const Pickle& pickle);

}  // namespace meshrun
