#include "coordinator/shared_state.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "coordinator/door.h"
#include "coordinator/elected_server.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/target.h"
#include "coordinator/http_front.h"
#include "coordinator/leadership/etcd_leadership.h"
#include "coordinator/own_certificate.h"
#include "coordinator/state_store/batched_state_store.h"
#include "coordinator/state_store/etcd_state_store.h"
#include "coordinator/state_store/import_state.h"
#include "coordinator/state_store/state_copy.h"
#include "core/log.h"
#include "core/os/files.h"
#include "core/os/host_name.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// Whether another coordinator has taken the state over since this one was first among the
// candidates: it has begun a term since, or it has led on in one that it had begun before. Other
// writes prove nothing: one that only repaired what a crash had left may have died before its term.
absl::StatusOr<bool> IsInUse(EtcdStateStore& store, const EtcdElection::Seen& seen) {
  MESHRUN_ASSIGN_OR_RETURN(const int64_t begun, store.TermBegunAt());
  if (seen.joined == 0) return false;
  return begun > seen.joined || (seen.led != 0 && begun > seen.led);
}

// What each leadership of this process begins with.
class Terms {
 public:
  Terms(const StateFlags& flags, etcd::Client::Options client, std::string prefix, Prepare prepare)
      : client_(std::move(client)),
        prefix_(std::move(prefix)),
        quota_bytes_(flags.etcd_quota_bytes),
        is_restored_(flags.restored),
        restored_name_(flags.restored_name),
        import_(flags.import_file),
        prepare_(std::move(prepare)) {}

  absl::StatusOr<Server::Options> Begin(const EtcdLeadership& leadership,
                                        const ElectedServer::Options::Note& note) {
    MESHRUN_ASSIGN_OR_RETURN(Server::Options options, prepare_(note));
    EtcdStateStore::Options state;
    state.client = client_;
    state.prefix = prefix_;
    state.held = [&leadership] { return leadership.Held(); };
    state.upkeep.notice = note;
    state.upkeep.quota_bytes = quota_bytes_;
    MESHRUN_ASSIGN_OR_RETURN(auto store, EtcdStateStore::Open(std::move(state)));
    EtcdStateStore& rows = *store;
    options.store = std::make_unique<BatchedStateStore>(std::move(store));
    options.state_engine = "etcd";
    MESHRUN_RETURN_IF_ERROR(Import(*options.store));
    if (is_restored_) {
      MESHRUN_RETURN_IF_ERROR(DeclareCopy(
          *options.store,
          {.name = restored_name_, .is_in_use = [&] { return IsInUse(rows, leadership.seen()); }}));
    }
    return options;
  }

 private:
  absl::Status Import(StateStore& store) {
    if (import_.empty()) return absl::OkStatus();
    const absl::Status imported = ImportState(import_, store);
    if (absl::IsAlreadyExists(imported)) {
      // Another coordinator has done it, a former start, or an attempt whose answer was lost.
      log::Info("there is a state already: --import does nothing", {{"file", import_}});
    } else if (!imported.ok()) {
      return Annotate(imported, "--import");
    } else {
      log::Info("the state was imported", {{"file", import_}});
    }
    import_.clear();
    return absl::OkStatus();
  }

  const etcd::Client::Options client_;
  const std::string prefix_;
  const uint64_t quota_bytes_;
  const bool is_restored_;
  const std::string restored_name_;
  std::string import_;
  const Prepare prepare_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> StartElected(
    const StateFlags& flags, Prepare prepare, std::function<void(const absl::Status&)> on_useless) {
  MESHRUN_ASSIGN_OR_RETURN(const etcd::Target target, etcd::ParseTarget(flags.state));
  if (const std::string open = ReadableByAll("--etcd-password-file", flags.etcd_password_file);
      !open.empty()) {
    log::Warning(open);
  }
  // What a leader would stumble over is said at the start.
  if (!flags.etcd_password_file.empty()) {
    MESHRUN_RETURN_IF_ERROR(
        Annotate(etcd::ReadPassword(flags.etcd_password_file).status(), "--etcd-password-file"));
  }
  if (!flags.import_file.empty()) {
    MESHRUN_RETURN_IF_ERROR(Annotate(CheckImport(flags.import_file), "--import"));
  }
  MESHRUN_ASSIGN_OR_RETURN(const Server::Options first, prepare(nullptr));
  MESHRUN_ASSIGN_OR_RETURN(auto door, Door::Open({.listen = first.listen,
                                                  .security = first.security,
                                                  .connections = first.connections,
                                                  .clock = first.clock}));
  MESHRUN_ASSIGN_OR_RETURN(const std::string address,
                           AdvertisedAddress(flags.advertise, door->address(), os::HostName()));
  MESHRUN_RETURN_IF_ERROR(CheckNamesHost(first.security, address));
  etcd::Client::Options client;
  client.endpoints = target.endpoints;
  client.tls = flags.etcd_tls;
  client.insecure_loopback = first.security.insecure_loopback;
  client.user = flags.etcd_user;
  client.password_file = flags.etcd_password_file;
  client.prefix = target.prefix;
  const auto terms = std::make_shared<Terms>(flags, client, target.prefix, std::move(prepare));
  MESHRUN_ASSIGN_OR_RETURN(
      auto leadership,
      EtcdLeadership::Start(
          {.client = client, .prefix = target.prefix, .name = flags.name, .address = address}));
  ElectedServer::Options options;
  MESHRUN_ASSIGN_OR_RETURN(options.front, OpenHttpFront(first.http, *door));
  options.name = flags.name;
  options.door = std::move(door);
  options.prepare = [terms, &leading = *leadership](const ElectedServer::Options::Note& note) {
    return terms->Begin(leading, note);
  };
  options.leadership = std::move(leadership);
  options.on_useless = std::move(on_useless);
  return ElectedServer::Start(std::move(options));
}

}  // namespace meshrun::coordinator
