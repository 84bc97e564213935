#include "parallel/comm/store/tcp_store.h"

#include <arpa/nameser.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/base/errors.h"
#include "parallel/base/network.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TcpStoreOptions rank_of(int rank, int world_size, int port, const std::string& identity = "job A") {
  return {.host = "127.0.0.1",
          .port = port,
          .rank = rank,
          .world_size = world_size,
          .identity = identity,
          .timeout = milliseconds(20000)};
}

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Store of a process that was never here before.
StorePtr join(const TcpStoreOptions& options) {
  InstanceHistory history;
  return join_tcp_store(options, history);
}

std::string error_of(const TcpStoreOptions& options, InstanceHistory history = {}) {
  try {
    join_tcp_store(options, history);
  } catch (const RendezvousError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no error";
}

// A name server that counts what this thread's resolver asks, and never answers.
class SilentNameServer {
 public:
  SilentNameServer() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    ::res_ninit(&_res);
    _res.nscount = 1;
    _res.nsaddr_list[0] = address;
    _res.retrans = 1;  // second
    _res.retry = 1;
  }

  int questions() {
    char byte;
    while (::recv(socket_.get(), &byte, 1, 0) >= 0) ++questions_;
    return questions_;
  }

 private:
  os::UniqueFd socket_;
  int questions_ = 0;
};

TEST(TcpStoreTest, NoNameServerIsAsked) {
  SilentNameServer names;
  const int port = free_port();
  const StorePtr owner = join(rank_of(0, 1, port));
  owner->clone()->clone()->set("key", std::vector<uint8_t>{1});
  EXPECT_TRUE(owner->check({"key"}));
  EXPECT_EQ(names.questions(), 0);
  // Its own store does ask; afterwards the thread's name servers are what they were.
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  EXPECT_TRUE(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
  EXPECT_GT(names.questions(), 0);
}

TEST(TcpStoreTest, AStrangerIsRefusedWithBothIdentities) {
  const int port = free_port();
  const StorePtr owner = join(rank_of(0, 1, port));
  EXPECT_THAT(error_of(rank_of(1, 2, port, "job B")),
              AllOf(HasSubstr("\"job A\""), HasSubstr("\"job B\""), HasSubstr(std::to_string(port)),
                    HasSubstr("MASTER_PORT"), HasSubstr("MESHRUN_JOB_ID")));
}

TEST(TcpStoreTest, AStrangersRankZeroFindsThePortTaken) {
  const int port = free_port();
  const StorePtr owner = join(rank_of(0, 1, port));
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
  const StorePtr first = join(rank_of(0, 1, port));
  first->set("join/1", "elsewhere 42");
  EXPECT_THAT(error_of(rank_of(1, 2, port)),
              AllOf(HasSubstr("rank 1 of"), HasSubstr("elsewhere 42")));
}

// What the two processes raise; neither waits until its time is up.
std::vector<std::string> errors_of_both(const TcpStoreOptions& first,
                                        const TcpStoreOptions& second) {
  std::vector<std::future<std::string>> errors;
  for (const TcpStoreOptions& options : {first, second}) {
    errors.push_back(std::async(std::launch::async, [options] { return error_of(options); }));
  }
  return {errors[0].get(), errors[1].get()};
}

TEST(TcpStoreTest, TwoProcessesThatAreRankZeroAreFoundOnBoth) {
  const int port = free_port();
  for (const std::string& error : errors_of_both(rank_of(0, 2, port), rank_of(0, 2, port))) {
    EXPECT_THAT(error, AllOf(HasSubstr("two processes have RANK=0"),
                             HasSubstr(std::to_string(getpid())), HasSubstr("own RANK")));
  }
}

TEST(TcpStoreTest, RanksOfOneJobWithDifferentWorldSizesAreToldSo) {
  const int port = free_port();
  for (const std::string& error :
       errors_of_both(rank_of(0, 2, port, "job A, world size 2"),
                      rank_of(1, 3, port, "job A, world size 3, MODEL_PARALLEL_SIZE=3"))) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 with world size 3, MODEL_PARALLEL_SIZE=3"),
                             HasSubstr("first with world size 2"), HasSubstr("same WORLD_SIZE"),
                             Not(HasSubstr("MESHRUN_JOB_ID"))));
  }
}

