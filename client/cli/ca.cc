// meshrun ca: the certificates of a cluster.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "client/certificate_files.h"
#include "client/cli/context.h"
#include "core/exit_codes.h"
#include "core/json/json.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

constexpr uint32_t kAuthorityDays = 3650;
constexpr uint32_t kMostDays = 36500;

struct CaFlags {
  std::string authority;
  std::string name = "meshrun cluster";
  std::string out;
  uint32_t days = 0;
  CertificateRequest request;
  std::vector<std::string> directories;
  std::string output;
};

using Json = nlohmann::ordered_json;

Json ToValue(const WrittenCertificate& written) {
  Json files = Json::array();
  for (const std::string& path : written.files) files.push_back(EscapeBytes(path));
  return {{"directory", EscapeBytes(written.directory)},
          {"name", EscapeBytes(written.name)},
          {"notAfter", JsonTime(std::chrono::floor<std::chrono::seconds>(written.not_after))},
          {"files", std::move(files)}};
}

int PrintWritten(const CaFlags& flags, const WrittenCertificate& written) {
  if (flags.output == "json") {
    fmt::print("{}\n", ToValue(written).dump(2));
  } else {
    fmt::print("{}\n", written.sentence);
  }
  return kExitOk;
}

absl::StatusOr<std::string> AuthorityOf(const CaFlags& flags) {
  return flags.authority.empty() ? DefaultAuthorityDirectory() : flags.authority;
}

uint32_t DaysOf(const CaFlags& flags, uint32_t otherwise) {
  return flags.days == 0 ? otherwise : flags.days;
}

int Init(const CaFlags& flags) {
  const auto directory = AuthorityOf(flags);
  const uint32_t days = DaysOf(flags, kAuthorityDays);
  if (!directory.ok()) return Fail(directory.status());
  const auto made = InitAuthority(*directory, flags.name, days, WallNow());
  return made.ok() ? PrintWritten(flags, *made) : Fail(made.status());
}

int Issue(CaFlags flags) {
  const auto directory = AuthorityOf(flags);
  const uint32_t days = DaysOf(flags, 365);
  if (!directory.ok()) return Fail(directory.status());
  if (flags.out.empty()) return Fail(absl::InvalidArgumentError("--out DIR is missing"));
  flags.request.days = days;
  const auto made = IssueCertificate(*directory, flags.request, flags.out, WallNow());
  return made.ok() ? PrintWritten(flags, *made) : Fail(made.status());
}

int Renew(const CaFlags& flags) {
  const auto directory = AuthorityOf(flags);
  const uint32_t days = DaysOf(flags, 365);
  if (!directory.ok()) return Fail(directory.status());
  Json all = Json::array();
  int worst = kExitOk;
  std::set<std::string> said;
  for (const std::string& renewed : flags.directories) {
    const auto made = RenewCertificate(*directory, renewed, days, WallNow());
    if (!made.ok()) {
      // What is wrong with the authority is said once.
      const bool is_new = said.insert(std::string(made.status().message())).second;
      worst = std::max(worst, is_new ? Fail(made.status()) : ExitCodeOf(made.status()));
      continue;
    }
    all.push_back(ToValue(*made));
    if (flags.output != "json") fmt::print("{}\n", made->sentence);
  }
  if (flags.output == "json") fmt::print("{}\n", Json{{"certificates", all}}.dump(2));
  if (worst != kExitOk) {
    Say(fmt::format("{} of {} certificates were renewed", all.size(), flags.directories.size()));
  }
  return worst;
}

}  // namespace

void AddCa(FlagSet& root, Commands* commands) {
  auto values = std::make_shared<CaFlags>();
  FlagSet ca = root.Command(
      "ca",
      "The certificates of a cluster: who may do what over TLS\n\n"
      "One authority for a cluster. Each certificate says what its holder may: coordinator,\n"
      "worker (for its own node), submit, operate, read (docs/security.md).");
  ca.Examples(
      "  meshrun ca init\n"
      "  meshrun ca issue --role coordinator --host head.example.org --out certificates/head\n"
      "  meshrun ca issue --role worker --node gpu7 --out certificates/gpu7\n"
      "  meshrun ca issue --role submit --user ada --out certificates/ada\n"
      "  meshrun ca renew certificates/*");
  ca.ListUnder("Set up");
  FlagSet init = ca.Command("init", "Makes the authority: ca.crt and ca.key");
  init.Text("--name", &values->name, "NAME", "What it is called (default: meshrun cluster)");
  FlagSet issue =
      ca.Command("issue", "Makes a key and a certificate for it: tls.crt, tls.key, ca.crt");
  issue.Texts("--role", &values->request.roles, "ROLE",
              "coordinator, worker, submit, operate or read; may be repeated");
  issue.Text("--user", &values->request.user, "NAME",
             "Its owner: jobs are submitted under this name (default: this user)");
  issue.Texts("--node", &values->request.nodes, "NAME",
              "Of a worker: its --name; may be repeated, '*' is every node");
  issue.Texts("--host", &values->request.hosts, "NAME",
              "Of a coordinator, or of a worker with --http: a name or address at which it is "
              "reached; may be repeated");
  issue.Text("--out", &values->out, "DIR", "Where to write the three files");
  FlagSet renew = ca.Command(
      "renew",
      "Signs certificates again; keys stay\n\n"
      "Every program rereads its files: copy tls.crt to where it is used, and nothing restarts.");
  renew.Arguments("DIR", &values->directories, "Directories that 'ca issue' has written");
  for (FlagSet* command : {&init, &issue, &renew}) {
    command->ListUnder("Commands");
    command->Text("--ca", &values->authority, "DIR",
                  "The authority's directory (default: ~/.config/meshrun/ca)");
    command->Number(
        "--days", &values->days,
        command == &init ? "How long it lasts (default 3650)" : "How long it lasts (default 365)",
        1, kMostDays);
    AddOutputFlag(*command, &values->output);
  }
  commands->push_back({init.app(), [values] { return Init(*values); }});
  commands->push_back({issue.app(), [values] { return Issue(*values); }});
  commands->push_back({renew.app(), [values] { return Renew(*values); }});
}

}  // namespace meshrun::client
