#include "client/cli/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "client/cli/arguments.h"
#include "client/cli/context.h"
#include "core/os/host_name.h"
#include "core/os/process.h"
#include "core/os/user.h"
#include "core/rpc/security.h"
#include "core/status.h"
#include "core/suggest.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kSecretVariable[] = "MESHRUN_RDZV_SECRET";
// torchrun's.
constexpr int kStaticPort = 29500;
constexpr int kDynamicPort = 29400;
constexpr milliseconds kPause(250);
// A connection may break because node 0 is just starting or stopping.
constexpr int kRefusals = 3;
constexpr std::chrono::seconds kOthersLeave(10);
// torchrun's names in --rdzv-conf that say how its launchers poll each other and their store.
constexpr std::string_view kNoEffect[] = {"last_call_timeout",
                                          "close_timeout",
                                          "heartbeat_timeout",
                                          "keep_alive_interval",
                                          "keep_alive_max_attempt",
                                          "read_timeout",
                                          "store_type",
                                          "use_libuv",
                                          "rank",
                                          "protocol",
                                          "ssl_cert",
                                          "ssl_cert_key",
                                          "ca_cert"};

// What both nodes must have in common, as words; the first that differs.
std::string Difference(const v1::JobSpec& ours, const v1::JobSpec& theirs) {
  const auto words = [](const v1::JobSpec& spec) {
    std::string text = spec.shipped_job().empty() ? "" : "--job " + spec.shipped_job();
    for (const std::string& word : spec.command()) text += (text.empty() ? "" : " ") + word;
    return text;
  };
  const auto nodes = [](const v1::JobSpec& spec) {
    return spec.min_nodes() == spec.max_nodes()
               ? fmt::format("--nnodes {}", spec.min_nodes())
               : fmt::format("--nnodes {}:{}", spec.min_nodes(), spec.max_nodes());
  };
  const auto procs = [](const v1::JobSpec& spec) {
    const v1::ProcsPerNode& p = spec.procs_per_node();
    return "--nproc-per-node " + (p.kind_case() == v1::ProcsPerNode::kGpu   ? "gpu"
                                  : p.kind_case() == v1::ProcsPerNode::kCpu ? "cpu"
                                  : p.kind_case() == v1::ProcsPerNode::kNode
                                      ? "N"
                                      : fmt::format("{}", std::max(p.count(), 1u)));
  };
  const bool any_number = theirs.procs_per_node().kind_case() == v1::ProcsPerNode::kNode &&
                          ours.procs_per_node().kind_case() == v1::ProcsPerNode::kCount;
  const std::pair<std::string, std::string> pairs[] = {
      {words(theirs), words(ours)},
      {nodes(theirs), nodes(ours)},
      {procs(theirs), any_number ? procs(theirs) : procs(ours)},
      {"in " + theirs.working_dir(), "in " + ours.working_dir()}};
  for (const auto& [there, here] : pairs) {
    if (there != here) return fmt::format("node 0 runs '{}', and this node '{}'", there, here);
  }
  return "";
}

}  // namespace

std::vector<std::string> RendezvousFlags::Given() const {
  std::vector<std::string> names;
  const std::pair<const char*, const std::string*> flags[] = {{"--rdzv-backend", &backend},
                                                              {"--rdzv-endpoint", &endpoint},
                                                              {"--rdzv-id", &id},
                                                              {"--rdzv-conf", &conf},
                                                              {"--master-addr", &master_addr},
                                                              {"--master-port", &master_port},
                                                              {"--node-rank", &node_rank},
                                                              {"--local-addr", &local_addr}};
  for (const auto& [name, value] : flags) {
    if (!value->empty()) names.push_back(name);
  }
  return names;
}

