// A module's values from a file of any format that core/checkpoint/open_tensors.h tells of: one
// that write_parameters() wrote, a checkpoint's model.safetensors, a file of Python's
// safetensors.torch.save_file() or torch.save(), a directory of torch.distributed.checkpoint.
//
//   read_parameters("model.safetensors", *model);   // before DistributedDataParallel takes it
//
// The file must hold every parameter under its name in named_parameters(), with its dtype and its
// unsharded shape, and nothing that the module lacks. It holds all buffers or none; without any the
// module keeps its own. Nothing is converted. A sharded parameter (nn/sharded_parameters.h) takes
// its piece.
//
// Rank 0 of `group` reads the file and sends the tensors to the others, so that hosts need no
// shared file system. Collective over `group`: all ranks that hold the module, the world where
// absent.
// Threads: one at a time. Errors are the same on every rank, and leave the module as it was:
//   CheckpointDamagedError    the file is damaged, or of a format that is not read
//   CheckpointMismatchError   one sentence with all names that are missing, unknown or different
//   CheckpointFileError       the system refuses to read
//   c10::NotImplementedError  a parameter or a buffer is a ShardTensor
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

void read_parameters(const std::string& path, torch::nn::Module& module,
                     const GroupArgument& group = {});

}  // namespace meshrun
