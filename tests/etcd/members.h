// Three members of etcd with TLS on loopback, for tests; members.py runs them. They end with this
// object, and with the test's process, however that ends.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/etcd/client.h"
#include "core/os/fd.h"
#include "core/rpc/security.h"
#include "tests/worker/support/processes.h"

namespace meshrun::testing {

class EtcdMembers {
 public:
  // Returns when they serve; fails the test where they do not. `flags` are etcd's.
  explicit EtcdMembers(const std::vector<std::string>& flags = {});
  ~EtcdMembers();

  static constexpr int kCount = 3;
  const std::vector<std::string>& endpoints() const { return endpoints_; }
  const rpc::TlsFiles& tls() const { return tls_; }
  // To all members, the first one first; or to some of them.
  coordinator::etcd::Client::Options client() const;
  coordinator::etcd::Client::Options client(const std::vector<int>& members) const;

  int Leader();
  // SIGKILL, and its disk stays.
  void Kill(int member) { Do("kill", member); }
  void Start(int member) { Do("start", member); }
  // SIGSTOP, SIGCONT.
  void Pause(int member) { Do("pause", member); }
  void GoOn(int member) { Do("go_on", member); }
  // Until a majority answers.
  void AwaitServing() { Ask(R"(["wait_serving"])"); }
  // From now on etcd wants users: this one, whose role has its name and may do all below the
  // prefix.
  void WantUsers(const std::string& user, const std::string& password, const std::string& prefix) {
    Tell({"want_users", user, password, prefix});
  }
  void Grant(const std::string& role, const std::string& prefix) { Tell({"grant", role, prefix}); }
  void Revoke(const std::string& role, const std::string& prefix) {
    Tell({"revoke", role, prefix});
  }
  void SetPassword(const std::string& user, const std::string& password) {
    Tell({"set_password", user, password});
  }
  // What etcdctl writes.
  std::string Ctl(const std::vector<std::string>& words);

 private:
  void Do(const char* what, int member);
  void Tell(const std::vector<std::string>& command);
  // Sends a line of JSON, returns the answer's "result", as JSON.
  std::string Ask(const std::string& command);

  TemporaryDirectory directory_;
  rpc::TlsFiles tls_;
  os::UniqueFd commands_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> answers_{nullptr, &std::fclose};
  pid_t pid_ = -1;
  std::vector<std::string> endpoints_;
};

}  // namespace meshrun::testing
