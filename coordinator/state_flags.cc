#include "coordinator/state_flags.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "coordinator/etcd/target.h"
#include "core/os/host_name.h"
#include "core/parse_integer.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kLongestRestoredName = 128;

template <typename... Parts>
absl::Status Wrong(fmt::format_string<Parts...> text, Parts&&... parts) {
  return absl::InvalidArgumentError(fmt::format(text, std::forward<Parts>(parts)...));
}

// The port of "HOST:PORT"; 0: there is none.
uint16_t PortOf(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return 0;
  return ParseInteger<uint16_t>(address.substr(colon + 1)).value_or(0);
}

absl::StatusOr<uint64_t> QuotaOf(const std::string& text) {
  auto bytes = ParseBytes(text);
  if (!bytes.ok()) return Annotate(bytes.status(), "--etcd-quota-bytes");
  if (*bytes == 0) return Wrong("--etcd-quota-bytes {}: write a size above 0", text);
  return bytes;
}

absl::Status CheckEtcdFlags(const StateFlags& flags) {
  MESHRUN_RETURN_IF_ERROR(Annotate(etcd::ParseTarget(flags.state).status(), "--state"));
  const rpc::TlsFiles& tls = flags.etcd_tls;
  if (tls.cert.empty() != tls.key.empty()) {
    return Wrong("{} without {}: pass both, or neither",
                 tls.cert.empty() ? "--etcd-key" : "--etcd-cert",
                 tls.cert.empty() ? "--etcd-cert" : "--etcd-key");
  }
  if (!tls.cert.empty() && tls.ca.empty()) {
    return Wrong("--etcd-cert without --etcd-ca: pass the file of etcd's authority too");
  }
  if (flags.etcd_user.empty() != flags.etcd_password_file.empty()) {
    return flags.etcd_user.empty()
               ? Wrong("--etcd-password-file without --etcd-user: name the user")
               : Wrong(
                     "--etcd-user {} without --etcd-password-file: name the file that holds the "
                     "user's password",
                     flags.etcd_user);
  }
  if (flags.name.empty() || flags.name.find_first_of("/ ,\t\n") != std::string::npos) {
    return Wrong(
        "--name '{}': write a name without blanks, commas and slashes, of which there is "
        "one among the coordinators",
        flags.name);
  }
  if (!flags.import_file.empty() && flags.restored) {
    return Wrong("--import asks the hosts what they run, as --restored does: leave --restored out");
  }
  return absl::OkStatus();
}

}  // namespace

void AddStateFlags(CLI::App& app, StateFlags* flags) {
  app.add_option("--state-dir", flags->state_dir,
                 "Directory of jobs, nodes and events; one coordinator at a time");
  app.add_option(
      "--state", flags->state,
      "etcd://HOST:PORT,.../PREFIX: the state is in etcd, and several coordinators share "
      "it: one leads, the others stand by (docs/high_availability.md)");
  app.add_flag("--ephemeral", flags->ephemeral, "Keep the state in memory only");
  app.add_option_function<std::string>(
         "--restored",
         [flags](const std::string& name) {
           flags->restored = true;
           flags->restored_name = name;
         },
         "The state is a copy: ask the hosts what they run, let that go on, and hold jobs that may "
         "have ended since. With a name, a new one for each copy, this is done once, and the flag "
         "may stay")
      ->expected(0, 1)
      ->type_name("[NAME]");
  app.add_option("--import", flags->import_file,
                 "With --state: begin with the file of a `meshrun backup`, where etcd is still "
                 "empty, and go on as --restored does")
      ->type_name("FILE");
  app.add_option("--etcd-cert", flags->etcd_tls.cert, "PEM file: own certificate for etcd");
  app.add_option("--etcd-key", flags->etcd_tls.key, "PEM file: its private key");
  app.add_option("--etcd-ca", flags->etcd_tls.ca, "PEM file: certificates that sign etcd's");
  app.add_option("--etcd-user", flags->etcd_user, "User of etcd, where it asks for one");
  app.add_option("--etcd-password-file", flags->etcd_password_file,
                 "File with that user's password in its first line");
  app.add_option("--etcd-quota-bytes", flags->etcd_quota,
                 "The --quota-backend-bytes of etcd's members, which etcd does not tell: warnings "
                 "and meshrun_store_quota_bytes go by it (default: 2GiB, as etcd's)")
      ->type_name("SIZE");
  app.add_option("--advertise", flags->advertise,
                 "With --state: where workers, clients and the other coordinators reach this one, "
                 "HOST:PORT (default: from --listen, and the host's name where that is 0.0.0.0)");
  app.add_option("--name", flags->name,
                 "With --state: this coordinator among the others (default: the host's name)");
}