// All but one come back to the job as it was.
TEST(TcpStoreTest, ARankThatComesBackWithOtherSettingsIsToldSo) {
  const int port = free_port();
  TcpStoreOptions first = rank_of(0, 2, port, "job A, world size 2");
  TcpStoreOptions second = rank_of(1, 2, port, "job A, world size 2");
  InstanceHistory host_history, history;
  {
    auto other = std::async(std::launch::async, [&] { return join_tcp_store(second, history); });
    const StorePtr store = join_tcp_store(first, host_history);
    other.get();
  }
  second.identity = "job A, world size 2, MODEL_PARALLEL_SIZE=2";
  second.timeout = milliseconds(2000);
  auto theirs = std::async(std::launch::async, [&] { return error_of(second, history); });
  const std::string ours = error_of(first, host_history);
  for (const std::string& error : {ours, theirs.get()}) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 with world size 2, MODEL_PARALLEL_SIZE=2"),
                             HasSubstr("first with world size 2")));
  }
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

// Its rank 0 is a little later in leaving the job before, which was started otherwise.
TEST(TcpStoreTest, ARankThatWasInTheJobBeforeWaitsForItsStoreToEnd) {
  const int port = free_port();
  InstanceHistory host_history, history;
  StorePtr before, after;
  {
    const auto client = std::async(std::launch::async,
                                   [&] { return join_tcp_store(rank_of(1, 2, port), history); });
    before = join_tcp_store(rank_of(0, 2, port), host_history);
  }
  // Another process is refused at once.
  EXPECT_THAT(error_of(rank_of(1, 2, port, "job B")), HasSubstr("two jobs use one port"));
  const auto client = std::async(
      std::launch::async, [&] { return join_tcp_store(rank_of(1, 2, port, "job B"), history); });
  std::this_thread::sleep_for(milliseconds(300));
  before = nullptr;
  after = join_tcp_store(rank_of(0, 2, port, "job B"), host_history);
  client.wait();
  EXPECT_EQ(history.identity, "job B");
  // One that never ends is refused too.
  TcpStoreOptions impatient = rank_of(1, 2, port, "job C");
  impatient.timeout = milliseconds(300);
  EXPECT_THAT(error_of(impatient, history), HasSubstr("two jobs use one port"));
}

// A client of the instance that is ending waits for its successor on the same port.
TEST(TcpStoreTest, ARankNeverMeetsTheInstanceThatItLeft) {
  const int port = free_port();
  InstanceHistory host_history;
  InstanceHistory client_history;
  const auto introduced = [&](int rank) {
    TcpStoreOptions options = rank_of(rank, 2, port);
    options.introduction = [rank] { return "I am rank " + std::to_string(rank); };
    return options;
  };
  StorePtr old_host = join_tcp_store(rank_of(0, 1, port), host_history);
  client_history.last = host_history.last;
  std::future<StorePtr> client =
      std::async(std::launch::async, [&] { return join_tcp_store(introduced(1), client_history); });
  old_host.reset();
  const StorePtr host = join_tcp_store(introduced(0), host_history);
  const StorePtr met = client.get();
  EXPECT_EQ(client_history.last, 2);
  EXPECT_EQ(host_history.last, 2);
  EXPECT_EQ(introductions(*met, 2), (std::vector<std::string>{"I am rank 0", "I am rank 1"}));
}

StorePtr launchers_store() {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free_port());
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

int port_of(const StorePtr& store) { return static_cast<c10d::TCPStore&>(*store).getPort(); }

// Ranks 0 and 1 give rank 2 up, some of them more than once, before all try again.
void expect_a_retry_to_meet(TcpStoreOptions rank, int more_attempts_of_rank_0,
                            bool rank_2_was_late) {
  rank.world_size = 3;
  const auto as = [&rank](int number, milliseconds timeout) {
    TcpStoreOptions options = rank;
    options.rank = number;
    options.timeout = timeout;
    return options;
  };
  std::vector<InstanceHistory> histories(3);
  const auto fail = [&](int number) {
    try {
      join_tcp_store(as(number, milliseconds(300)), histories[number]);
      return std::string("no error");
    } catch (const RendezvousError& error) {
      return std::string(error.what());
    }
  };
  std::future<std::string> other = std::async(std::launch::async, [&] { return fail(1); });
  EXPECT_THAT(fail(0), HasSubstr("missing: rank"));
  EXPECT_NE(other.get(), "no error");
  for (int i = 0; i < more_attempts_of_rank_0; ++i) {
    EXPECT_THAT(fail(0), HasSubstr("missing: rank 1, 2"));
  }
  if (rank_2_was_late) {
    EXPECT_NE(fail(2), "no error");
  }

  std::vector<std::future<StorePtr>> all;
  for (const int number : {2, 1, 0}) {
    all.push_back(std::async(std::launch::async, [&, number] {
      return join_tcp_store(as(number, milliseconds(20000)), histories[number]);
    }));
  }
  std::vector<StorePtr> stores;
  for (std::future<StorePtr>& store : all) {
    EXPECT_NO_THROW(stores.push_back(store.get()));
  }
  for (const InstanceHistory& history : histories) {
    EXPECT_EQ(history.last, 2 + more_attempts_of_rank_0);
  }
}

