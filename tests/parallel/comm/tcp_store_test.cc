#include "parallel/comm/tcp_store.h"

#include <sys/socket.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/comm/network.h"
#include "parallel/manager/errors.h"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TcpStoreOptions rank_of(int rank, int world_size, int port, const std::string& identity = "job A") {
  return {.host = "127.0.0.1",
          .port = port,
          .rank = rank,
          .world_size = world_size,
          .identity = identity,
          .timeout = milliseconds(20000)};
}

int free_port() { return bound_port(*bind_port("127.0.0.1", 0)); }

std::string error_of(const TcpStoreOptions& options) {
  try {
    join_tcp_store(options);
  } catch (const RendezvousError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no error";
}

TEST(TcpStoreTest, AStrangerIsRefusedWithBothIdentities) {
  const int port = free_port();
  const TcpRendezvous owner = join_tcp_store(rank_of(0, 1, port));
  EXPECT_THAT(error_of(rank_of(1, 2, port, "job B")),
              AllOf(HasSubstr("\"job A\""), HasSubstr("\"job B\""), HasSubstr(std::to_string(port)),
                    HasSubstr("MASTER_PORT"), HasSubstr("MESHRUN_JOB_ID")));
}

TEST(TcpStoreTest, AStrangersRankZeroFindsThePortTaken) {
  const int port = free_port();
  const TcpRendezvous owner = join_tcp_store(rank_of(0, 1, port));
  EXPECT_THAT(
      error_of(rank_of(0, 1, port, "job B")),
      AllOf(HasSubstr("port " + std::to_string(port) + " is taken"), HasSubstr("MASTER_PORT")));
}

TEST(TcpStoreTest, AnotherProgramsStoreIsRefused) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free_port());
  options.isServer = true;
  options.waitWorkers = false;
  const auto other = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  TcpStoreOptions rank = rank_of(1, 2, options.port);
  rank.timeout = milliseconds(300);
  EXPECT_THAT(error_of(rank), HasSubstr("belongs to another program"));
}

TEST(TcpStoreTest, MissingRanksAreNamedOnEveryRank) {
  const int port = free_port();
  std::vector<std::future<std::string>> errors;
  for (const int rank : {0, 2}) {
    errors.push_back(std::async(std::launch::async, [=] {
      TcpStoreOptions options = rank_of(rank, 4, port);
      options.timeout = milliseconds(1000);
      return error_of(options);
    }));
  }
  for (auto& error : errors) {
    EXPECT_THAT(error.get(),
                AllOf(HasSubstr("2 of 4 ranks joined"), HasSubstr("missing: rank 1, 3")));
  }
}

TEST(TcpStoreTest, TwoProcessesWithOneRankAreFound) {
  const int port = free_port();
  const TcpRendezvous first = join_tcp_store(rank_of(0, 1, port));
  first.store->set("join/1", "elsewhere 42");
  EXPECT_THAT(error_of(rank_of(1, 2, port)),
              AllOf(HasSubstr("rank 1 of"), HasSubstr("elsewhere 42")));
}

TEST(TcpStoreTest, NobodyThereIsAnErrorAfterTheTimeout) {
  TcpStoreOptions options = rank_of(1, 2, free_port());
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("nobody at 127.0.0.1"), HasSubstr("0.2 s")));
}

TEST(TcpStoreTest, AnUnknownHostIsNamed) {
  TcpStoreOptions options = rank_of(1, 2, free_port());
  options.host = "no-such-host.invalid";
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), HasSubstr("\"no-such-host.invalid\" does not resolve"));
}

// A client of the instance that is ending waits for its successor on the same port.
TEST(TcpStoreTest, ARankNeverMeetsTheInstanceThatItLeft) {
  const int port = free_port();
  auto old_host = std::make_unique<TcpRendezvous>(join_tcp_store(rank_of(0, 1, port)));
  TcpStoreOptions again = rank_of(1, 2, port);
  again.last_instance = old_host->instance;
  std::future<TcpRendezvous> client =
      std::async(std::launch::async, [=] { return join_tcp_store(again); });
  TcpStoreOptions next = rank_of(0, 2, port);
  next.last_instance = old_host->instance;
  old_host.reset();
  const TcpRendezvous host = join_tcp_store(next);
  const TcpRendezvous met = client.get();
  EXPECT_EQ(met.instance, host.instance);
  EXPECT_NE(met.instance, again.last_instance);
  EXPECT_EQ(joined_hosts(*met.store, 2), (std::vector<std::string>{host_name(), host_name()}));
}

TEST(NetworkTest, KnowsLoopbackByName) {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "::", "example", ""})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(NetworkTest, ATakenPortIsAlreadyExists) {
  const OwnedSocket first = *bind_port("127.0.0.1", 0);
  EXPECT_EQ(listen(first.fd(), 1), 0);
  EXPECT_TRUE(absl::IsAlreadyExists(bind_port("127.0.0.1", bound_port(first)).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(bind_port("any-host", bound_port(first)).status()));
}

TEST(NetworkTest, TheAddressTowardsLoopbackIsLoopback) {
  EXPECT_EQ(*local_address_towards("127.0.0.1"), "127.0.0.1");
}

}  // namespace
}  // namespace meshrun
