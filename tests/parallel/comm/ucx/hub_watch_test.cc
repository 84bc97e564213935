// Over loopback. A rank that is killed is a process, forked before its test has a thread.
#include "parallel/comm/ucx/engine/liveness/hub_watch.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace meshrun::ucx {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::seconds kDeadline(60);

// What a rank has heard, in words.
class News {
 public:
  PeerWatch::Listener listener() {
    return [this](const PeerNews& news) {
      const std::lock_guard lock(mu_);
      if (const auto* lost = std::get_if<PeerLost>(&news)) {
        heard_.push_back("lost " + std::to_string(lost->world_rank) + ": " + lost->reason);
      } else if (const auto* left = std::get_if<PeerLeft>(&news)) {
        heard_.push_back("left " + std::to_string(left->world_rank));
      } else if (const auto* verdict = std::get_if<WaitVerdict>(&news)) {
        heard_.push_back("verdict: " + verdict->message);
        verdicts_.push_back(*verdict);
      } else {
        heard_.push_back("?");
      }
      changed_.notify_all();
    };
  }
  std::string next() {
    std::unique_lock lock(mu_);
    if (!changed_.wait_for(lock, kDeadline, [&] { return !heard_.empty(); })) return "nothing";
    std::string first = std::move(heard_.front());
    heard_.pop_front();
    return first;
  }
  bool is_empty() {
    const std::lock_guard lock(mu_);
    return heard_.empty();
  }
  std::vector<WaitVerdict> verdicts() {
    const std::lock_guard lock(mu_);
    return verdicts_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::string> heard_;
  std::vector<WaitVerdict> verdicts_;
};

// The store, also for processes that are forked before it is set.
class Store {
 public:
  Store() { EXPECT_EQ(pipe(pipe_), 0); }
  ~Store() {
    close(pipe_[0]);
    close(pipe_[1]);
  }
  void set(const std::string& value) {
    endpoint_ = value;
    write(value + "\n");
  }
  void write(const std::string& text) {
    EXPECT_EQ(::write(pipe_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Waits for it; once.
  std::string read() {
    std::string line;
    for (char c; ::read(pipe_[0], &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  int pipe_[2];
  std::string endpoint_;
};

HubWatchOptions options_of(int rank, Store& store) {
  HubWatchOptions options;
  options.world_rank = rank;
  options.world_size = 4;
  options.set_endpoint = [&store](const std::string& value) { store.set(value); };
  options.get_endpoint = [&store] { return store.endpoint(); };
  options.timeout = kDeadline;
  return options;
}

std::unique_ptr<PeerWatch> watch_of(int rank, Store& store, News& news) {
  absl::StatusOr<std::unique_ptr<PeerWatch>> watch = create_hub_watch(options_of(rank, store));
  EXPECT_TRUE(watch.ok()) << watch.status();
  if (!watch.ok()) return nullptr;
  (*watch)->start(news.listener());
  return *std::move(watch);
}

// A rank in a process of its own, which watches until it is killed.
class RankProcess {
 public:
  // Over `store` it gets rank 0's endpoint, or, being rank 0, tells its own.
  RankProcess(int rank, Store& store) {
    pid_ = fork();
    if (pid_ != 0) return;
    alarm(kDeadline.count());
    News news;
    HubWatchOptions options = options_of(rank, store);
    options.get_endpoint = [&store] { return store.read(); };
    absl::StatusOr<std::unique_ptr<PeerWatch>> watch = create_hub_watch(options);
    if (!watch.ok()) _exit(1);
    (*watch)->start(news.listener());
    started_.write("started\n");
    while (true) pause();
  }
  void wait_until_started() { EXPECT_EQ(started_.read(), "started"); }
  void kill() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
  }

 private:
  pid_t pid_ = -1;
  Store started_;
};

TEST(HubWatchTest, ARankThatIsKilledIsLost) {
  Store store;
  RankProcess third(3, store);
  News zero, one;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  third.wait_until_started();
  third.kill();
  EXPECT_EQ(zero.next(), "lost 3: its process ended");
  EXPECT_EQ(one.next(), "lost 3: its process ended");
}

TEST(HubWatchTest, ARankThatStopsHasLeft) {
  Store store;
  News zero, one, two;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  const auto other = watch_of(2, store, two);
  watch->stop();
  EXPECT_EQ(zero.next(), "left 1");
  EXPECT_EQ(two.next(), "left 1");
  EXPECT_TRUE(one.is_empty());
}

TEST(HubWatchTest, ADeadHubIsLost) {
  Store store;
  RankProcess zero(0, store);
  zero.wait_until_started();
  // The child's store has it, by the pipe.
  Store here;
  here.set(store.read());
  News one, two;
  const auto watch = watch_of(1, here, one);
  const auto other = watch_of(2, here, two);
  zero.kill();
  EXPECT_EQ(one.next(), "lost 0: its process ended");
  EXPECT_EQ(two.next(), "lost 0: its process ended");
}

TEST(HubWatchTest, AHubThatStopsHasLeft) {
  Store store;
  News zero, one;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  hub->stop();
  EXPECT_EQ(one.next(), "left 0");
  watch->stop();
  EXPECT_TRUE(one.is_empty());
  EXPECT_TRUE(zero.is_empty());
}

TEST(HubWatchTest, AHubThatStopsHasLeftForWhomItHasNotMetToo) {
  Store store;
  News one;
  // Accepts nobody before it stops.
  const auto hub = create_hub_watch(options_of(0, store));
  ASSERT_TRUE(hub.ok());
  const auto watch = watch_of(1, store, one);
  (*hub)->stop();
  EXPECT_EQ(one.next(), "left 0");
}

TEST(HubWatchTest, WhoComesLateHearsWhoIsGone) {
  Store store;
  News zero, one, two;
  const auto hub = watch_of(0, store, zero);
  watch_of(1, store, one)->stop();
  EXPECT_EQ(zero.next(), "left 1");
  const auto late = watch_of(2, store, two);
  EXPECT_EQ(two.next(), "left 1");
}

TEST(HubWatchTest, AWatchThatNeverStartedHasLeft) {
  Store store;
  News zero;
  const auto hub = watch_of(0, store, zero);
  { const auto unused = create_hub_watch(options_of(1, store)); }
  EXPECT_EQ(zero.next(), "left 1");
}

TEST(HubWatchTest, NothingIsHeardAfterStop) {
  Store store;
  News zero, one, two;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  auto other = watch_of(2, store, two);
  watch->stop();
  other = nullptr;
  EXPECT_EQ(zero.next(), "left 1");
  EXPECT_EQ(zero.next(), "left 2");
  EXPECT_TRUE(one.is_empty());
}

// What a rank of a world of four reports that is blocked in the `group` of `members`.
WaitReport report_of(int rank, const std::string& group, const std::vector<int>& members,
                     const std::string& operation = "barrier number 1") {
  WaitReport report;
  report.rank = rank;
  report.calls = {{group, members, 1, {}, operation + " of group \"" + group + "\"", false}};
  report.called[group] = 1;
  return report;
}

TEST(HubWatchTest, RanksThatWaitForEachOtherInTwoGroupsAllHearOneVerdict) {
  Store store;
  News zero, one, two;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  const auto other = watch_of(2, store, two);
  // Longer than what a stranger may say, and than one read.
  const std::string words(100'000, 'w');
  watch->report(report_of(1, "a", {1, 2}, words));
  other->report(report_of(2, "b", {1, 2}));
  const std::string verdict = zero.next();
  EXPECT_THAT(verdict, HasSubstr("verdict: ranks 1 and 2 wait for each other in vain"));
  EXPECT_THAT(verdict, HasSubstr(words));
  EXPECT_EQ(one.next(), verdict);
  EXPECT_EQ(two.next(), verdict);
  const WaitVerdict heard = one.verdicts().front();
  EXPECT_TRUE(heard.deadlock);
  EXPECT_EQ(heard.ranks, (std::vector{1, 2}));
  ASSERT_EQ(heard.groups.size(), 2u);
  EXPECT_EQ(heard.groups[1].name, "b");
  EXPECT_EQ(heard.groups[1].members, (std::vector{1, 2}));
  EXPECT_EQ(heard.groups[1].resume_at, 2u);
}

TEST(HubWatchTest, TheHubReportsToo) {
  Store store;
  News zero, one;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  hub->report(report_of(0, "a", {0, 1}));
  watch->report(report_of(1, "b", {0, 1}));
  EXPECT_THAT(zero.next(), HasSubstr("ranks 0 and 1 wait"));
  EXPECT_THAT(one.next(), HasSubstr("ranks 0 and 1 wait"));
}

TEST(HubWatchTest, ARankThatRunsOnMakesNoVerdict) {
  Store store;
  News zero, one, two, three;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  const auto other = watch_of(2, store, two);
  const auto third = watch_of(3, store, three);
  watch->report(report_of(1, "a", {1, 2}));
  other->report(report_of(2, "b", {1, 2}));
  other->withdraw(2);
  // Decided after all that 1 and 2 have said: they would be named in it, or before.
  third->report(report_of(3, "c", {0, 3}));
  hub->report(report_of(0, "d", {0, 3}));
  EXPECT_THAT(zero.next(), HasSubstr("ranks 0 and 3 wait"));
  EXPECT_TRUE(zero.is_empty());
}

TEST(HubWatchTest, ARankThatLeftWhileAllOthersWaitIsNamed) {
  Store store;
  News zero, one, two;
  const auto hub = watch_of(0, store, zero);
  const auto watch = watch_of(1, store, one);
  const auto other = watch_of(2, store, two);
  watch->report(report_of(1, "a", {1, 2}));
  other->stop();
  EXPECT_EQ(one.next(), "left 2");
  EXPECT_THAT(one.next(), HasSubstr("verdict: rank 2 left without calling barrier number 1"));
}

// As on the wire.
std::string frame_of(const std::string& text) {
  std::string frame;
  for (int byte = 0; byte < 4; ++byte) {
    frame.push_back(static_cast<char>(text.size() >> (8 * byte)));
  }
  return frame + text;
}

// A connection that says `text`; true when the hub has ended it.
bool is_turned_away(const std::string& endpoint, const std::string& text) {
  const size_t port_at = endpoint.find(' ') + 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(port_at))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  timeval limit{kDeadline.count(), 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  char byte;
  const ssize_t got = recv(fd, &byte, 1, 0);
  const bool ended = got == 0 || (got < 0 && errno == ECONNRESET);
  close(fd);
  return ended;
}

TEST(HubWatchTest, StrangersAreTurnedAway) {
  Store store;
  News zero, one;
  const auto hub = watch_of(0, store, zero);
  const std::string& endpoint = store.endpoint();
  const std::string token = endpoint.substr(0, endpoint.find(' '));
  const auto watch = watch_of(1, store, one);
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello 0000 2")));
  std::string last_differs = token, first_differs = token;
  last_differs.back() = last_differs.back() == '0' ? '1' : '0';
  first_differs.front() = first_differs.front() == '0' ? '1' : '0';
  for (const std::string& wrong : {last_differs, first_differs, token.substr(1), token + "0"}) {
    EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello " + wrong + " 2")));
  }
  // From a caller that has not shown the token the hub takes only a hello.
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("bye")));
  EXPECT_TRUE(is_turned_away(endpoint, "GET / HTTP/1.1\r\n\r\n"));
  EXPECT_TRUE(is_turned_away(endpoint, frame_of(std::string(5000, 'x'))));
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello " + token + " 0")));
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello " + token + " 4")));
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello " + token + " -1")));
  // None of them was a rank that is lost now.
  watch->stop();
  EXPECT_EQ(zero.next(), "left 1");
  EXPECT_TRUE(is_turned_away(endpoint, frame_of("hello " + token + " 1")));
  EXPECT_TRUE(zero.is_empty());
}

TEST(HubWatchTest, AnEndpointThatDoesNotAnswerIsAnErrorThatNamesIt) {
  Store store;
  News zero;
  watch_of(0, store, zero)->stop();
  const auto watch = create_hub_watch(options_of(1, store));
  EXPECT_EQ(watch.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(watch.status().message(), HasSubstr("cannot be reached at 127.0.0.1 port "));
  store.set("nonsense");
  EXPECT_THAT(create_hub_watch(options_of(1, store)).status().message(), HasSubstr("nonsense"));
}

// Which of a host's addresses leads there depends on the peer.
TEST(HubWatchTest, APeerTriesAllAddresses) {
  Store store;
  News zero, one;
  HubWatchOptions options = options_of(0, store);
  options.addresses = {"no-such-host.invalid", "127.0.0.1"};
  const auto hub = create_hub_watch(options);
  ASSERT_TRUE(hub.ok()) << hub.status();
  (*hub)->start(zero.listener());
  watch_of(1, store, one)->stop();
  EXPECT_EQ(zero.next(), "left 1");
}

TEST(HubWatchTest, AHubThatNoAddressLeadsToIsAnErrorThatNamesThemAll) {
  Store store;
  store.set("token 1 no-such-host.invalid 127.0.0.1");
  const auto watch = create_hub_watch(options_of(1, store));
  EXPECT_EQ(watch.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(watch.status().message(),
              AllOf(HasSubstr("at no-such-host.invalid or 127.0.0.1 port 1 ("),
                    HasSubstr("127.0.0.1: Connection refused")));
}

// Rank 0's own name is 127.0.1.1 on Debian: what it resolves to says nothing of where peers come
// from.
TEST(HubWatchTest, AHubThatIsFoundByANameListensAtAllAddresses) {
  for (const auto& [first, reachable] :
       {std::pair("localhost", false), std::pair("127.0.1.1", false), std::pair("node-a", true)}) {
    Store store;
    HubWatchOptions options = options_of(0, store);
    options.addresses = {first, "127.0.0.1"};
    const auto hub = create_hub_watch(options);
    ASSERT_TRUE(hub.ok()) << hub.status();
    // Any address of this host but that one.
    store.set(store.endpoint().substr(0, store.endpoint().find(first)) + "127.0.0.2");
    EXPECT_EQ(create_hub_watch(options_of(1, store)).ok(), reachable) << first;
  }
}

// The child ends the objects that it has inherited, as exit() does with globals.
TEST(HubWatchTest, AForkedChildLeavesNothing) {
  for (const int forking : {0, 1}) {
    Store store;
    News zero, one;
    auto hub = watch_of(0, store, zero);
    auto watch = watch_of(1, store, one);
    const pid_t child = fork();
    if (child == 0) {
      alarm(kDeadline.count());
      (forking == 0 ? hub : watch) = nullptr;
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    // If the child had said anything, it would be heard before this.
    watch->stop();
    EXPECT_EQ(zero.next(), "left 1");
    EXPECT_TRUE(one.is_empty());
    EXPECT_TRUE(zero.is_empty());
  }
}

// Then the thread that forks would have to say farewell itself.
TEST(HubWatchTest, AForkedChildLeavesNothingOfAWatchThatWasNotStarted) {
  Store store;
  News zero, one;
  auto hub = watch_of(0, store, zero);
  absl::StatusOr<std::unique_ptr<PeerWatch>> watch = create_hub_watch(options_of(1, store));
  ASSERT_TRUE(watch.ok()) << watch.status();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kDeadline.count());
    (*watch)->stop();
    *watch = nullptr;
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  // What the child had said would be heard before what rank 2 says now.
  News two;
  watch_of(2, store, two)->stop();
  EXPECT_EQ(zero.next(), "left 2");
  EXPECT_TRUE(zero.is_empty());
  (*watch)->start(one.listener());
  (*watch)->stop();
  EXPECT_EQ(zero.next(), "left 1");
  EXPECT_TRUE(zero.is_empty());
}

TEST(HubWatchTest, ACycleIsSaidOnTheHubBeforeItIsAnError) {
  Store store;
  News zero, one;
  std::mutex mu;
  std::condition_variable changed;
  std::string said;
  HubWatchOptions options = options_of(0, store);
  options.suspect = [&](const std::string& sentence) {
    const std::lock_guard lock(mu);
    said = sentence;
    changed.notify_all();
  };
  const auto hub = create_hub_watch(options);
  ASSERT_TRUE(hub.ok());
  (*hub)->start(zero.listener());
  const auto watch = watch_of(1, store, one);
  (*hub)->report(report_of(0, "a", {0, 1}));
  WaitReport report = report_of(1, "b", {0, 1});
  report.other_threads = 1;
  watch->report(report);
  std::unique_lock lock(mu);
  ASSERT_TRUE(changed.wait_for(lock, kDeadline, [&] { return !said.empty(); }));
  EXPECT_THAT(said, HasSubstr("ranks 0 and 1 seem to wait for each other in vain"));
  EXPECT_TRUE(one.is_empty());
}

}  // namespace
}  // namespace meshrun::ucx
