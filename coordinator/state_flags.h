// The flags that say where the state lives: in memory, in a directory of this host's, or in etcd,
// where other coordinators are its standbys.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/security.h"

namespace meshrun::coordinator {

struct StateFlags {
  std::string state_dir;
  bool ephemeral = false;
  // "etcd://HOST:PORT,.../PREFIX".
  std::string state;
  bool restored = false;
  // Name of the restore; empty: it has none.
  std::string restored_name;
  // A backup to begin with in etcd; empty: none.
  std::string import_file;
  rpc::TlsFiles etcd_tls;
  std::string etcd_user;
  std::string etcd_password_file;
  // Size as text; empty: etcd's default. Its number is what CheckStateFlags makes of it.
  std::string etcd_quota;
  uint64_t etcd_quota_bytes = 2ull << 30;
  // Where workers and clients reach this coordinator; empty: from --listen.
  std::string advertise;
  // Name of this coordinator among the others; empty: the host's.
  std::string name;

  // Whether there may be other coordinators on this state.
  bool is_shared() const { return !state.empty(); }
};

void AddStateFlags(CLI::App& app, StateFlags* flags);

// INVALID_ARGUMENT: flags are missing, or do not go together; says which, and what to write.
// Completes the name and the quota.
absl::Status CheckStateFlags(StateFlags* flags);

// What is wrong with the rights of a file that holds a secret: that every user of the host can read
// it. Empty: nothing.
std::string ReadableByAll(std::string_view flag, const std::string& file);

// Where others reach a coordinator that listens at `listening`: --advertise, else `listening`
// itself, with `host` in the place of an address that stands for all. INVALID_ARGUMENT.
absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise,
                                              const std::string& listening,
                                              const std::string& host);

// For messages: "in memory", the directory, or etcd's address.
std::string_view DescribeState(const StateFlags& flags);

}  // namespace meshrun::coordinator
