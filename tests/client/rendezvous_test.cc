// How several `meshrun run` find each other: the secret, and what their flags say.
#include "client/cli/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "client/rendezvous_secret.h"
#include "core/certificates/certificate.h"
#include "core/os/files.h"

namespace meshrun::client {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr WallNanos kNow = std::chrono::seconds(1'800'000'000);

std::string Error(const absl::Status& status) { return std::string(status.message()); }

TEST(RendezvousSecretTest, IsReadBackAndDiffersEachTime) {
  const auto made = RendezvousSecret::Make();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->text().size(), 65u);
  const auto read = RendezvousSecret::Parse(" " + made->text() + "\r\n");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->text(), made->text());
  EXPECT_NE(RendezvousSecret::Make()->text(), made->text());
}

TEST(RendezvousSecretTest, AMistypedOneIsToldAndNotShown) {
  const std::string text = RendezvousSecret::Make()->text();
  for (const size_t place : {size_t{0}, size_t{31}, size_t{33}, size_t{64}}) {
    std::string wrong = text;
    wrong[place] = wrong[place] == '7' ? '8' : '7';
    const auto read = RendezvousSecret::Parse(wrong);
    ASSERT_FALSE(read.ok()) << place;
    EXPECT_THAT(Error(read.status()), HasSubstr("halves do not fit"));
    EXPECT_THAT(Error(read.status()), Not(HasSubstr(wrong.substr(33))));
  }
  for (const std::string& wrong : {std::string(""), std::string("x"), text.substr(1), text + "0"}) {
    EXPECT_FALSE(RendezvousSecret::Parse(wrong).ok()) << wrong.size();
  }
}

TEST(RendezvousSecretTest, ItsFileIsOfThisUserAlone) {
  const std::string path = ::testing::TempDir() + "/secret";
  std::filesystem::remove(path);
  EXPECT_EQ(RendezvousSecret::Read(path).status().code(), absl::StatusCode::kNotFound);
  const auto made = RendezvousSecret::Make();
  ASSERT_TRUE(made->Write(path).ok());
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(RendezvousSecret::Read(path)->text(), made->text());
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const auto read = RendezvousSecret::Read(path);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Error(read.status()), HasSubstr("mode 0640"));
}

TEST(RendezvousSecretTest, EachNodesCertificateSaysWhatItIs) {
  const auto secret = RendezvousSecret::Make();
  const std::string directory = ::testing::TempDir() + "/certificate";
  std::filesystem::create_directories(directory);
  const auto certificate = [&](const RendezvousSecret::Holder& holder) {
    const absl::Status written = secret->WriteCertificate(holder, directory, kNow);
    EXPECT_TRUE(written.ok()) << written;
    return *certificates::ReadCertificate(*os::ReadFile(directory + "/tls.crt"));
  };
  const auto host = certificate({.user = "CORP\\ada", .host = "10.0.0.1"});
  EXPECT_TRUE(host.server);
  EXPECT_EQ(host.common_name, "CORP_ada");
  EXPECT_THAT(host.hosts, Contains("10.0.0.1"));
  EXPECT_THAT(host.uris, Contains("urn:meshrun:role:coordinator"));
  // A clock that is an hour behind still takes it.
  EXPECT_LT(host.not_before, kNow - std::chrono::hours(1));
  const auto other = certificate({.user = "ada", .host = ""});
  EXPECT_FALSE(other.server);
  EXPECT_THAT(other.uris, Contains("urn:meshrun:role:worker"));
  EXPECT_THAT(other.uris, Not(Contains("urn:meshrun:role:coordinator")));
}

