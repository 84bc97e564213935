// Tensors of a torch.save() file that is all of a file, or a member of another archive.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/file_region.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

// The source is called `format`. It has `notes` beside those of the file.
absl::StatusOr<TensorSourcePtr> OpenTorchSaveRegion(const FileRegion& region,
                                                    const std::string& format,
                                                    std::map<std::string, std::string> notes);

}  // namespace meshrun
