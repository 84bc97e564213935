// Which character devices the processes of a cgroup of version 2 can open: a program that the
// kernel asks at each open(2).
#pragma once

#include <linux/bpf.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// Answers 0 for `denied`, 1 for all others.
std::vector<bpf_insn> DenyProgram(
    const google::protobuf::RepeatedPtrField<v1::ResourceLimits::Device>& denied);

// In place of the program that an earlier call has put there. PERMISSION_DENIED: it takes root, or
// CAP_BPF with CAP_NET_ADMIN.
absl::Status AttachDeviceRules(const std::string& cgroup, const v1::ResourceLimits& limits);

}  // namespace meshrun::worker
