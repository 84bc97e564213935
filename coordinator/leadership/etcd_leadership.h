// Leadership by a lease in etcd, which its receivers judge by their own clocks too.
//
// Each candidate has a lease of 3 s, and a key with its name, which ends with the lease. The leader
// has two keys more (etcd/keys.h): one with its name that ends with its lease, and one without a
// lease, which it writes again every 300 ms and deletes when it gives up. A candidate leads as soon
// as it has made the leader's key. It may do so when that key is gone, and the other one is gone
// too, or has not changed for 3 s of its own clock. So
//   - nobody begins before the leader's own clock says that it has stopped: it counts from when it
//     *sent* the last write that was confirmed, and a candidate from when it saw what was written.
//     The leader's clock counts the time for which its host was suspended;
//   - etcd's clocks decide nothing. A member that was etcd's leader, stood still and goes on may
//     end leases that were renewed meanwhile elsewhere (etcd-io/etcd issue 15247; seen with
//     3.4.23). The leader then makes its key again, before anybody else may;
//   - a leader goes on while etcd is full, when it can renew leases and cannot write. A candidate
//     that does not see it write for 600 ms tries to write something itself. Where etcd is full, it
//     waits for 3 s after it has seen the leader's key.
//
// One thread does all this. It polls every 100 ms, and does not watch: a watch at a member that is
// cut off is silent, which looks as if nothing had changed. Reads go through etcd's majority.
//
// Members: the loss of one, of etcd's leader too, changes nothing, because renewals go on at
// another one in time. Without a majority Leads() becomes false in time, and Campaign goes on. The
// same holds where etcd refuses us (a role, a password) after it has let us in: a person may mend
// it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/leadership/etcd_election.h"
#include "coordinator/leadership/leadership.h"
#include "core/mutex.h"
#include "core/os/boot_time.h"

namespace meshrun::coordinator {

class EtcdLeadership : public Leadership {
 public:
  struct Options {
    // Its times are set here.
    etcd::Client::Options client;
    std::string prefix = "meshrun";
    // Unique among the candidates; without a slash.
    std::string name;
    std::string address;
    // etcd's least is 2 s with its default times.
    std::chrono::seconds ttl{3};
    // The clock of our time to lead. It goes on while the host is suspended. Any thread; tests
    // replace it.
    std::function<std::chrono::nanoseconds()> boot_time = os::BootTimeNow;
  };

  // Starts the thread, which tries until Stop; waits for nothing. Errors: INVALID_ARGUMENT,
  // NOT_FOUND (an option, a file).
  static absl::StatusOr<std::unique_ptr<EtcdLeadership>> Start(Options options);
  ~EtcdLeadership() override;

  absl::Status Campaign() override;
  bool Leads() const override;
  void OnLost(std::function<void(const std::string&)> lost) override;
  std::optional<Candidate> Leader() const override;
  std::vector<Candidate> Candidates() const override;
  std::string Problem() const override;
  void Stop() override;

  // The leader's key while we lead, for EtcdStateStore::Options.
  std::optional<etcd::OwnKey> Held() const;
  // What it has seen of the others so far.
  EtcdElection::Seen seen() const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  EtcdLeadership(Options options, std::unique_ptr<etcd::Client> client);
  // The thread's.
  void Run();
  // One turn: lease, keys, campaign.
  absl::Status Turn();
  void OnTurn(const absl::Status& status);
  // Once for each reason, and not all the time where it changes to and fro.
  void Tell(const absl::Status& failure);
  // Says to all that we still lead, and finds out whether we do.
  absl::Status Renew();
  // Whom the election has seen.
  void Show();
  // We lead: by what was confirmed, and sent then, as boot time.
  void Lead(std::chrono::nanoseconds sent);
  // If we led, tells so, and gives all back.
  void Lose(const std::string& why);
  // Stop does not interrupt it.
  void GiveBack();
  void SetCallTime();
  // While we lead.
  std::chrono::nanoseconds TimeLeft() const;
  bool IsCampaigning() const;
  TimePoint WakeAt() const;

  const Options options_;
  const std::unique_ptr<etcd::Client> client_;
  // The thread's, save its constants.
  EtcdElection election_;
  // Why the thread's last turn has failed; OK: it has not.
  absl::Status failure_;
  // What was logged of it last, and when.
  absl::Status told_;
  TimePoint told_at_;
  // Name of the leader that was logged last; empty: none is known.
  std::string told_leader_;
  // When etcd answered last.
  TimePoint answered_;
  // A turn has succeeded.
  bool was_let_in_ = false;

  // Nanoseconds of Options::boot_time; 0: we do not lead.
  std::atomic<int64_t> leads_until_{0};
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ MESHRUN_GUARDED_BY(mu_) = false;
  // The first Stop has joined the thread.
  bool stopped_ MESHRUN_GUARDED_BY(mu_) = false;
  bool gives_back_ MESHRUN_GUARDED_BY(mu_) = false;
  bool campaigning_ MESHRUN_GUARDED_BY(mu_) = false;
  bool leads_ MESHRUN_GUARDED_BY(mu_) = false;
  std::string held_ MESHRUN_GUARDED_BY(mu_);
  EtcdElection::Seen seen_ MESHRUN_GUARDED_BY(mu_);
  // Why a campaign is of no use.
  absl::Status hopeless_ MESHRUN_GUARDED_BY(mu_);
  std::function<void(const std::string&)> lost_ MESHRUN_GUARDED_BY(mu_);
  std::optional<Candidate> leader_ MESHRUN_GUARDED_BY(mu_);
  // What etcd has answered for a TTL and longer; empty: it answers.
  std::string problem_ MESHRUN_GUARDED_BY(mu_);
  std::vector<Candidate> candidates_ MESHRUN_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace meshrun::coordinator
