// A client of etcd (3.4 and later) for what a coordinator does with it.
//
// A call goes to one member. Where that does not answer, it is repeated on the next one until its
// time is over. So a call may be done twice: whoever sends a transaction lets it compare what it
// changes. The member that answered last is asked first.
//
// A client with a user authenticates when it is first used, and again when its token is refused. It
// reads the file of the password each time.
//
// Threads: any method from any thread; a call waits for its answer, each at most for its timeout.
// Errors of all calls, which name the member and say what to do:
//   UNAVAILABLE: no member has answered in time, or the majority is gone; the text says what each
//     member answered. Whether a change was made is not known.
//   UNAUTHENTICATED, PERMISSION_DENIED: the user, its password, or what its role may do.
//   RESOURCE_EXHAUSTED: the database is full (alarm NOSPACE).
//   INVALID_ARGUMENT: larger than etcd's limits.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/etcd/errors.h"
#include "coordinator/etcd/kv.h"
#include "core/mutex.h"
#include "core/rpc/security.h"
#include "third_party/etcd/rpc.pb.h"

namespace meshrun::coordinator::etcd {

// First line of a file. Errors: those of os::ReadFile, INVALID_ARGUMENT (it is empty).
absl::StatusOr<std::string> ReadPassword(const std::string& file);

class Client : public Kv {
 public:
  struct Options {
    // HOST:PORT; at least one.
    std::vector<std::string> endpoints;
    // PEM files: ca alone, or all three. Read again when they change.
    rpc::TlsFiles tls;
    // Plaintext to this host, for tests alone.
    bool insecure_loopback = false;
    // Empty: none, or the one that the certificate names.
    std::string user;
    // Its first line is the password; with `user` alone.
    std::string password_file;
    // For the texts of errors: what we use lies below it.
    std::string prefix = "meshrun";
    // A member that does not answer for so long is left for the next one.
    std::chrono::milliseconds attempt{1000};
    // A call that takes longer in all has failed.
    std::chrono::milliseconds timeout{5000};
  };

  // Connects with the first call. Errors: INVALID_ARGUMENT or NOT_FOUND (a file, an option).
  static absl::StatusOr<std::unique_ptr<Client>> Make(Options options);

  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) override;
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) override;
  // A revision that was compacted before is no error.
  absl::Status Compact(int64_t revision);
  // Its id. etcd gives no lease below its own least time.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> Grant(std::chrono::seconds ttl);
  // NOT_FOUND: the lease has ended.
  absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> KeepAlive(int64_t lease);
  // Deletes its keys. A lease that has ended is no error.
  absl::Status Revoke(int64_t lease);
  // What the member that answers says of itself.
  absl::StatusOr<etcdserverpb::StatusResponse> Status();

  // Replaces Options::timeout, from the next call on.
  void SetTimeout(std::chrono::milliseconds timeout);
  // Calls under way end with CANCELLED.
  void Interrupt();

 private:
  using Attempt = std::function<grpc::Status(const std::shared_ptr<grpc::Channel>& channel,
                                             grpc::ClientContext& context)>;
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };
  enum class Needs { kMember, kMajority };

  Client(Options options, std::shared_ptr<grpc::ChannelCredentials> credentials);
  std::shared_ptr<grpc::Channel> Connect(const std::string& address) const;
  // `what` stands in the text of an error: "cannot read".
  absl::Status Call(std::string_view what, Needs needs, const Attempt& attempt);
  absl::Status CallUntil(std::chrono::steady_clock::time_point end, std::string_view what,
                         Needs needs, const Attempt& attempt, bool with_token);
  // One attempt, which Interrupt ends.
  grpc::Status Try(const Attempt& attempt, const std::shared_ptr<grpc::Channel>& channel,
                   grpc::ClientContext& context);
  absl::Status Authenticate(std::chrono::steady_clock::time_point end);
  // `silent`: it did not answer; its connection may be dead, and is not used again.
  void Leave(size_t member, bool silent);

  const Options options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Mutex mu_;
  std::vector<Member> members_ MESHRUN_GUARDED_BY(mu_);
  size_t current_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::string token_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::milliseconds timeout_ MESHRUN_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> under_way_ MESHRUN_GUARDED_BY(mu_);
  // Number of Interrupts.
  uint64_t interrupts_ MESHRUN_GUARDED_BY(mu_) = 0;
};

}  // namespace meshrun::coordinator::etcd
