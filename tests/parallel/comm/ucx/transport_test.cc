// What every Transport does, over the in-memory network and over UCX.
//
// A test is a function that each rank runs. Over UCX ranks are processes, forked before any call of
// UCX (it does not survive fork()): nothing in this binary may start UCX in the test process
// itself. Over the in-memory network they are threads. UCX reads UCX_MEM_EVENTS when it is loaded:
// the build rule sets it to "n", without which ThreadSanitizer ends in UCX's memory hooks.

#include "parallel/comm/ucx/engine/transport/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "parallel/comm/ucx/engine/transport/rails_transport.h"
#include "parallel/comm/ucx/engine/transport/ucx_transport.h"
#include "tests/parallel/comm/ucx/memory_transport.h"

namespace meshrun::ucx {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr int kMaxTestRanks = 3;
constexpr int kMostTestRails = 2;
constexpr std::chrono::seconds kDeadline(60);
// Several of the segments that UCX copies at a time.
constexpr size_t kLarge = 2 << 20;

// Shared by the ranks of one test: beside the transport, so that a test can say when.
struct Board {
  std::array<std::atomic<int>, 16> arrived = {};
  std::array<std::atomic<bool>, kMaxTestRanks> gone = {};
  struct Address {
    std::array<char, 1024> bytes = {};
    std::atomic<size_t> length = 0;
  };
  std::array<Address, kMaxTestRanks> addresses;
};

// Thrown in a rank that is a thread.
struct Killed {};

struct Pending : Request {
  bool done = false;
};

class Rank {
 public:
  using Die = std::function<void()>;

  Rank(int index, int size, Board& board, std::unique_ptr<Transport> transport, Die die)
      : index(index),
        size(size),
        transport(std::move(transport)),
        board_(board),
        die_(std::move(die)) {
    const std::string& address = this->transport->address();
    Board::Address& own = board_.addresses[index];
    if (address.size() > own.bytes.size()) throw std::length_error("address");
    std::memcpy(own.bytes.data(), address.data(), address.size());
    own.length = address.size();
  }
  // The transport ends before the memory of what it may still have posted.
  ~Rank() { transport.reset(); }

  const int index;
  const int size;
  std::unique_ptr<Transport> transport;
  std::vector<BrokenPeer> broken;