absl::Status CheckStateFlags(StateFlags* flags) {
  const int places = !flags->state_dir.empty() + flags->ephemeral + flags->is_shared();
  if (places == 0) {
    return Wrong(
        "nowhere to keep the state: pass --state-dir DIR, --state etcd://HOST:PORT, or --ephemeral "
        "to keep none");
  }
  if (places > 1) {
    return Wrong("--state-dir, --state and --ephemeral name different places: pass one of them");
  }
  if (flags->restored && flags->ephemeral) {
    return Wrong("--restored goes with --state-dir or --state: --ephemeral keeps nothing");
  }
  const std::string& name = flags->restored_name;
  if (name.size() > kLongestRestoredName || name.find_first_of("/ ,\t\n") != std::string::npos) {
    return Wrong(
        "--restored '{}': it takes a name of your choice, {} bytes at most, without blanks, commas "
        "and slashes, for example 2026-12-01",
        name, kLongestRestoredName);
  }
  if (flags->is_shared()) {
    if (flags->name.empty()) flags->name = os::HostName();
    if (!flags->etcd_quota.empty()) {
      MESHRUN_ASSIGN_OR_RETURN(flags->etcd_quota_bytes, QuotaOf(flags->etcd_quota));
    }
    return CheckEtcdFlags(*flags);
  }
  for (const auto& [flag, value] :
       {std::pair("--import", &flags->import_file), std::pair("--etcd-cert", &flags->etcd_tls.cert),
        std::pair("--etcd-key", &flags->etcd_tls.key), std::pair("--etcd-ca", &flags->etcd_tls.ca),
        std::pair("--etcd-user", &flags->etcd_user),
        std::pair("--etcd-password-file", &flags->etcd_password_file),
        std::pair("--etcd-quota-bytes", &flags->etcd_quota),
        std::pair("--advertise", &flags->advertise), std::pair("--name", &flags->name)}) {
    if (!value->empty()) {
      return Wrong("{} goes with --state etcd://..., where several coordinators share the state",
                   flag);
    }
  }
  return absl::OkStatus();
}

std::string ReadableByAll(std::string_view flag, const std::string& file) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0 || (info.st_mode & 0007) == 0) return "";
  return fmt::format("{} {}: every user of this host can read it (mode {:04o}): 'chmod 600 {}'",
                     std::string(flag), file, info.st_mode & 07777, file);
}

absl::StatusOr<std::string> AdvertisedAddress(const std::string& advertise,
                                              const std::string& listening,
                                              const std::string& host) {
  if (advertise.empty()) {
    for (const std::string_view all : {"0.0.0.0:", "[::]:"}) {
      if (listening.starts_with(all)) return fmt::format("{}:{}", host, PortOf(listening));
    }
    return listening;
  }
  if (advertise.starts_with("0.0.0.0:") || advertise.starts_with("[::]:")) {
    return Wrong("--advertise {}: that is every address of every host: write the one of this host",
                 advertise);
  }
  const bool is_address =
      rpc::UnixPath(advertise).has_value() ||
      (PortOf(advertise) != 0 && advertise.find_first_of("/ ,\t\n") == std::string::npos);
  if (!is_address) {
    return Wrong("--advertise '{}': write HOST:PORT, for example head1:7480", advertise);
  }
  return advertise;
}

std::string_view DescribeState(const StateFlags& flags) {
  if (flags.ephemeral) return "in memory";
  return flags.is_shared() ? flags.state : flags.state_dir;
}

}  // namespace meshrun::coordinator
