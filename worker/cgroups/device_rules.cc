#include "worker/cgroups/device_rules.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// Registers of the program.
constexpr uint8_t kAnswer = 0;
constexpr uint8_t kContext = 1;
constexpr uint8_t kKind = 2;
constexpr uint8_t kMajor = 3;
constexpr uint8_t kMinor = 4;
// The kind of the device is in the lower half of access_type.
constexpr int32_t kKindMask = 0xffff;

bpf_insn Instruction(int code, uint8_t to, uint8_t from, int16_t offset, int32_t value) {
  bpf_insn out = {};
  out.code = static_cast<uint8_t>(code);
  out.dst_reg = to & 0xf;
  out.src_reg = from & 0xf;
  out.off = offset;
  out.imm = value;
  return out;
}

bpf_insn Fetch(uint8_t to, size_t field) {
  return Instruction(BPF_LDX | BPF_MEM | BPF_W, to, kContext, static_cast<int16_t>(field), 0);
}

bpf_insn SkipUnlessEqual(uint8_t reg, int32_t value, size_t skipped) {
  return Instruction(BPF_JMP | BPF_JNE | BPF_K, reg, 0, static_cast<int16_t>(skipped), value);
}

int Bpf(int command, bpf_attr& attributes) {
  return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof(attributes)));
}

absl::StatusOr<os::UniqueFd> Load(const std::vector<bpf_insn>& program) {
  bpf_attr load;
  std::memset(&load, 0, sizeof(load));
  load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
  load.insns = reinterpret_cast<uint64_t>(program.data());
  load.insn_cnt = static_cast<uint32_t>(program.size());
  // The program needs no function of the kernel that asks for a license.
  load.license = reinterpret_cast<uint64_t>("Apache-2.0");
  os::UniqueFd loaded(Bpf(BPF_PROG_LOAD, load));
  if (!loaded) return os::ErrnoStatus(errno, "a BPF program for devices");
  return loaded;
}

}  // namespace

std::vector<bpf_insn> DenyProgram(
    const google::protobuf::RepeatedPtrField<v1::ResourceLimits::Device>& denied) {
  constexpr size_t kPerDevice = 4;
  const auto answer = [](int32_t value) {
    return Instruction(BPF_ALU64 | BPF_MOV | BPF_K, kAnswer, 0, 0, value);
  };
  const bpf_insn exit = Instruction(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
  std::vector<bpf_insn> program = {
      Fetch(kKind, offsetof(bpf_cgroup_dev_ctx, access_type)),
      Fetch(kMajor, offsetof(bpf_cgroup_dev_ctx, major)),
      Fetch(kMinor, offsetof(bpf_cgroup_dev_ctx, minor)),
      Instruction(BPF_ALU64 | BPF_AND | BPF_K, kKind, 0, 0, kKindMask),
      SkipUnlessEqual(kKind, BPF_DEVCG_DEV_CHAR, kPerDevice * denied.size()),
  };
  for (const v1::ResourceLimits::Device& device : denied) {
    program.push_back(SkipUnlessEqual(kMajor, static_cast<int32_t>(device.major()), 3));
    program.push_back(SkipUnlessEqual(kMinor, static_cast<int32_t>(device.minor()), 2));
    program.push_back(answer(0));
    program.push_back(exit);
  }
  program.push_back(answer(1));
  program.push_back(exit);
  return program;
}

absl::Status AttachDeviceRules(const std::string& cgroup, const v1::ResourceLimits& limits) {
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd loaded, Load(DenyProgram(limits.denied())));
  const os::UniqueFd group(::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!group) return os::ErrnoStatus(errno, cgroup);
  bpf_attr attach;
  std::memset(&attach, 0, sizeof(attach));
  attach.target_fd = static_cast<uint32_t>(group.get());
  attach.attach_bpf_fd = static_cast<uint32_t>(loaded.get());
  attach.attach_type = BPF_CGROUP_DEVICE;
  if (Bpf(BPF_PROG_ATTACH, attach) != 0) {
    return os::ErrnoStatus(errno, "the program for the devices of " + cgroup);
  }
  return absl::OkStatus();
}

}  // namespace meshrun::worker
