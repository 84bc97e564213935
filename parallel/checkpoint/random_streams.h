// LibTorch's default generators of this rank: their states, and streams of random numbers that
// differ by rank.
//
// Random operations on sharded tensors (shard/random/random_operation.h) are agreed among ranks by
// the seed of the CPU's generator and a counter. Both go along here: a stream of a rank's own has
// the seed and the counter that the ranks agree on.
//
// Threads: one at a time. gather_states() is collective, with the errors of collectives.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/checkpoint/manifest.h"

namespace torch::nn {
class Module;
}

namespace meshrun::detail {

// Bytes by kind of device ("cpu", "cuda"); and as "sharded_operations" that counter, in decimal.
using GeneratorStates = std::map<std::string, std::string>;

// Where the module draws from, beside the CPU: the device of its first parameter.
c10::Device generator_device(const torch::nn::Module& module);

// States of the generators of the CPU and of `device`. Reading them costs a few us.
GeneratorStates generator_states(c10::Device device);
// Sets what is named; the rest stays.
void set_generator_states(c10::Device device, const GeneratorStates& states);

// A stream that is a function of `states` and `stream`, another one for each `stream`.
void derive_generators(c10::Device device, const GeneratorStates& states, int64_t stream);

// As torch::manual_seed(own), on the CPU and on `device`. Random operations on sharded tensors get
// the seed `agreed`, and their counter is 0.
void seed_generators(c10::Device device, uint64_t own, uint64_t agreed);

// Sets the states that a checkpoint or a snapshot has: those of this rank where the world has as
// many ranks as that one, or where all were equal, else a stream of its own.
void set_saved_generators(c10::Device device, const Manifest& manifest,
                          const c10d::ProcessGroup& group);

int64_t digest_of_states(const GeneratorStates& states);

// The states of all ranks, by rank, on every rank.
std::vector<GeneratorStates> gather_states(c10d::ProcessGroup& group, c10::Device device,
                                           const GeneratorStates& own);

}  // namespace meshrun::detail