  std::span<std::byte> memory(size_t bytes) {
    buffers_.emplace_back(std::max<size_t>(bytes, 1), kUntouched);
    return {buffers_.back().data(), bytes};
  }
  // Different for each seed and position.
  std::span<std::byte> pattern(size_t bytes, unsigned seed) {
    const std::span<std::byte> made = memory(bytes);
    for (size_t i = 0; i < bytes; ++i) made[i] = pattern_byte(i, seed);
    return made;
  }
  static bool is_pattern(std::span<const std::byte> bytes, unsigned seed) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != pattern_byte(i, seed)) return false;
    }
    return true;
  }

  static bool is_untouched(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kUntouched; });
  }

  PeerId peer(int rank) {
    Board::Address& address = board_.addresses[rank];
    while (address.length == 0) pause();
    return transport->connect({address.bytes.data(), address.length});
  }
  Pending& send(int to, Tag tag, std::span<const std::byte> bytes) {
    Pending& pending = post();
    pending.done = transport->send(peer(to), tag, bytes, pending);
    return pending;
  }
  // The tests' senders are numbered as ranks.
  Pending& receive(Tag tag, std::span<std::byte> bytes, Tag mask = kExactly) {
    Pending& pending = post();
    const PeerId from = kind_of(tag) == TagKind::kData ? peer(sender_of(tag)) : kAnyPeer;
    transport->receive(from, tag, mask, bytes, pending);
    return pending;
  }

  bool step() {
    Completions completions;
    const bool moved = transport->progress(completions);
    for (Request* request : completions.done) {
      auto& pending = *static_cast<Pending*>(request);
      EXPECT_FALSE(pending.done) << "listed twice";
      EXPECT_EQ(pending.owner, this);
      pending.done = true;
    }
    for (BrokenPeer& peer : completions.broken) broken.push_back(std::move(peer));
    return moved;
  }
  void until(const std::function<bool()>& condition) {
    while (!condition()) {
      if (!step()) pause();
    }
  }
  MessageStatus finish(Pending& pending) {
    until([&] { return pending.done; });
    return pending.status;
  }
  // What proves that something does not happen: afterwards it would have.
  //
  // Where the other ranks are dead, or make no call: all that can still happen happens here, in
  // steps that move something.
  void drain() {
    while (step()) pause();
  }
  // Where they live, and all call it. What a rank sent before is at the others when its marker is,
  // and what they answer is back when theirs of the second round is: UCX keeps the order of a
  // connection. The network in memory does not; there nothing is left once nobody sends any more.
  void exchange_markers() {
    for (const int place : {kMarkers, kMarkers + 1}) {
      std::vector<Pending*> markers;
      for (int other = 0; other < size; ++other) {
        if (other != index) greet(other, place, markers);
      }
      for (Pending* marker : markers) EXPECT_EQ(finish(*marker), MessageStatus::kOk);
      meet_silently(place);
      drain();
    }
  }
  // Sleeps as an engine does.
  void sleep_until(const std::function<bool()>& condition) {
    while (!condition()) {
      if (step() || condition()) continue;
      if (transport->arm()) poll_descriptor();
      pause();
    }
  }
  void poll_descriptor() {
    pollfd descriptor{transport->event_fd(), POLLIN, 0};
    const int limit_ms = std::chrono::milliseconds(kDeadline).count() / 2;
    ASSERT_EQ(::poll(&descriptor, 1, limit_ms), 1) << "nothing woke the sleeper";
  }
  bool is_readable() const {
    pollfd descriptor{transport->event_fd(), POLLIN, 0};
    return ::poll(&descriptor, 1, 0) == 1;
  }

  // All ranks, or `count` of them, have come here; meanwhile messages move.
  void meet(int place, int count = 0) {
    ++board_.arrived[place];
    until([&] { return is_met(place, count); });
  }
  // As meet(), without a call on the transport.
  void meet_silently(int place, int count = 0) {
    ++board_.arrived[place];
    while (!is_met(place, count)) pause();
  }
  void arrive(int place) { ++board_.arrived[place]; }
  bool is_met(int place, int count = 0) const {
    return board_.arrived[place] >= (count == 0 ? size : count);
  }
  bool is_gone(int rank) const { return board_.gone[rank]; }
  [[noreturn]] void die() {
    die_();
    std::abort();
  }

  // Connects all ranks, so that what follows finds the connections made.
  void greet_all() {
    std::vector<Pending*> greetings;
    for (int other = 0; other < size; ++other) {
      if (other != index) greet(other, kGreeted, greetings);
    }
    for (Pending* greeting : greetings) EXPECT_EQ(finish(*greeting), MessageStatus::kOk);
    meet(kGreeted);
  }

 private:
  static constexpr std::byte kUntouched{0xee};
  // Places where ranks meet; tests have those below.
  static constexpr int kGreeted = 7, kMarkers = 8;

  static std::byte pattern_byte(size_t i, unsigned seed) {
    return static_cast<std::byte>((i * 2654435761u >> 7) + i + seed * 31);
  }
  // On each rail, both ways.
  void greet(int other, int place, std::vector<Pending*>& greetings) {
    for (uint32_t message = 0; message < kMostTestRails; ++message) {
      const auto tag = [&](int sender) {
        return collective_tag(TagKind::kData, 2, sender, static_cast<uint64_t>(place), message);
      };
      greetings.push_back(&send(other, tag(index), pattern(8, 0)));
      greetings.push_back(&receive(tag(other), memory(8)));
    }
  }
  Pending& post() {
    Pending& pending = requests_.emplace_back();
    pending.owner = this;
    return pending;
  }
  void pause() const {
    if (std::chrono::steady_clock::now() > give_up_) throw std::runtime_error("out of time");
    sched_yield();
  }

  Board& board_;
  const Die die_;
  const std::chrono::steady_clock::time_point give_up_ =
      std::chrono::steady_clock::now() + kDeadline;
  std::deque<Pending> requests_;
  std::deque<std::vector<std::byte>> buffers_;
};

using RankFunction = std::function<void(Rank&)>;

struct Kind {
  std::string name;
  bool is_ucx;
  std::string devices;  // UCX_TLS
  bool tells_of_death;
  // Over the loopback, each rank as if on a host of its own.
  int rails_of_first = 0, rails_of_others = 0;