TEST(RendezvousFlagsTest, EndpointsAreAsTorchrunsAre) {
  const auto parse = [](const std::string& text) { return ParseEndpoint("--x", text, 29500); };
  EXPECT_EQ(parse("gpu0")->Text(), "gpu0:29500");
  EXPECT_EQ(parse("gpu0:1234")->Text(), "gpu0:1234");
  EXPECT_EQ(parse("[::1]:1234")->Text(), "[::1]:1234");
  EXPECT_EQ(parse("[::1]")->host, "::1");
  EXPECT_EQ(parse("fe80::1")->Text(), "[fe80::1]:29500");
  for (const char* wrong :
       {"", ":1", "a:", "a:0", "a:65536", "a:b", "[::1", "[::1]1", "tcp://a:1", "a b", "a,b"}) {
    const auto parsed = parse(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_THAT(Error(parsed.status()), HasSubstr("--x")) << wrong;
  }
}

TEST(RendezvousFlagsTest, ConfTakesTorchrunsAndItsOwn) {
  const auto conf = ParseRendezvousConf(
      "join_timeout=30,last_call_timeout=5,keep_alive_interval=5,store_type=tcp,secret_file=/a/b");
  ASSERT_TRUE(conf.ok()) << conf.status();
  EXPECT_EQ(conf->timeout, std::chrono::seconds(30));
  EXPECT_EQ(conf->secret_file, "/a/b");
  EXPECT_FALSE(conf->is_host.has_value());
  EXPECT_TRUE(*ParseRendezvousConf("is_host=True")->is_host);
  EXPECT_FALSE(*ParseRendezvousConf("is_host=0")->is_host);
  EXPECT_EQ(ParseRendezvousConf("")->timeout, std::chrono::minutes(10));
  for (const char* wrong :
       {"a", "=b", "a=", "is_host=perhaps", "timeout=soon", "join_timeout=0", "foo=1"}) {
    const auto parsed = ParseRendezvousConf(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_THAT(Error(parsed.status()), HasSubstr("--rdzv-conf")) << wrong;
  }
  EXPECT_THAT(Error(ParseRendezvousConf("secretfile=x").status()),
              HasSubstr("there is no secretfile: did you mean 'secret_file'?"));
  EXPECT_THAT(Error(ParseRendezvousConf("is_host=1,foo=1").status()),
              HasSubstr("--rdzv-conf foo=1: there is no foo: write secret_file="));
}

// Prepare, without reaching for another host.
std::string Refusal(const RendezvousFlags& flags, const std::string& secret = "") {
  v1::JobSpec spec;
  spec.set_min_nodes(2);
  spec.set_max_nodes(2);
  JobContext context;
  context.variable = [&secret](const std::string& name) -> std::optional<std::string> {
    if (name == "MESHRUN_RDZV_SECRET" && !secret.empty()) return secret;
    return std::nullopt;
  };
  int signal = 0;
  const auto prepared = Rendezvous::Prepare(flags, spec, context, {}, &signal);
  if (prepared.ok()) return "";
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kInvalidArgument) << prepared.status();
  return Error(prepared.status());
}

RendezvousFlags Node(const std::string& rank) {
  RendezvousFlags flags;
  flags.node_rank = rank;
  flags.master_addr = "192.0.2.1";
  return flags;
}

TEST(RendezvousFlagsTest, WhatIsWrongIsOneSentence) {
  EXPECT_EQ(Refusal(Node("0")), "");
  EXPECT_EQ(Refusal(Node("1"), RendezvousSecret::Make()->text()), "");
  EXPECT_THAT(Refusal(Node("1")), HasSubstr("needs the secret that node 0 at 192.0.2.1:29500"));
  EXPECT_THAT(Refusal(Node("1"), "abc"), HasSubstr("MESHRUN_RDZV_SECRET: it is not what node 0"));
  EXPECT_THAT(Refusal(Node("2")), HasSubstr("--node-rank 2: write a whole number from 0 to 1"));
  RendezvousFlags flags = Node("1");
  flags.master_addr.clear();
  EXPECT_THAT(Refusal(flags), HasSubstr("--master-addr is missing"));
  EXPECT_THAT(Refusal(Node("")), HasSubstr("--node-rank is missing"));
  flags = Node("1");
  flags.backend = "etcd-v2";
  EXPECT_THAT(Refusal(flags), HasSubstr("--rdzv-backend etcd-v2"));
  flags = Node("1");
  flags.tls.cert = "/some/cert";
  EXPECT_THAT(Refusal(flags), HasSubstr("--tls-"));
  flags.tls = {"/c", "/k", "/a"};
  EXPECT_EQ(Refusal(flags), "");
  EXPECT_THAT(Refusal(flags, RendezvousSecret::Make()->text()), HasSubstr("exclude each other"));
}

TEST(RendezvousFlagsTest, WhoHasTheEndpointsAddressIsNodeZero) {
  v1::JobSpec spec;
  spec.set_min_nodes(1);
  spec.set_max_nodes(4);
  JobContext context;
  const std::string secret = RendezvousSecret::Make()->text();
  context.variable = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "MESHRUN_RDZV_SECRET") return secret;
    return std::nullopt;
  };
  const auto host = [&](const std::string& endpoint, const std::string& conf) {
    RendezvousFlags flags;
    flags.endpoint = endpoint;
    flags.conf = conf;
    int signal = 0;
    const auto prepared = Rendezvous::Prepare(flags, spec, context, {}, &signal);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() && (*prepared)->host();
  };
  EXPECT_TRUE(host("127.0.0.1:28971", ""));
  // TEST-NET-1 belongs to nobody.
  EXPECT_FALSE(host("192.0.2.1:28971", ""));
  EXPECT_TRUE(host("192.0.2.1:28971", "is_host=1"));
  EXPECT_FALSE(host("127.0.0.1:28971", "is_host=0"));
}

}  // namespace
}  // namespace meshrun::client
