// Coordinator processes on a copy of a state, killed before, within and after the roll call.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/os/process.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "tests/etcd/shared_members.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator {
namespace {

using testing::Eventually;
using testing::SharedEtcdMembers;
using Words = std::vector<std::string>;

// A roll call takes a lease and 2 s.
const Words kShort = {"--lease", "400ms", "--heartbeat", "100ms"};
// Long enough to be killed in.
const Words kLong = {"--lease", "8s"};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class RestoredTest : public ::testing::Test {
 protected:
  ~RestoredTest() override {
    while (!members_.empty()) Kill(members_.begin()->first);
  }

  // Its name is that of its socket.
  void Start(const std::string& name, const Words& flags) {
    const std::string socket = sockets_ / (name + ".sock");
    const std::string address = "unix:" + socket;
    // One that was killed has left it there.
    std::filesystem::remove(socket);
    os::SpawnOptions spawn;
    spawn.argv = Words{std::filesystem::absolute("coordinator/meshrun-coordinator").string(),
                       "--listen", address, "--http", "none"} +
                 flags;
    const auto pid = os::Spawn(spawn);
    ASSERT_TRUE(pid.ok()) << pid.status();
    // A connection that fails is tried again after a second only.
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(socket); }));
    members_[name] = {*pid, v1::ClusterService::NewStub(*rpc::MakeChannel("test", address, {}))};
  }
  void Kill(const std::string& name, int signal = SIGKILL) {
    ::kill(members_.at(name).pid, signal);
    testing::AwaitExit(members_.at(name).pid);
    members_.erase(name);
  }
  grpc::Status ListEvents(const std::string& name, int* roll_calls) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, std::chrono::seconds(2));
    v1::ListEventsRequest request;
    request.set_limit(10'000);
    v1::ListEventsResponse response;
    const grpc::Status status = members_.at(name).cluster->ListEvents(&context, request, &response);
    *roll_calls = 0;
    for (const v1::ClusterEvent& event : response.events()) {
      *roll_calls += event.kind() == "StateRestored";
    }
    return status;
  }
  // How many roll calls are over, once a leader takes calls; who that is then is in leader_.
  int RollCalls() {
    int count = -1;
    EXPECT_TRUE(Eventually([&] {
      for (const auto& [name, member] : members_) {
        // The first answer may come before the event of a roll call that is just over.
        if (!ListEvents(name, &count).ok() || !ListEvents(name, &count).ok()) continue;
        leader_ = name;
        return true;
      }
      return false;
    }));
    return count;
  }
  // Once one holds a roll call, who that is. Empty: there was none.
  std::string AwaitRollCall() {
    std::string holder;
    EXPECT_TRUE(Eventually([&] {
      int ignored = 0;
      for (const auto& [name, member] : members_) {
        const grpc::Status status = ListEvents(name, &ignored);
        if (status.ok()) return true;
        if (status.error_message().find("state is a copy") == std::string::npos) continue;
        holder = name;
        return true;
      }
      return false;
    }));
    return holder;
  }

  struct Member {
    pid_t pid = -1;
    std::unique_ptr<v1::ClusterService::Stub> cluster;
  };
  const testing::TemporaryDirectory sockets_;
  std::map<std::string, Member> members_;
  std::string leader_;
};

// On a directory of its own.
class RestoredDirectoryTest : public RestoredTest {
 protected:
  void StartOn(const std::string& directory, const Words& flags) {
    Start("a", flags + Words{"--state-dir", directory});
  }
  void MakeState() {
    StartOn(state_, kShort);
    ASSERT_EQ(RollCalls(), 0);
    Kill("a");
  }
  // As `meshrun backup` does.
  void Backup(const std::string& directory) {
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    grpc::ClientContext context;
    rpc::SetTimeout(context, testing::kPatience);
    const auto reader = members_.at("a").cluster->Backup(&context, v1::BackupRequest());
    std::ofstream file(directory + "/state.sqlite", std::ios::binary);
    for (v1::BackupResponse part; reader->Read(&part);) file << part.data();
    EXPECT_TRUE(reader->Finish().ok());
  }

  const std::string state_ = sockets_ / "state";
};

TEST_F(RestoredDirectoryTest, ARollCallThatWasCutShortIsHeldWithoutTheFlagToo) {
  MakeState();
  for (int i = 0; i < 2; ++i) {
    StartOn(state_, kLong + Words{"--restored"});
    ASSERT_EQ(AwaitRollCall(), "a");
    Kill("a");
  }
  for (int i = 0; i < 2; ++i) {
    StartOn(state_, kShort);
    EXPECT_EQ(RollCalls(), 1);
    Kill("a");
  }
}

TEST_F(RestoredDirectoryTest, WithANameTheFlagMayStay) {
  MakeState();
  StartOn(state_, kLong + Words{"--restored", "monday"});
  ASSERT_EQ(AwaitRollCall(), "a");
  Kill("a");
  for (const int signal : {SIGKILL, SIGTERM, SIGKILL}) {
    StartOn(state_, kShort + Words{"--restored", "monday"});
    EXPECT_EQ(RollCalls(), 1);
    Kill("a", signal);
  }
  StartOn(state_, kShort + Words{"--restored=tuesday"});
  EXPECT_EQ(RollCalls(), 2);
  Kill("a");
}

// As docs/operations.md says of it: the whole queue is held again.
TEST_F(RestoredDirectoryTest, WithoutANameEachStartHoldsARollCall) {
  MakeState();
  for (int i = 1; i <= 2; ++i) {
    StartOn(state_, kShort + Words{"--restored"});
    EXPECT_EQ(RollCalls(), i);
    Kill("a");
  }
  StartOn(state_, kShort);
  EXPECT_EQ(RollCalls(), 2);
}