  int rails(int rank) const { return rank == 0 ? rails_of_first : rails_of_others; }

  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

void run_function(const RankFunction& function, Rank& rank) {
  try {
    function(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank.index << ": " << error.what();
  }
}

// `make`: the transport of one rail.
template <typename Make>
absl::StatusOr<std::unique_ptr<Transport>> make_rails(int rails, int rank, Make make) {
  if (rails == 0) return make();
  std::vector<std::unique_ptr<Transport>> made;
  for (int i = 0; i < rails; ++i) {
    absl::StatusOr<std::unique_ptr<Transport>> rail = make();
    if (!rail.ok()) return rail.status();
    made.push_back(*std::move(rail));
  }
  return create_rails_transport(std::move(made), std::to_string(rank));
}

void run_threads(const Kind& kind, int ranks, const RankFunction& function, Board& board) {
  MemoryNetwork network({.seed = 7, .tells_of_death = kind.tells_of_death});
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] {
      try {
        std::vector<const Transport*> own;
        auto transport = make_rails(kind.rails(i), i, [&] {
          auto made = network.create_transport();
          own.push_back(made.get());
          return absl::StatusOr<std::unique_ptr<Transport>>(std::move(made));
        });
        Rank rank(i, ranks, board, *std::move(transport), [&] {
          for (const Transport* each : own) network.kill(*each);
          throw Killed();
        });
        run_function(function, rank);
      } catch (const Killed&) {
      }
      board.gone[i] = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

[[noreturn]] void run_process(const Kind& kind, int index, int ranks, const RankFunction& function,
                              Board& board) {
  alarm(2 * kDeadline.count());
  if (kind.devices.empty()) {
    unsetenv("UCX_TLS");
  } else {
    setenv("UCX_TLS", kind.devices.c_str(), 1);
  }
  absl::StatusOr<std::unique_ptr<Transport>> transport = make_rails(kind.rails(index), index, [&] {
    return kind.rails(index) == 0
               ? create_ucx_transport()
               : create_ucx_transport(UcxDevices{.interfaces = {"lo"}, .rail = "lo"});
  });
  if (!transport.ok()) {
    ADD_FAILURE() << transport.status().ToString();
  } else {
    Rank rank(index, ranks, board, *std::move(transport), [] { raise(SIGKILL); });
    run_function(function, rank);
  }
  std::fflush(stdout);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

// A rank that dies by SIGKILL is not a failure: the test has asked for it.
void run_processes(const Kind& kind, int ranks, const RankFunction& function, Board& board) {
  std::vector<pid_t> pids;
  for (int i = 0; i < ranks; ++i) {
    std::fflush(stdout);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) run_process(kind, i, ranks, function, board);
    pids.push_back(pid);
  }
  for (int left = ranks; left > 0; --left) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    const auto rank = std::find(pids.begin(), pids.end(), pid) - pids.begin();
    ASSERT_LT(rank, ranks);
    board.gone[rank] = true;
    const bool as_expected =
        WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(as_expected) << "rank " << rank << " ended with status " << status;
  }
}

void run_ranks(const Kind& kind, int ranks, const RankFunction& function) {
  void* const shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Board* const board = new (shared) Board;
  if (kind.is_ucx) {
    run_processes(kind, ranks, function, *board);
  } else {
    run_threads(kind, ranks, function, *board);
  }
  munmap(shared, sizeof(Board));
}

const Kind kUcxSharedMemory{"ucx_shm", true, "", false};

class TransportConformance : public testing::TestWithParam<Kind> {
 protected:
  void run(int ranks, const RankFunction& function) { run_ranks(GetParam(), ranks, function); }
};

INSTANTIATE_TEST_SUITE_P(, TransportConformance,
                         testing::Values(Kind{"memory", false, "", false},
                                         Kind{"memory_that_tells", false, "", true},
                                         kUcxSharedMemory, Kind{"ucx_tcp", true, "tcp,self", true},
                                         Kind{"memory_rails", false, "", true, 2, 2},
                                         Kind{"ucx_rails", true, "tcp,self", true, 2, 2},
                                         Kind{"ucx_rails_and_none", true, "tcp,self", true, 2, 0}),
                         [](const auto& info) { return info.param.name; });

constexpr Tag data_tag(int sender, uint32_t message) {
  return collective_tag(TagKind::kData, 1, sender, 5, message);
}

TEST_P(TransportConformance, ALargeMessageArrivesWhole) {
  run(2, [](Rank& rank) {
    if (rank.index == 0) {
      EXPECT_EQ(rank.finish(rank.send(1, data_tag(0, 0), rank.pattern(kLarge, 1))),
                MessageStatus::kOk);
    } else {
      const auto into = rank.memory(kLarge);
      Pending& received = rank.receive(data_tag(0, 0), into);
      EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
      EXPECT_EQ(received.bytes, static_cast<int64_t>(kLarge));
      EXPECT_EQ(received.tag, data_tag(0, 0));
      EXPECT_TRUE(Rank::is_pattern(into, 1));
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, MessagesOfAllSizesArrive) {
  static constexpr std::array<size_t, 9> kSizes = {0, 1, 44, 100, 4096, 8191, 8192, 8193, 300'000};
  run(2, [](Rank& rank) {
    const int other = 1 - rank.index;
    std::vector<Pending*> sent;
    std::vector<Pending*> posted;
    std::vector<std::span<std::byte>> into;
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const auto tag = static_cast<uint32_t>(i);
      into.push_back(rank.memory(kSizes[i]));
      posted.push_back(&rank.receive(data_tag(other, tag), into.back()));
      sent.push_back(&rank.send(other, data_tag(rank.index, tag), rank.pattern(kSizes[i], tag)));
    }
    for (size_t i = 0; i < kSizes.size(); ++i) {
      EXPECT_EQ(rank.finish(*posted[i]), MessageStatus::kOk) << kSizes[i];
      EXPECT_EQ(posted[i]->bytes, static_cast<int64_t>(kSizes[i]));
      EXPECT_TRUE(Rank::is_pattern(into[i], static_cast<unsigned>(i))) << kSizes[i];
      EXPECT_EQ(rank.finish(*sent[i]), MessageStatus::kOk) << kSizes[i];
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, AMessageShorterThanTheMemoryLeavesTheRest) {
  run(2, [](Rank& rank) {
    for (const size_t bytes : {size_t{40}, kLarge / 2}) {
      const auto tag = data_tag(0, bytes == 40);
      if (rank.index == 0) {
        EXPECT_EQ(rank.finish(rank.send(1, tag, rank.pattern(bytes, 3))), MessageStatus::kOk);
      } else {
        const auto into = rank.memory(kLarge);
        Pending& received = rank.receive(tag, into);
        EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
        EXPECT_EQ(received.bytes, static_cast<int64_t>(bytes));
        EXPECT_TRUE(Rank::is_pattern(into.first(bytes), 3));
        EXPECT_TRUE(Rank::is_untouched(into.subspan(bytes)));
      }
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, AReceiveTakesItsTagOnly) {
  run(2, [](Rank& rank) {
    if (rank.index == 0) {
      rank.send(1, data_tag(0, 1), rank.pattern(64, 1));
      rank.send(1, data_tag(0, 2), rank.pattern(kLarge, 2));
      rank.send(1, data_tag(0, 3), rank.pattern(64, 3));
    } else {
      for (const unsigned message : {3u, 2u, 1u}) {
        const auto into = rank.memory(kLarge);
        Pending& received = rank.receive(data_tag(0, message), into);
        EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
        EXPECT_TRUE(Rank::is_pattern(into.first(received.bytes), message));
      }
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, AReceiveFromAnySenderNamesTheSender) {
  run(3, [](Rank& rank) {
    if (rank.index != 0) {
      const size_t bytes = rank.index == 1 ? 64 : kLarge;
      rank.send(0, point_to_point_tag(9, rank.index, 77), rank.pattern(bytes, rank.index));
      rank.send(0, point_to_point_tag(9, rank.index, 78), rank.pattern(8, 50 + rank.index));
    } else {
      std::vector<int> senders;
      for (int i = 0; i < 2; ++i) {
        const auto into = rank.memory(kLarge);
        Pending& received = rank.receive(point_to_point_tag(9, 0, 77), into, kAnySender);
        EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
        EXPECT_GT(received.bytes, 0);
        senders.push_back(sender_of(received.tag));
        EXPECT_EQ(received.tag, point_to_point_tag(9, senders.back(), 77));
        EXPECT_TRUE(Rank::is_pattern(into.first(received.bytes), senders.back()));
      }
      EXPECT_THAT(senders, UnorderedElementsAre(1, 2));
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, EqualTagsAreMatchedInTheOrderOfSending) {
  static constexpr unsigned kMessages = 60;
  static constexpr auto kSize = [](unsigned i) { return i % 5 == 4 ? size_t{100'000} : 32 + i; };
  run(2, [](Rank& rank) {
    std::vector<Pending*> posted;
    std::vector<std::span<std::byte>> into;
    if (rank.index == 0) {
      for (unsigned i = 0; i < kMessages; ++i) {
        posted.push_back(&rank.send(1, data_tag(0, 0), rank.pattern(kSize(i), i)));
      }
    } else {
      for (unsigned i = 0; i < kMessages; ++i) {
        // Some are there before their receive, some after it.
        if (i == kMessages / 2) rank.finish(*posted.front());
        into.push_back(rank.memory(100'000));
        posted.push_back(&rank.receive(data_tag(0, 0), into.back()));
      }
    }
    for (Pending* message : posted) EXPECT_EQ(rank.finish(*message), MessageStatus::kOk);
    for (unsigned i = 0; i < into.size(); ++i) {
      EXPECT_EQ(posted[i]->bytes, static_cast<int64_t>(kSize(i)));
      EXPECT_TRUE(Rank::is_pattern(into[i].first(kSize(i)), i)) << i;
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, AMessageLongerThanTheMemoryIsTruncated) {
  run(2, [](Rank& rank) {
    for (const size_t bytes : {size_t{64}, kLarge}) {
      const auto tag = data_tag(0, bytes == 64);
      if (rank.index == 0) {
        // The sender is not at fault.
        EXPECT_EQ(rank.finish(rank.send(1, tag, rank.pattern(bytes, 1))), MessageStatus::kOk);
      } else {
        const auto into = rank.memory(bytes);
        EXPECT_EQ(rank.finish(rank.receive(tag, into.first(bytes - 1))), MessageStatus::kTruncated);
        EXPECT_TRUE(Rank::is_untouched(into.last(1)));
      }
    }
    // The unexpected one too.
    if (rank.index == 0) rank.send(1, data_tag(0, 2), rank.pattern(64, 1));
    rank.meet(0);
    if (rank.index == 1) {
      EXPECT_EQ(rank.finish(rank.receive(data_tag(0, 2), rank.memory(8))),
                MessageStatus::kTruncated);
    }
    rank.meet(1);
  });
}

TEST_P(TransportConformance, AMessageWaitsForItsReceive) {
  static constexpr std::array<size_t, 5> kSizes = {0, 44, 64, 8000, kLarge};
  run(2, [](Rank& rank) {
    rank.greet_all();
    Pending* large = nullptr;
    if (rank.index == 0) {
      for (const unsigned message : {0u, 1u, 2u, 3u}) {
        Pending& sent = rank.send(1, data_tag(0, message), rank.pattern(kSizes[message], message));
        EXPECT_EQ(rank.finish(sent), MessageStatus::kOk);
      }
      large = &rank.send(1, data_tag(0, 4), rank.pattern(kSizes[4], 4));
    }
    rank.exchange_markers();
    if (rank.index == 0) {
      EXPECT_FALSE(large->done);
    }
    rank.meet(0);
    if (rank.index == 1) {
      for (const unsigned message : {0u, 1u, 2u, 3u, 4u}) {
        const auto into = rank.memory(kLarge);
        Pending& received = rank.receive(data_tag(0, message), into);
        EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
        EXPECT_EQ(received.bytes, static_cast<int64_t>(kSizes[message]));
        EXPECT_EQ(received.tag, data_tag(0, message));
        EXPECT_TRUE(Rank::is_pattern(into.first(received.bytes), message));
      }
    } else {
      EXPECT_EQ(rank.finish(*large), MessageStatus::kOk);
    }
    rank.meet(1);
  });
}

TEST_P(TransportConformance, MessagesToOneselfArrive) {
  run(1, [](Rank& rank) {
    for (const size_t bytes : {size_t{0}, size_t{44}, kLarge}) {
      const auto tag = data_tag(0, static_cast<uint32_t>(bytes % 1000));
      const auto into = rank.memory(bytes);
      Pending& received = rank.receive(tag, into);
      Pending& sent = rank.send(0, tag, rank.pattern(bytes, 4));
      EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
      EXPECT_EQ(rank.finish(sent), MessageStatus::kOk);
      EXPECT_TRUE(Rank::is_pattern(into, 4));
    }
  });
}

TEST_P(TransportConformance, TheSameAddressIsTheSamePeer) {
  run(2, [](Rank& rank) {
    const PeerId first = rank.peer(1 - rank.index);
    EXPECT_EQ(first, 0);
    EXPECT_EQ(rank.peer(rank.index), 1);
    EXPECT_EQ(rank.peer(1 - rank.index), first);
    rank.meet(0);
  });
}

TEST_P(TransportConformance, ACancelledReceiveEndsAndTakesNothing) {
  run(2, [](Rank& rank) {
    rank.greet_all();
    if (rank.index == 1) {
      const auto untouched = rank.memory(64);
      Pending& cancelled = rank.receive(data_tag(0, 0), untouched);
      rank.transport->cancel(cancelled);
      EXPECT_EQ(rank.finish(cancelled), MessageStatus::kCancelled);
      rank.meet(0);
      const auto into = rank.memory(64);
      EXPECT_EQ(rank.finish(rank.receive(data_tag(0, 0), into)), MessageStatus::kOk);
      EXPECT_TRUE(Rank::is_pattern(into, 6));
      EXPECT_TRUE(Rank::is_untouched(untouched));
    } else {
      rank.meet(0);
      rank.send(1, data_tag(0, 0), rank.pattern(64, 6));
    }
    rank.meet(1);
  });
}

TEST_P(TransportConformance, AnArmedSleeperIsWokenByEachMessage) {
  static constexpr int kRounds = 20;
  run(2, [](Rank& rank) {
    rank.greet_all();
    for (int round = 0; round < kRounds; ++round) {
      // Sent only when the other is about to sleep.
      const size_t bytes = round % 4 == 3 ? kLarge : 64;
      const auto tag = data_tag(round % 2, static_cast<uint32_t>(round));
      if (rank.index == round % 2) {
        Pending& sleeping = rank.receive(data_tag(1 - rank.index, 99), rank.memory(8));
        rank.sleep_until([&] { return sleeping.done; });
        Pending& sent = rank.send(1 - rank.index, tag, rank.pattern(bytes, round));
        rank.sleep_until([&] { return sent.done; });
      } else {
        const auto into = rank.memory(bytes);
        Pending& received = rank.receive(tag, into);
        while (!rank.transport->arm()) rank.step();
        EXPECT_FALSE(received.done);
        // From here on only the descriptor tells of the answer.
        rank.send(1 - rank.index, data_tag(rank.index, 99), rank.pattern(8, 0));
        rank.poll_descriptor();
        rank.sleep_until([&] { return received.done; });
        EXPECT_TRUE(Rank::is_pattern(into, round));
      }
    }
    rank.meet(0);
  });
}

TEST_P(TransportConformance, WakeWakesAnArmedSleeper) {
  run(1, [](Rank& rank) {
    while (!rank.transport->arm()) rank.step();
    EXPECT_FALSE(rank.is_readable());
    std::thread waker([&] { rank.transport->wake(); });
    rank.poll_descriptor();
    waker.join();
    while (!rank.transport->arm()) rank.step();
    EXPECT_FALSE(rank.is_readable());
  });
}

TEST_P(TransportConformance, AWakeBeforeArmIsNotLost) {
  run(1, [](Rank& rank) {
    while (!rank.transport->arm()) rank.step();
    rank.step();
    rank.transport->wake();
    EXPECT_TRUE(!rank.transport->arm() || rank.is_readable());
  });
}

TEST_P(TransportConformance, CloseEndsPendingSendsAndReceives) {
  run(2, [](Rank& rank) {
    rank.greet_all();
    if (rank.index == 0) {
      Pending& large = rank.send(1, data_tag(0, 1), rank.pattern(kLarge, 1));
      for (int i = 0; i < 500; ++i) rank.send(1, data_tag(0, 2), rank.pattern(64, 2));
      rank.receive(data_tag(1, 3), rank.memory(kLarge));
      rank.drain();
      EXPECT_FALSE(large.done) << "the peer does not read";
      rank.transport->close();
    }
    rank.meet_silently(0);
  });
}

TEST_P(TransportConformance, ClosingSaysNothingOfMessagesThatNobodyTook) {
  run(2, [](Rank& rank) {
    rank.greet_all();
    if (rank.index == 0) {
      EXPECT_EQ(rank.finish(rank.send(1, data_tag(0, 1), rank.pattern(64, 1))), MessageStatus::kOk);
    }
    rank.exchange_markers();
    if (rank.index == 1) {
      testing::internal::CaptureStdout();
      rank.transport->close();
      EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    }
    rank.meet_silently(0);
  });
}

// Its shared memory is gone with it.
TEST(UcxWordsTest, ConnectingToARankThatHasEndedSaysNothing) {
  run_ranks(kUcxSharedMemory, 2, [](Rank& rank) {
    if (rank.index == 1) {
      rank.transport->close();
      rank.arrive(0);
      return;
    }
    while (!rank.is_met(0, 1)) sched_yield();
    testing::internal::CaptureStdout();
    rank.send(1, data_tag(0, 1), rank.pattern(64, 1));
    rank.drain();
    rank.transport->close();
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  });
}

// The two sentences of UCX 1.13 about a peer's shared memory, and one about anything else.
TEST(UcxWordsTest, OnlyMemoryThatIsGoneIsPassedOver) {
  run_ranks(kUcxSharedMemory, 1, [](Rank&) {
    const auto attach = [](int error) {
      testing::internal::CaptureStdout();
      errno = error;
      ucs_error("shmat(shmid=%d) failed: %m", 7);
      ucs_error("mm ep failed to connect to remote FIFO id 0x%lx: %s", 7ul, "Shared memory error");
      return testing::internal::GetCapturedStdout();
    };
    EXPECT_EQ(attach(EINVAL), "");
    EXPECT_EQ(attach(EIDRM), "");
    const auto both = AllOf(HasSubstr("shmat(shmid=7) failed: Permission denied"),
                            HasSubstr("mm ep failed to connect to remote FIFO id 0x7"));
    EXPECT_THAT(attach(EACCES), both);
    EXPECT_EQ(attach(EINVAL), "");
    testing::internal::CaptureStdout();
    ucs_error("mm ep failed to connect to remote FIFO id 0x%lx: %s", 8ul, "of something else");
    errno = EINVAL;
    ucs_warn("something is wrong");
    EXPECT_THAT(testing::internal::GetCapturedStdout(),
                AllOf(HasSubstr("0x8"), HasSubstr("something is wrong")));
  });
}

TEST_P(TransportConformance, WhatWasSentBeforeLeavingArrives) {
  run(2, [](Rank& rank) {
    rank.greet_all();
    if (rank.index == 1) {
      for (const unsigned message : {0u, 1u, 2u}) {
        const auto sent = rank.pattern(message == 2 ? 8000 : 44, message);
        EXPECT_EQ(rank.finish(rank.send(0, data_tag(1, message), sent)), MessageStatus::kOk);
      }
      rank.transport->close();
      return;
    }
    while (!rank.is_gone(1)) sched_yield();
    for (const unsigned message : {0u, 1u, 2u}) {
      const auto into = rank.memory(8000);
      Pending& received = rank.receive(data_tag(1, message), into);
      EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
      EXPECT_EQ(received.bytes, message == 2 ? 8000 : 44);
      EXPECT_TRUE(Rank::is_pattern(into.first(received.bytes), message)) << message;
    }
  });
}

TEST_P(TransportConformance, ADeathIsToldOverTcpOnly) {
  const bool tells = GetParam().tells_of_death;
  run(2, [tells](Rank& rank) {
    rank.greet_all();
    if (rank.index == 1) rank.die();
    if (!tells) {
      rank.until([&] { return rank.is_gone(1); });
      rank.drain();
      EXPECT_TRUE(rank.broken.empty());
      return;
    }
    rank.sleep_until([&] { return !rank.broken.empty(); });
    ASSERT_EQ(rank.broken.size(), 1u);
    EXPECT_EQ(rank.broken[0].peer, rank.peer(1));
    EXPECT_FALSE(rank.broken[0].reason.empty());
    for (const size_t bytes : {size_t{8}, kLarge}) {
      Pending& sent = rank.send(1, data_tag(0, 0), rank.pattern(bytes, 0));
      EXPECT_TRUE(sent.done);
      EXPECT_EQ(sent.status, MessageStatus::kFailed);
    }
    rank.drain();
    EXPECT_EQ(rank.broken.size(), 1u) << "told once";
  });
}

TEST_P(TransportConformance, AReceiveThatADeadRankNeverAnsweredIsCancelled) {
  const bool tells = GetParam().tells_of_death;
  run(2, [tells](Rank& rank) {
    rank.greet_all();
    if (rank.index == 1) {
      while (!rank.is_met(0, 1)) rank.step();
      rank.die();
    }
    const auto into = rank.memory(kLarge);
    Pending& received = rank.receive(data_tag(1, 0), into);
    rank.arrive(0);
    rank.until([&] { return rank.is_gone(1) && (!tells || !rank.broken.empty()); });
    rank.drain();
    EXPECT_FALSE(received.done);
    rank.transport->cancel(received);
    EXPECT_EQ(rank.finish(received), MessageStatus::kCancelled);
    EXPECT_TRUE(Rank::is_untouched(into));
  });
}

// Rank 1 dies when its large message has been announced to rank 0, which has received
// `steps_before` steps of it, or posts its receive only afterwards (-1).
void receive_from_the_dead(Rank& rank, bool tells, int steps_before) {
  static constexpr size_t kBytes = 16 * kLarge;
  rank.greet_all();
  if (rank.index == 1) {
    Pending& sent = rank.send(0, data_tag(1, 0), rank.memory(kBytes));
    rank.send(0, data_tag(1, 1), rank.pattern(8, 1));
    rank.until([&] { return rank.is_met(0, 1); });
    EXPECT_FALSE(sent.done);
    rank.die();
  }
  // The announcement comes before this, or is still under way in memory.
  rank.finish(rank.receive(data_tag(1, 1), rank.memory(8)));
  while (rank.step()) continue;
  const auto into = rank.memory(kBytes);
  const auto post = [&]() -> Pending& { return rank.receive(data_tag(1, 0), into); };
  Pending* received = steps_before < 0 ? nullptr : &post();
  for (int i = 0; i < steps_before; ++i) rank.step();
  rank.arrive(0);
  while (!rank.is_gone(1)) sched_yield();
  if (received == nullptr) received = &post();

  rank.until([&] { return !rank.broken.empty(); });
  EXPECT_EQ(rank.broken[0].peer, rank.peer(1));
  if (!tells) {
    rank.finish(*received);
  } else if (rank.drain(); !received->done) {
    rank.transport->cancel(*received);
    rank.drain();
    EXPECT_FALSE(received->done) << "neither ended by the death nor abandoned";
  }
  if (received->done) {
    EXPECT_EQ(received->status, MessageStatus::kFailed);
  }
  rank.transport->close();
}

TEST_P(TransportConformance, AReceiveOfWhatADeadRankAnnouncedEndsOrIsAbandoned) {
  const bool tells = GetParam().tells_of_death;
  run(2, [tells](Rank& rank) { receive_from_the_dead(rank, tells, /*steps_before=*/-1); });
}

TEST_P(TransportConformance, AReceiveInTheMiddleOfADeadRanksDataEndsOrIsAbandoned) {
  const bool tells = GetParam().tells_of_death;
  // In memory the next step moves all of it.
  const int steps_before = GetParam().is_ucx ? 4 : 0;
  run(2, [=](Rank& rank) { receive_from_the_dead(rank, tells, steps_before); });
}

TEST_P(TransportConformance, CloseEndsSendsToADeadRank) {
  const bool tells = GetParam().tells_of_death;
  run(2, [tells](Rank& rank) {
    rank.greet_all();
    if (rank.index == 1) rank.die();
    while (!rank.is_gone(1)) sched_yield();
    std::vector<Pending*> sends;
    for (int i = 0; i < 500; ++i) {
      sends.push_back(&rank.send(1, data_tag(0, 1), rank.pattern(64, 1)));
    }
    sends.push_back(&rank.send(1, data_tag(0, 2), rank.pattern(kLarge, 2)));
    if (tells) {
      for (Pending* sent : sends) rank.finish(*sent);
      EXPECT_EQ(sends.back()->status, MessageStatus::kFailed);
    } else {
      rank.drain();
      EXPECT_FALSE(sends.back()->done);
      EXPECT_TRUE(rank.broken.empty());
    }
    rank.transport->close();
  });
}

TEST_P(TransportConformance, OthersGoOnAfterAKill) {
  run(3, [](Rank& rank) {
    rank.greet_all();
    if (rank.index == 2) {
      rank.send(0, data_tag(2, 0), rank.pattern(kLarge, 0));
      rank.until([&] { return rank.is_met(0, 2); });
      rank.die();
    }
    const int other = 1 - rank.index;
    Pending& never = rank.receive(data_tag(2, 5), rank.memory(64));
    rank.send(2, data_tag(rank.index, 6), rank.pattern(kLarge, 0));
    for (int i = 0; i < 200; ++i) rank.send(2, data_tag(rank.index, 7), rank.pattern(64, 0));
    rank.arrive(0);
    rank.until([&] { return rank.is_gone(2); });
    if (rank.index == 0) rank.receive(data_tag(2, 0), rank.memory(kLarge));
    for (unsigned round = 0; round < 3; ++round) {
      const auto into = rank.memory(kLarge);
      Pending& received = rank.receive(data_tag(other, round), into);
      Pending& sent = rank.send(other, data_tag(rank.index, round), rank.pattern(kLarge, round));
      EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
      EXPECT_EQ(rank.finish(sent), MessageStatus::kOk);
      EXPECT_TRUE(Rank::is_pattern(into, round));
    }
    rank.transport->cancel(never);
    EXPECT_EQ(rank.finish(never), MessageStatus::kCancelled);
    for (const BrokenPeer& broken : rank.broken) EXPECT_EQ(broken.peer, rank.peer(2));
    rank.meet(1, 2);
  });
}

TEST_P(TransportConformance, ConnectingToADeadRankBreaksThatPeerOnly) {
  run(3, [](Rank& rank) {
    if (rank.index == 2) rank.die();
    while (!rank.is_gone(2)) sched_yield();
    Pending& never = rank.send(2, data_tag(rank.index, 0), rank.pattern(64, 0));
    rank.until([&] { return !rank.broken.empty(); });
    EXPECT_EQ(rank.broken[0].peer, rank.peer(2));
    EXPECT_EQ(rank.finish(never), MessageStatus::kFailed);
    const int other = 1 - rank.index;
    Pending& received = rank.receive(data_tag(other, 1), rank.memory(kLarge));
    Pending& sent = rank.send(other, data_tag(rank.index, 1), rank.pattern(kLarge, 1));
    EXPECT_EQ(rank.finish(received), MessageStatus::kOk);
    EXPECT_EQ(rank.finish(sent), MessageStatus::kOk);
    rank.meet(0, 2);
  });
}

TEST(UcxTransportTest, SaysWhichTransportsWereAskedForWhereNoneIsFound) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    setenv("UCX_TLS", "carrier_pigeon", 1);
    const auto transport = create_ucx_transport();
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(transport.status().ToString(), HasSubstr("UCX_TLS=carrier_pigeon"));
    std::fflush(stdout);
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(TagTest, FieldsDoNotMeet) {
  const Tag tag = collective_tag(TagKind::kData, kMaxGroups - 1, 0, 0, 0);
  EXPECT_EQ(group_of(tag), kMaxGroups - 1);
  EXPECT_EQ(sender_of(tag), 0);
  EXPECT_EQ(sender_of(collective_tag(TagKind::kHeader, 0, kMaxRanks - 1, 0, 0)), kMaxRanks - 1);
  EXPECT_EQ(collective_tag(TagKind::kHeader, 0, 0, ~uint64_t{0}, ~uint32_t{0}), kMaxUserTag);
  EXPECT_EQ(point_to_point_tag(3, 1, kMaxUserTag) & kAnySender,
            point_to_point_tag(3, 0, kMaxUserTag));
  EXPECT_EQ(collective_tag(TagKind::kControl, 3, 2, 1, 0) & kAnyControl, kAnyControl);
  EXPECT_NE(point_to_point_tag(3, 2, 0) & kAnyControl, kAnyControl);
}

// Tags of all messages of one operation from one rank to another.
TEST(TagTest, OffersHeadersAndDataOfAnOperationDiffer) {
  std::vector<Tag> tags;
  for (uint32_t message = 0; message < kMaxMessages; ++message) {
    tags.push_back(offer_tag(3, 1, 17, message));
    tags.push_back(collective_tag(TagKind::kData, 3, 1, 17, message));
  }
  // Rounds of the header check, and of the explanation.
  for (uint32_t round = 0; round < kExplainRound; ++round) {
    tags.push_back(collective_tag(TagKind::kHeader, 3, 1, 17, round));
    tags.push_back(collective_tag(TagKind::kHeader, 3, 1, 17, kExplainRound + round));
  }
  const size_t all = tags.size();
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  EXPECT_EQ(tags.size(), all);
  for (const Tag tag : tags) {
    ASSERT_EQ(group_of(tag), 3u);
    ASSERT_EQ(sender_of(tag), 1);
    ASSERT_EQ(tag >> kMessageBits & (kSequences - 1), 17u);
  }
}

}  // namespace
}  // namespace meshrun::ucx