TEST(TcpStoreTest, ARetryMeetsNothingOfTheAttemptThatFailed) {
  for (const int more : {0, 2}) {
    for (const bool late : {false, true}) {
      SCOPED_TRACE(std::to_string(more) + (late ? ", rank 2 was late" : ""));
      expect_a_retry_to_meet(rank_of(0, 3, free_port()), more, late);
      // torchrun's store outlives every attempt.
      const StorePtr launcher = launchers_store();
      TcpStoreOptions hosted = rank_of(0, 3, port_of(launcher));
      hosted.is_hosted = true;
      expect_a_retry_to_meet(hosted, more, late);
    }
  }
}

TEST(TcpStoreTest, AJobMayComeBackToALaunchersStoreWithOtherSettings) {
  const StorePtr launcher = launchers_store();
  const int port = port_of(launcher);
  InstanceHistory histories[2];
  const auto join_both = [&](const std::string& first, const std::string& second) {
    std::future<std::string> errors[2];
    for (int rank = 0; rank < 2; ++rank) {
      TcpStoreOptions options = rank_of(rank, 2, port, rank == 0 ? first : second);
      options.is_hosted = true;
      errors[rank] = std::async(std::launch::async, [options, &histories, rank] {
        try {
          join_tcp_store(options, histories[rank]);
          histories[rank].complete = histories[rank].last;
          return std::string();
        } catch (const std::exception& error) {
          return std::string(error.what());
        }
      });
    }
    return std::vector<std::string>{errors[0].get(), errors[1].get()};
  };
  for (const char* settings : {"world size 2", "world size 2, MODEL_PARALLEL_SIZE=2"}) {
    const std::string identity = std::string("job A, ") + settings;
    for (const std::string& error : join_both(identity, identity)) EXPECT_EQ(error, "");
  }
  for (const std::string& error : join_both("job A, world size 2", "job A, world size 3")) {
    EXPECT_THAT(error, HasSubstr("were started with different settings"));
  }
  EXPECT_THAT(join_both("job A, world size 2", "job B, world size 2")[1],
              AllOf(HasSubstr("job B"), HasSubstr("two jobs use one port")));
}

TEST(TcpStoreTest, ARankThatIsAloneInTryingAgainIsTold) {
  const StorePtr launcher = launchers_store();
  TcpStoreOptions options = rank_of(1, 2, port_of(launcher));
  options.is_hosted = true;
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), HasSubstr("rank 0, which has not joined:"));
  EXPECT_THAT(error_of(options, {.last = 3}), HasSubstr("not joined again since attempt 3"));
}

TEST(TcpStoreTest, ASecondRankZeroInALaunchersStoreIsFound) {
  const StorePtr launcher = launchers_store();
  TcpStoreOptions options = rank_of(0, 2, port_of(launcher));
  c10d::PrefixStore("meshrun/" + options.prefix, launcher).set("rank0", "elsewhere 42");
  options.is_hosted = true;
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("rank 0 of"), HasSubstr("elsewhere 42")));
}

TEST(NetworkTest, KnowsLoopbackByName) {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "::", "example", ""})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(NetworkTest, ATakenPortIsAlreadyExists) {
  const os::UniqueFd first = *bind_port("127.0.0.1", 0);
  EXPECT_EQ(listen(first.get(), 1), 0);
  EXPECT_TRUE(absl::IsAlreadyExists(bind_port("127.0.0.1", bound_port(first)).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(bind_port("any-host", bound_port(first)).status()));
}

TEST(NetworkTest, TheAddressTowardsLoopbackIsLoopback) {
  EXPECT_EQ(*local_address_towards("127.0.0.1"), "127.0.0.1");
}

}  // namespace
}  // namespace meshrun
