// The client with a real etcd: who is let in, and what errors say.
#include "coordinator/etcd/client.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/os/files.h"
#include "tests/core/support/certificates.h"
#include "tests/etcd/members.h"

namespace meshrun::coordinator::etcd {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::EtcdMembers;
using ::testing::HasSubstr;
using ::testing::Not;

absl::Status Read(Client& client, const std::string& key) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  return client.Range(request).status();
}
absl::Status Read(Client::Options options, const std::string& key = "a") {
  const auto client = Client::Make(std::move(options));
  return client.ok() ? Read(**client, key) : client.status();
}

class ClientTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Tokens that end soon; the passwords need no costly hash here.
    members_ = new EtcdMembers({"--auth-token-ttl", "2", "--bcrypt-cost", "4"});
  }
  static void TearDownTestSuite() { delete std::exchange(members_, nullptr); }

  static EtcdMembers* members_;
};

EtcdMembers* ClientTest::members_ = nullptr;

TEST_F(ClientTest, AMemberThatIsNotThereIsPassedOver) {
  Client::Options options = members_->client();
  options.endpoints.insert(options.endpoints.begin(), "127.0.0.1:1");
  EXPECT_TRUE(Read(options).ok());
}

TEST_F(ClientTest, AMemberThatIsSilentIsLeftForTheNext) {
  Client::Options options = members_->client();
  options.attempt = milliseconds(1500);
  const auto client = *Client::Make(options);
  ASSERT_TRUE(Read(*client, "a").ok());
  // No leader of theirs: that one's silence lasts for an election.
  const int paused = members_->Leader() == 0 ? 1 : 0;
  if (paused != 0) std::swap(options.endpoints[0], options.endpoints[1]);
  const auto other = *Client::Make(options);
  ASSERT_TRUE(Read(*other, "a").ok());
  members_->Pause(paused);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(Read(*other, "a").ok());
  const auto took = std::chrono::steady_clock::now() - began;
  members_->GoOn(paused);
  EXPECT_GE(took, milliseconds(1200));
}

TEST_F(ClientTest, AnUnreachableClusterIsToldInTime) {
  Client::Options options = members_->client();
  options.endpoints = {"127.0.0.1:1", "127.0.0.1:2"};
  options.timeout = milliseconds(400);
  const auto began = std::chrono::steady_clock::now();
  const absl::Status status = Read(options);
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(8000));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cannot read: etcd at 127.0.0.1:1, 127.0.0.1:2: connection refused; "
                              "is a member there?"),
                    Not(HasSubstr("certificate"))));
}

TEST_F(ClientTest, WithoutAMajorityItIsToldWhatEachMemberAnswers) {
  EtcdMembers members;
  const auto client = *Client::Make(members.client());
  client->SetTimeout(milliseconds(1000));
  members.Kill(0);
  members.Kill(1);
  const std::string expected = fmt::format(
      "cannot get a lease: etcd at {}, {}: connection refused; {}: it answers, and etcd has no "
      "leader; is a member there? has etcd a majority?",
      members.endpoints()[0], members.endpoints()[1], members.endpoints()[2]);
  std::string text;
  // It takes the last one an election to find out.
  EXPECT_TRUE(testing::Eventually([&] {
    const absl::Status status = client->Grant(std::chrono::seconds(3)).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    text = std::string(status.message());
    return text == expected;
  })) << text;
  // What needs no majority goes on.
  EXPECT_TRUE(client->Status().ok());
}

TEST_F(ClientTest, InterruptEndsACall) {
  Client::Options options = members_->client();
  options.endpoints = {"127.0.0.1:1"};
  options.timeout = std::chrono::seconds(60);
  const auto client = *Client::Make(options);
  absl::Status status;
  std::atomic<bool> ended = false;
  std::thread caller([&] {
    status = Read(*client, "a");
    ended = true;
  });
  EXPECT_TRUE(testing::Eventually([&] {
    client->Interrupt();
    return ended.load();
  }));
  caller.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(ClientTest, CertificatesOfOthersAreRefused) {
  testing::TemporaryDirectory directory;
  const testing::CertificateAuthority other("other", directory.path());
  Client::Options options = members_->client();
  options.timeout = milliseconds(2000);
  // Its members are strangers to us, and we to them.
  options.tls = other.Sign("us");
  const absl::Status strangers = Read(options);
  EXPECT_TRUE(absl::IsUnavailable(strangers));
  EXPECT_THAT(std::string(strangers.message()),
              AllOf(HasSubstr("verify failed"), HasSubstr("come from --etcd-ca?"),
                    Not(HasSubstr("--etcd-cert"))));
  rpc::TlsFiles theirs = members_->tls();
  theirs.cert = other.Sign("us").cert;
  theirs.key = other.Sign("us").key;
  rpc::TlsFiles none = members_->tls();
  none.cert.clear();
  none.key.clear();
  for (const rpc::TlsFiles& files : {theirs, none}) {
    options.tls = files;
    const absl::Status status = Read(options);
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("it closes the connection"),
                      HasSubstr("a certificate of ours: --etcd-cert and --etcd-key"),
                      Not(HasSubstr("--etcd-ca"))));
  }
  options.tls = members_->tls();
  options.tls.cert.clear();
  const absl::Status half = Read(options);
  EXPECT_TRUE(absl::IsInvalidArgument(half)) << half;
  options.tls.key.clear();
  options.tls.ca = members_->tls().key;
  const absl::Status key = Read(options);
  EXPECT_TRUE(absl::IsInvalidArgument(key)) << key;
  EXPECT_THAT(std::string(key.message()), HasSubstr("--etcd-ca: "));
}

