// The flags with which several `meshrun run`, one on each host, find each other, as torchrun's do.
// Node 0 brings the coordinator; the others bring a worker each. Always over TLS: with the secret
// that node 0 makes (client/rendezvous_secret.h), or with certificates that all nodes are given.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/endpoint.h"
#include "client/cli/flag_set.h"
#include "client/cli/job_flags.h"
#include "client/cli/signal_handling.h"
#include "client/client.h"
#include "client/local_cluster.h"
#include "client/rendezvous_secret.h"
#include "client/run_directory.h"

namespace meshrun::client {

struct RendezvousFlags {
  std::string node_rank;
  std::string master_addr;
  std::string master_port;
  std::string backend;
  std::string endpoint;
  std::string id;
  std::string conf;
  std::string local_addr;
  rpc::TlsFiles tls;
  // No flag: where nothing else gives the secret, the file for it of a Slurm step
  // (client/cli/slurm_step.h). Node 0 makes it, and removes it at its end.
  std::string step_secret_file;

  // Those of torchrun's that were given.
  std::vector<std::string> Given() const;
};

void AddRendezvousFlags(FlagSet& flags, RendezvousFlags* values);

// What `--rdzv-conf` says. INVALID_ARGUMENT: the part and what is wrong with it.
struct RendezvousConf {
  std::string secret_file;
  std::optional<bool> is_host;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};
absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text);

class Rendezvous {
 public:
  ~Rendezvous();

  // Finds out which node this is, reads or makes the secret, and writes this node's certificate.
  // May wait for the secret's file. INVALID_ARGUMENT: the flag and what is wrong with it, or that
  // there is no secret. DEADLINE_EXCEEDED. CANCELLED: `*signal` is set.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Prepare(const RendezvousFlags& flags,
                                                             const v1::JobSpec& spec,
                                                             const JobContext& context,
                                                             const SignalHandling& signals,
                                                             int* signal);

  // This node has the coordinator.
  bool host() const { return host_; }
  const std::string& node_name() const { return node_name_; }
  std::optional<uint32_t> node_rank() const { return node_rank_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // What the coordinator's end means on another node. Asks whether its host answers: up to 3 s for
  // each of its addresses.
  std::string Lost() const;

  void AddTo(LocalCluster::Options* options) const;
  Options ClientOptions() const;

  // On node 0, once the coordinator serves: where it is, and the secret where it was made here.
  void SayHost(uint32_t nodes) const;
  // On another node: waits for node 0 and its job. INVALID_ARGUMENT: node 0 runs something else
  // than `spec`, or has another secret, or has this node already. DEADLINE_EXCEEDED: node 0 or its
  // job did not appear. CANCELLED: `*signal` is set.
  absl::StatusOr<v1::Job> AwaitJob(const v1::JobSpec& spec, std::unique_ptr<Client>* client,
                                   int* signal) const;
  // On node 0, at the end: waits until the others have read how the job ended, for at most 10 s.
  void AwaitOthers(Client& client) const;

 private:
  Rendezvous() = default;
  absl::Status TakeSecret(const RendezvousConf& conf, const RendezvousFlags& flags,
                          const JobContext& context, int* signal);
  // Leaves secret_ empty if node 0 is to make it. May wait for the file.
  absl::Status ReadSecretFile(const std::string& file, int* signal);

  // Returns the signal that is to end the job, or 0 after `time`.
  int Pause(std::chrono::milliseconds time) const;

  // They are blocked.
  SignalHandling signals_;
  bool host_ = false;
  Endpoint endpoint_;
  std::optional<uint32_t> node_rank_;
  std::string node_name_;
  std::string local_addr_;
  std::chrono::milliseconds timeout_{0};
  rpc::TlsFiles tls_;
  // Directory of the certificate that is made here; none if certificates were given.
  RunDirectory directory_;
  std::optional<RendezvousSecret> secret_;
  // Not known before: to be printed.
  bool made_ = false;
  std::string secret_file_;
  // The secret of a Slurm step, on node 0: removed at the end.
  std::string removed_file_;
};

}  // namespace meshrun::client
