// Several `meshrun run` that one srun starts, once on each node: what Slurm's variables say of
// flags that the user leaves out. Pure.
//
//   --node-rank      SLURM_PROCID
//   --master-addr    the first host of SLURM_STEP_NODELIST, on which srun starts task 0
//   --master-port    follows from the cluster, the job and the step, if --master-addr is left out
//   the secret       a file in the job's working directory, which node 0 makes and removes
//
// Flags that are given stay as they are. All this assumes a working directory that is the same on
// all nodes; we send no secret through Slurm's variables, since `scontrol` and job scripts of other
// tools show them.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/cli/rendezvous.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Does nothing outside a step of several nodes. `spec`: its nodes and its working directory.
// INVALID_ARGUMENT: the step has other nodes than the job, more than one task on a node, or a
// variable that srun sets is missing or malformed.
absl::Status CompleteFromSlurm(const VariableLookup& variable, const v1::JobSpec& spec,
                               RendezvousFlags* flags);

// How to start the job of several nodes for which neither flags nor a step of Slurm say where its
// nodes are.
std::string HowToStart(const VariableLookup& variable, const v1::JobSpec& spec);

}  // namespace meshrun::client