void AddRendezvousFlags(FlagSet& flags, RendezvousFlags* f) {
  flags.Section("On several hosts, one call on each");
  flags.Text("--node-rank", &f->node_rank, "N",
             "Which of the --nnodes this one is; 0 serves the others");
  flags.Text("--master-addr", &f->master_addr, "HOST", "Where the others reach node 0");
  flags.Text("--master-port", &f->master_port, "PORT", "And at which port (default 29500)");
  flags.Text("--rdzv-endpoint", &f->endpoint, "HOST[:PORT]",
             "The same as torchrun's c10d has it: the host with that address is node 0 (default "
             "port 29400)");
  flags.Text("--rdzv-backend", &f->backend, "static|c10d", "As torchrun's");
  flags.Text("--rdzv-conf", &f->conf, "NAME=VALUE,...",
             "secret_file=FILE (mode 0600; node 0 makes a missing one), join_timeout=SECONDS "
             "(default 600), is_host=0|1");
  flags.Text("--rdzv-id", &f->id, "ID", "As torchrun's; has no effect");
  flags.Text("--local-addr", &f->local_addr, "ADDRESS",
             "Where ranks on other hosts reach this one (default: its address towards node 0)");
  flags.Text("--tls-cert", &f->tls.cert, "FILE",
             "Certificates of one authority on all nodes, in place of the secret");
  flags.Text("--tls-key", &f->tls.key, "FILE", "The certificate's key");
  flags.Text("--tls-ca", &f->tls.ca, "FILE", "The authority's certificate");
}

absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text) {
  RendezvousConf conf;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string part(rest.substr(0, comma));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name.empty() || value.empty()) {
      return absl::InvalidArgumentError(fmt::format("--rdzv-conf {}: write NAME=VALUE", part));
    }
    if (name == "secret_file") {
      conf.secret_file = value;
    } else if (name == "join_timeout" || name == "timeout") {
      const auto timeout = ParseDuration(value);
      if (!timeout.ok()) return Annotate(timeout.status(), "--rdzv-conf " + part);
      if (timeout->count() == 0) {
        return absl::InvalidArgumentError(
            fmt::format("--rdzv-conf {}: write a time above 0", part));
      }
      conf.timeout = *timeout;
    } else if (name == "is_host") {
      const bool yes = value == "1" || value == "true" || value == "True" || value == "yes";
      const bool no = value == "0" || value == "false" || value == "False" || value == "no";
      if (!yes && !no) {
        return absl::InvalidArgumentError(fmt::format("--rdzv-conf {}: write 0 or 1", part));
      }
      conf.is_host = yes;
    } else if (std::find(std::begin(kNoEffect), std::end(kNoEffect), name) == std::end(kNoEffect)) {
      std::vector<std::string> names = {"secret_file", "join_timeout", "is_host", "timeout"};
      names.insert(names.end(), std::begin(kNoEffect), std::end(kNoEffect));
      const std::string nearest = DidYouMean(name, names);
      return absl::InvalidArgumentError(fmt::format(
          "--rdzv-conf {}: there is no {}{}", part, name,
          nearest.empty() ? ": write secret_file=, join_timeout= or is_host=" : nearest));
    }
  }
  return conf;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Prepare(const RendezvousFlags& flags,
                                                                const v1::JobSpec& spec,
                                                                const JobContext& context,
                                                                const SignalHandling& signals,
                                                                int* signal) {
  std::unique_ptr<Rendezvous> out(new Rendezvous);
  out->signals_ = signals;
  if (!flags.backend.empty() && flags.backend != "static" && flags.backend != "c10d") {
    return absl::InvalidArgumentError(fmt::format(
        "--rdzv-backend {}: node 0 brings meshrun's own coordinator: write static or c10d",
        flags.backend));
  }
  MESHRUN_ASSIGN_OR_RETURN(const RendezvousConf conf, ParseRendezvousConf(flags.conf));
  const bool dynamic =
      flags.backend == "c10d" || (flags.backend.empty() && flags.node_rank.empty());
  if (!flags.node_rank.empty()) {
    const int most = static_cast<int>(spec.max_nodes()) - 1;
    MESHRUN_ASSIGN_OR_RETURN(const int rank, ParseWithin("--node-rank", flags.node_rank, 0, most));
    out->node_rank_ = static_cast<uint32_t>(rank);
  }
  if (!flags.endpoint.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(out->endpoint_, ParseEndpoint("--rdzv-endpoint", flags.endpoint,
                                                           dynamic ? kDynamicPort : kStaticPort));
  } else if (!flags.master_addr.empty()) {
    MESHRUN_ASSIGN_OR_RETURN(out->endpoint_,
                             ParseEndpoint("--master-addr", flags.master_addr, kStaticPort));
    if (!flags.master_port.empty()) {
      MESHRUN_ASSIGN_OR_RETURN(out->endpoint_.port,
                               ParseWithin("--master-port", flags.master_port, 1, 65535));
    }
  } else {
    return absl::InvalidArgumentError(
        "--master-addr is missing: the other nodes must find node 0; give the same on all of them");
  }
  if (!out->node_rank_ && flags.endpoint.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("--node-rank is missing: write which of the {} nodes this one is, from 0",
                    spec.max_nodes()));
  }
  out->timeout_ = conf.timeout;
  out->local_addr_ = flags.local_addr;
  if (dynamic) {
    // If two start on one host, the second one joins, as in torchrun.
    out->host_ = conf.is_host.value_or(IsHere(out->endpoint_)) && !PortIsTaken(out->endpoint_);
  } else {
    out->host_ = *out->node_rank_ == 0;
    if (out->host_ && PortIsTaken(out->endpoint_)) {
      return absl::InvalidArgumentError(
          fmt::format("port {0} of this host is taken: give all nodes another --master-port",
                      out->endpoint_.port));
    }
  }
  out->node_name_ = out->node_rank_ ? fmt::format("node{}-{}", *out->node_rank_, os::HostName())
                                    : fmt::format("{}-{}", os::HostName(), ::getpid());
  MESHRUN_RETURN_IF_ERROR(out->TakeSecret(conf, flags, context, signal));
  return out;
}