TEST_F(RestoredDirectoryTest, ABackupIsANewCopyUnderAnyName) {
  MakeState();
  StartOn(state_, kShort + Words{"--restored=monday"});
  ASSERT_EQ(RollCalls(), 1);
  Backup(sockets_ / "backup");
  Kill("a");
  StartOn(sockets_ / "backup", kShort + Words{"--restored=monday"});
  EXPECT_EQ(RollCalls(), 2);
}

TEST_F(RestoredDirectoryTest, ABackupThatIsMadeInARollCallIsACopyWithoutTheFlag) {
  MakeState();
  StartOn(state_, kLong + Words{"--restored"});
  ASSERT_EQ(AwaitRollCall(), "a");
  Backup(sockets_ / "backup");
  Kill("a");
  StartOn(sockets_ / "backup", kShort);
  EXPECT_EQ(RollCalls(), 1);
}

// Several on a prefix of its own.
class RestoredEtcdTest : public RestoredTest {
 protected:
  void StartOnEtcd(const std::string& name, const Words& flags) {
    std::string state = "etcd://";
    for (const std::string& endpoint : SharedEtcdMembers().endpoints()) {
      state += (state.ends_with('/') ? "" : ",") + endpoint;
    }
    const rpc::TlsFiles& tls = SharedEtcdMembers().tls();
    Start(name, flags + Words{"--name", name, "--state", state + "/" + prefix_, "--etcd-ca", tls.ca,
                              "--etcd-cert", tls.cert, "--etcd-key", tls.key});
  }
  // It has seen that another one leads, and goes on to.
  void AwaitStandby(const std::string& name) {
    int ignored = 0;
    ASSERT_TRUE(Eventually([&] {
      return ListEvents(name, &ignored).error_message().find(" leads at ") != std::string::npos;
    }));
    for (int i = 0; i < 4; ++i) {
      // The other fields change with whatever is written, and with the member that answers.
      const auto renewal = [this] {
        const std::string fields =
            SharedEtcdMembers().Ctl({"get", prefix_ + "/leadership/renewal", "--write-out=fields"});
        const size_t begin = fields.find("\"ModRevision\"");
        EXPECT_NE(begin, std::string::npos) << fields;
        return begin == std::string::npos ? fields
                                          : fields.substr(begin, fields.find('\n', begin) - begin);
      };
      const std::string before = renewal();
      ASSERT_TRUE(Eventually([&] { return renewal() != before; }));
    }
  }
  void MakeState() {
    StartOnEtcd("old", kShort);
    ASSERT_EQ(RollCalls(), 0);
    Kill("old", SIGTERM);
  }

  const std::string prefix_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(RestoredEtcdTest, AStandbyHoldsTheRollCallsOfLeadersThatDiedInThem) {
  MakeState();
  for (const char* name : {"a", "b", "c"}) StartOnEtcd(name, kLong + Words{"--restored"});
  for (int i = 0; i < 2; ++i) {
    const std::string holder = AwaitRollCall();
    ASSERT_NE(holder, "");
    Kill(holder);
  }
  EXPECT_EQ(RollCalls(), 1) << "terms that others have begun are no roll calls";
}

TEST_F(RestoredEtcdTest, OneWithoutTheFlagHoldsItToo) {
  MakeState();
  StartOnEtcd("a", kLong + Words{"--restored"});
  ASSERT_EQ(AwaitRollCall(), "a");
  Kill("a");
  StartOnEtcd("b", kShort);
  EXPECT_EQ(RollCalls(), 1);
}

// Those that have stood by, and one that was started again with its flags: soon after, and while
// nobody writes anything.
TEST_F(RestoredEtcdTest, AfterItsEndNobodyHoldsASecondOne) {
  MakeState();
  for (const char* name : {"a", "b"}) StartOnEtcd(name, kShort + Words{"--restored"});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(RollCalls(), 1);
    const std::string leader = leader_;
    Kill(leader);
    ASSERT_EQ(RollCalls(), 1) << "the standby has taken over";
    StartOnEtcd(leader, kShort + Words{"--restored"});
    AwaitStandby(leader);
  }
}

TEST_F(RestoredEtcdTest, WithANameTheFlagMayStay) {
  MakeState();
  StartOnEtcd("a", kShort + Words{"--restored", "monday"});
  ASSERT_EQ(RollCalls(), 1);
  for (int i = 0; i < 2; ++i) {
    Kill("a", SIGTERM);
    StartOnEtcd("a", kShort + Words{"--restored", "monday"});
    EXPECT_EQ(RollCalls(), 1) << "nobody else was there";
  }
  Kill("a", SIGTERM);
  StartOnEtcd("a", kShort + Words{"--restored", "tuesday"});
  EXPECT_EQ(RollCalls(), 2);
}

TEST_F(RestoredEtcdTest, AnImportIsACopyUntilARollCallOfItIsOver) {
  const std::string directory = sockets_ / "old";
  Start("old", kShort + Words{"--state-dir", directory});
  ASSERT_EQ(RollCalls(), 0);
  Kill("old", SIGTERM);
  const Words import = {"--import", directory + "/state.sqlite"};
  StartOnEtcd("a", kLong + import);
  ASSERT_EQ(AwaitRollCall(), "a");
  Kill("a");
  // The file is not imported twice, and the copy is still one.
  StartOnEtcd("b", kShort + import);
  ASSERT_EQ(RollCalls(), 1);
  for (const Words& flags : {import, Words{}, import}) {
    Kill("b", SIGTERM);
    StartOnEtcd("b", kShort + flags);
    EXPECT_EQ(RollCalls(), 1);
  }
}

}  // namespace
}  // namespace meshrun::coordinator