TEST_F(ClientTest, PlaintextIsForTestsAlone) {
  Client::Options options = members_->client();
  options.tls = {};
  EXPECT_TRUE(absl::IsInvalidArgument(Read(options)));
  options.endpoints = {"192.0.2.1:2379"};
  options.insecure_loopback = true;
  EXPECT_TRUE(absl::IsInvalidArgument(Read(options)));
}

TEST_F(ClientTest, WhatIsLargerThanARequestIsToldWithItsCure) {
  const auto client = *Client::Make(members_->client());
  // etcd's limit, and that of its gRPC.
  for (const size_t size : {1'800'000, 3'000'000}) {
    etcdserverpb::TxnRequest large;
    auto& put = *large.add_success()->mutable_request_put();
    put.set_key("a");
    put.set_value(std::string(size, 'x'));
    const absl::Status status = client->Txn(large).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--max-request-bytes"));
  }
}

// The last one: from here on etcd wants users.
TEST_F(ClientTest, ZUsersLogInAndAgainWhenTheirTokenEnds) {
  const testing::TemporaryDirectory directory;
  const auto write_password = [file = directory / "password"](const std::string& password) {
    ASSERT_TRUE(os::WriteFileAtomically(file, password + "\n").ok());
  };
  write_password("secret");
  Client::Options options = members_->client();
  options.user = "meshrun";
  options.password_file = directory / "password";
  const absl::Status too_early = Read(options);
  EXPECT_TRUE(absl::IsUnauthenticated(too_early)) << too_early;
  EXPECT_THAT(std::string(too_early.message()), HasSubstr("etcdctl auth enable"));
  members_->WantUsers("meshrun", "secret", "meshrun");

  const auto client = *Client::Make(options);
  EXPECT_TRUE(Read(*client, "meshrun/a").ok());
  const absl::Status denied = Read(*client, "other/a");
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(
      std::string(denied.message()),
      HasSubstr("a role of user meshrun needs: etcdctl role grant-permission ROLE readwrite "
                "--prefix=true meshrun/"));
  // What the upkeep and the leadership need beside it.
  EXPECT_TRUE(client->Status().ok());
  EXPECT_TRUE(client->Compact(2).ok());
  const auto lease = client->Grant(std::chrono::seconds(3));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(client->KeepAlive(lease->id()).ok());
  EXPECT_TRUE(client->Revoke(lease->id()).ok());
  EXPECT_TRUE(absl::IsNotFound(client->KeepAlive(lease->id()).status()));

  // Longer than a token lives unused.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  EXPECT_TRUE(Read(*client, "meshrun/a").ok());

  // A new password, first in the file: there is no gap.
  write_password("second");
  EXPECT_TRUE(Read(*client, "meshrun/a").ok());
  members_->SetPassword("meshrun", "second");
  EXPECT_TRUE(Read(*client, "meshrun/a").ok());
  // First at etcd: the client is refused until it is in the file.
  members_->SetPassword("meshrun", "third");
  const absl::Status wrong = Read(*client, "meshrun/a");
  EXPECT_TRUE(absl::IsUnauthenticated(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()),
              AllOf(HasSubstr("cannot log in as meshrun"), HasSubstr("--etcd-password-file")));
  ASSERT_TRUE(std::filesystem::remove(directory / "password"));
  const absl::Status gone = Read(*client, "meshrun/a");
  EXPECT_TRUE(absl::IsUnauthenticated(gone)) << gone;
  write_password("third");
  EXPECT_TRUE(Read(*client, "meshrun/a").ok());
  // The name in the certificate, which no user has.
  const absl::Status none = Read(members_->client(), "meshrun/a");
  EXPECT_FALSE(none.ok());
}

}  // namespace
}  // namespace meshrun::coordinator::etcd