int Rendezvous::Pause(milliseconds time) const {
  const sigset_t set = signals_.Set();
  const timespec timeout = {.tv_sec = time.count() / 1000,
                            .tv_nsec = time.count() % 1000 * 1'000'000};
  const int signal = ::sigtimedwait(&set, nullptr, &timeout);
  // There are no ranks yet.
  if (signal == SIGTSTP) StopThisProcess();
  return signal > 0 && signals_.Ends(signal) ? signal : 0;
}

Rendezvous::~Rendezvous() {
  if (!removed_file_.empty()) ::unlink(removed_file_.c_str());
}

absl::Status Rendezvous::ReadSecretFile(const std::string& file, int* signal) {
  const auto deadline = steady_clock::now() + timeout_;
  auto read = RendezvousSecret::Read(file);
  if (!host_ && absl::IsNotFound(read.status())) {
    Say(fmt::format("waiting for {}, which node 0 writes", file));
  }
  while (!host_ && absl::IsNotFound(read.status())) {
    if (steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          fmt::format("{} did not appear within {}: node 0 writes it where it has the same "
                      "--rdzv-conf secret_file=, or in a Slurm step the same working directory, on "
                      "a file system that all nodes see",
                      file, FormatDuration(timeout_)));
    }
    if ((*signal = Pause(kPause)) != 0) return absl::CancelledError("stopped");
    read = RendezvousSecret::Read(file);
  }
  if (read.ok()) {
    secret_ = *std::move(read);
  } else if (!absl::IsNotFound(read.status())) {
    return Annotate(read.status(), "the secret's file");
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::TakeSecret(const RendezvousConf& conf, const RendezvousFlags& flags,
                                    const JobContext& context, int* signal) {
  const std::string given = context.variable(kSecretVariable).value_or("");
  tls_ = flags.tls;
  for (const auto& [name, file] :
       {std::pair<const char*, std::string*>{"MESHRUN_TLS_CERT", &tls_.cert},
        {"MESHRUN_TLS_KEY", &tls_.key},
        {"MESHRUN_TLS_CA", &tls_.ca}}) {
    if (file->empty() && flags.tls.empty()) *file = context.variable(name).value_or("");
  }
  if (given.empty() && conf.secret_file.empty() && !tls_.empty()) {
    return rpc::CheckSecurity("meshrun", endpoint_.Text(), {.tls = tls_});
  }
  if (!flags.tls.empty()) {
    return absl::InvalidArgumentError("the secret and --tls-* exclude each other");
  }
  const bool of_step = conf.secret_file.empty() && given.empty() && !flags.step_secret_file.empty();
  const std::string& file = of_step ? flags.step_secret_file : conf.secret_file;
  if (!file.empty()) {
    MESHRUN_RETURN_IF_ERROR(ReadSecretFile(file, signal));
  } else if (!given.empty()) {
    auto parsed = RendezvousSecret::Parse(given);
    if (!parsed.ok()) return Annotate(parsed.status(), kSecretVariable);
    secret_ = *std::move(parsed);
  }
  if (!secret_ && !host_) {
    return absl::InvalidArgumentError(fmt::format(
        "this node needs the secret that node 0 at {} prints, in {} or in a file of mode 0600 "
        "(--rdzv-conf secret_file=FILE), or --tls-cert, --tls-key and --tls-ca",
        endpoint_.Text(), kSecretVariable));
  }
  if (!secret_) {
    MESHRUN_ASSIGN_OR_RETURN(secret_, RendezvousSecret::Make());
    made_ = !of_step;
    secret_file_ = conf.secret_file;
    if (const absl::Status written = file.empty() ? absl::OkStatus() : secret_->Write(file);
        !written.ok()) {
      if (!of_step) return written;
      return absl::Status(
          written.code(),
          fmt::format("{}: the nodes share their secret in the job's working directory: start in "
                      "one that all nodes see and you can write in, or name a file with "
                      "--rdzv-conf secret_file=FILE",
                      std::string(written.message())));
    }
  }
  if (of_step && host_) removed_file_ = file;
  MESHRUN_ASSIGN_OR_RETURN(directory_, RunDirectory::Create(RunDirectory::DefaultParent()));
  MESHRUN_RETURN_IF_ERROR(secret_->WriteCertificate(
      {.user = os::UserName(), .host = host_ ? endpoint_.host : ""}, directory_.path(), WallNow()));
  tls_ = {.cert = directory_.path() + "/tls.crt",
          .key = directory_.path() + "/tls.key",
          .ca = directory_.path() + "/ca.crt"};
  return absl::OkStatus();
}

std::string Rendezvous::Lost() const {
  const std::string why = WhyNobodyAnswers(endpoint_);
  return fmt::format(
      "node 0 at {} has gone: {}; this node's ranks are stopped (a coordinator that "
      "outlives each node: 'meshrun submit --coordinator')",
      endpoint_.Text(),
      why == std::strerror(ECONNREFUSED) ? "its 'meshrun run' has ended"
      : why.empty()                      ? "the connection to it broke"
                                         : fmt::format("the connection to it broke ({})", why));
}

void Rendezvous::AddTo(LocalCluster::Options* options) const {
  const bool v6 = IsNumericV6(endpoint_.host);
  if (host_) {
    const bool loopback = rpc::IsLocalAddress(endpoint_.Text());
    options->listen =
        HostPort(loopback ? (v6 ? "::1" : "127.0.0.1") : (v6 ? "::" : "0.0.0.0"), endpoint_.port);
    options->coordinator = HostPort(v6 ? "::1" : "127.0.0.1", endpoint_.port);
  } else {
    options->coordinator = endpoint_.Text();
  }
  options->node_name = node_name_;
  options->lifeline_of =
      fmt::format("the 'meshrun run' {}on {}",
                  node_rank_ ? fmt::format("of node rank {} ", *node_rank_) : "", os::HostName());
  options->node_address = !local_addr_.empty() ? local_addr_ : host_ ? endpoint_.host : "";
  options->security_flags = {"--tls-cert", tls_.cert, "--tls-key", tls_.key, "--tls-ca", tls_.ca};
}

Options Rendezvous::ClientOptions() const {
  LocalCluster::Options local;
  AddTo(&local);
  Options options;
  options.address = local.coordinator;
  options.security.tls = tls_;
  return options;
}

void Rendezvous::SayHost(uint32_t nodes) const {
  if (!made_) {
    Say(fmt::format("node 0 of {} serves at {}", nodes, endpoint_.Text()));
  } else if (!secret_file_.empty()) {
    Say(fmt::format("node 0 of {} serves at {}; the others need the secret in {}", nodes,
                    endpoint_.Text(), secret_file_));
  } else {
    Say(fmt::format("node 0 of {} serves at {}; the others need {}={}", nodes, endpoint_.Text(),
                    kSecretVariable, secret_->text()));
  }
}

absl::StatusOr<v1::Job> Rendezvous::AwaitJob(const v1::JobSpec& spec,
                                             std::unique_ptr<Client>* client, int* signal) const {
  const auto deadline = steady_clock::now() + timeout_;
  bool said = false;
  int refusals = 0;
  while (true) {
    std::string why = WhyNobodyAnswers(endpoint_);
    if (why.empty()) {
      auto connected = Client::Connect(ClientOptions());
      if (!connected.ok() && !absl::IsUnavailable(connected.status()) &&
          !absl::IsDeadlineExceeded(connected.status())) {
        return connected.status();
      }
      if (!connected.ok() && ++refusals == kRefusals) {
        return absl::InvalidArgumentError(fmt::format(
            "what answers at {} and this node do not accept each other: give both the same {}",
            endpoint_.Text(), secret_ ? "secret" : "--tls-ca"));
      }
      if (connected.ok()) {
        *client = *std::move(connected);
        const auto nodes = (*client)->ListNodes();
        if (!nodes.ok()) return nodes.status();
        const std::string own = node_rank_ ? fmt::format("node{}-", *node_rank_) : node_name_;
        for (const v1::Node& node : *nodes) {
          const bool takes_part =
              node.state() == v1::NODE_STATE_HEALTHY || node.state() == v1::NODE_STATE_UNHEALTHY;
          if (!takes_part || !node.name().starts_with(own)) continue;
          return absl::InvalidArgumentError(
              fmt::format("--node-rank {}: {} is that node: each has a rank of its own",
                          *node_rank_, node.name()));
        }
        auto jobs = (*client)->List();
        if (!jobs.ok()) return jobs.status();
        if (!jobs->empty()) {
          const std::string difference = Difference(spec, jobs->front().spec());
          if (difference.empty()) return std::move(jobs->front());
          return absl::InvalidArgumentError(difference + ": call both alike");
        }
        why = "it has no job yet";
      } else {
        why = "the connection breaks";
      }
    }
    if (steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          fmt::format("node 0 was not at {} within {} ({}): start it there, or see whether a "
                      "firewall lets port {} pass",
                      endpoint_.Text(), FormatDuration(timeout_), why, endpoint_.port));
    }
    if (!said) Say(fmt::format("waiting for node 0 at {} ({})", endpoint_.Text(), why));
    said = true;
    if ((*signal = Pause(kPause)) != 0) return absl::CancelledError("stopped");
  }
}

void Rendezvous::AwaitOthers(Client& client) const {
  const auto deadline = steady_clock::now() + kOthersLeave;
  while (steady_clock::now() < deadline) {
    const auto nodes = client.ListNodes();
    if (!nodes.ok()) return;
    const bool others = std::any_of(nodes->begin(), nodes->end(), [this](const v1::Node& node) {
      return node.name() != node_name_ && node.state() != v1::NODE_STATE_SUSPECT &&
             node.state() != v1::NODE_STATE_LOST;
    });
    if (!others || Pause(milliseconds(50)) != 0) return;
  }
}

}  // namespace meshrun::client
