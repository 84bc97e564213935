// The state of training in one file that a crash cannot damage: parameters, Adam's moments, the
// step.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <cstdint>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace meshrun::geoid {

// What must be the same in both runs for the second to go on where the first stopped, by flag.
using Identity = std::map<std::string, std::string>;

// To be called by one rank.
void save_checkpoint(const std::string& path, const torch::nn::Module& network,
                     torch::optim::Adam& optimizer, int64_t step, const Identity& identity);

// To be called by all ranks of `group`; only rank 0 reads the file, so no file system need be
// shared. Returns the steps that are done, 0 where there is no file. Raises c10::ValueError on
// every rank where the file is damaged, or comes from a run of another identity (with both sides'
// values on rank 0).
int64_t load_checkpoint(const std::string& path, torch::nn::Module& network,
                        torch::optim::Adam& optimizer, const Identity& identity,
                        const c10::intrusive_ptr<c10d::ProcessGroup>& group);

// Every rank writes its own file. For comparing ranks and runs.
void dump_parameters(const std::string& path, const torch::nn::Module& network);

}  // namespace meshrun::geoid
