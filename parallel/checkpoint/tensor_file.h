// A file of named tensors, whole: for comparing ranks and runs. Checkpoints are written and read
// range by range instead.
//
// Threads: any. Errors: DamagedCheckpoint, std::runtime_error; c10::TypeError for a dtype that the
// format lacks.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace meshrun {

// Writes a safetensors file. After a crash at any moment `path` has its former content or all of
// this.
void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors);

// Tensors of any file that core/checkpoint/open_tensors.h tells of, on the CPU. A complex128 tensor
// comes back as pairs.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

}  // namespace meshrun
