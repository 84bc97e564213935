// Each allocation that two engines make while they talk to each other fails once, one in each run.
// A run ends with an error or with results: nothing waits for ever, no lock stays locked, and every
// callback is called. The allocator of this program is its own.
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/execution/engine.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"
#include "tests/parallel/comm/ucx/memory_transport.h"

namespace {

// How many allocations of all threads succeed before one fails; below 0: none fails.
std::atomic<int64_t> allocations_left{-1};
// Above 0 while this thread does what the test needs, and not the engine.
thread_local int exempt = 0;

struct Exempt {
  Exempt() { ++exempt; }
  ~Exempt() { --exempt; }
};

void* allocate(size_t bytes, size_t alignment) {
  if (exempt == 0 && allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) {
    throw std::bad_alloc();
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace meshrun::ucx {
namespace {

// The network is the test's: it loses nothing.
class ExemptTransport final : public Transport {
 public:
  explicit ExemptTransport(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)) {}

  const std::string& address() const override { return transport_->address(); }
  PeerId connect(std::string_view address) override {
    const Exempt test;
    return transport_->connect(address);
  }
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    const Exempt test;
    return transport_->send(to, tag, bytes, request);
  }
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override {
    const Exempt test;
    transport_->receive(from, tag, mask, bytes, request);
  }
  void cancel(Request& receive) override {
    const Exempt test;
    transport_->cancel(receive);
  }
  bool progress(Completions& completions) override {
    const Exempt test;
    return transport_->progress(completions);
  }
  bool arm() override {
    const Exempt test;
    return transport_->arm();
  }
  int event_fd() const override { return transport_->event_fd(); }
  void wake() override {
    const Exempt test;
    transport_->wake();
  }
  void close() override {
    const Exempt test;
    transport_->close();
  }

 private:
  const std::unique_ptr<Transport> transport_;
};

// Answers at once: all ranks have published before anybody asks.
class InlineBook final : public AddressBook {
 public:
  explicit InlineBook(std::map<int, std::string>& records) : records_(records) {}

  std::optional<std::string> publish(int rank, const AddressRecord& record) override {
    records_[rank] = serialize(record);
    return std::nullopt;
  }
  void look_up(const std::vector<int>& ranks, Found found) override {
    for (const int rank : ranks) found(rank, parse_address_record(records_.at(rank)), "");
  }
  void stop() override {}

 private:
  std::map<int, std::string>& records_;
};

// Two ranks, which call a barrier, send and receive with a callback, and disagree.
class TwoRanks {
 public:
  TwoRanks() {
    for (int rank = 0; rank < 2; ++rank) {
      Engine::Options options;
      options.dump = [](const std::string&) {};
      options.cores = 2;
      engines_[rank] = Engine::start(std::make_unique<ExemptTransport>(network_.create_transport()),
                                     std::move(options));
      GroupConfig config;
      config.name = "world";
      config.rank = rank;
      config.size = 2;
      EXPECT_EQ(
          engines_[rank]->join(config, std::make_unique<InlineBook>(records_), &groups_[rank]),
          std::nullopt);
    }
  }

  // The allocation after `successful` ones fails. False: there are fewer.
  bool run(int64_t successful) {
    std::atomic<bool> begins{false};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, rank, &begins] {
        while (!begins) sched_yield();
        if (call_all(rank)) return;
        // The other rank waits for this one.
        const Exempt test;
        groups_[1 - rank]->abort("the other rank has failed");
      });
    }
    allocations_left = successful;
    begins = true;
    for (std::thread& thread : threads) thread.join();
    return allocations_left.exchange(-1) < 0;
  }

  // Nobody holds the lock.
  void expect_unlocked() {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_FALSE(engines_[rank]->flight_records().empty());
      if (!groups_[rank]->failure()) continue;
      const auto later = groups_[rank]->submit(barrier());
      ASSERT_TRUE(later->is_done());
      ASSERT_TRUE(later->failure().has_value());
      EXPECT_FALSE(later->failure()->message.empty());
    }
  }

 private:
  static OperationSpec barrier(uint64_t digest = 0) {
    OperationSpec spec;
    spec.signature.kind = OperationKind::kBarrier;
    spec.signature.digest = digest;
    spec.drive = Drive::kCaller;
    spec.text = [] { return std::string("barrier"); };
    return spec;
  }

  // Whether all went as it does where no allocation fails.
  bool call_all(int rank) {
    Group& group = *groups_[rank];
    try {
      const auto met = group.submit(barrier());
      if (!group.wait(*met) || met->failure()) return false;

      std::vector<std::byte> memory(20000, std::byte(rank));
      auto kept = std::make_shared<std::vector<std::byte>>(std::move(memory));
      PointToPointSpec spec;
      spec.is_send = rank == 0;
      spec.peer = 1 - rank;
      spec.memory = contiguous(kept->data(), static_cast<int64_t>(kept->size()));
      spec.keep_alive = kept;
      const auto sent = group.submit(std::move(spec));
      const auto is_called = std::make_shared<std::atomic<bool>>(false);
      group.on_done(sent, [is_called] { *is_called = true; });
      while (!*is_called) sched_yield();
      if (!sent->is_done() || sent->failure()) return false;
      const Exempt test;
      EXPECT_EQ((*kept)[19999], std::byte(0));
    } catch (const std::bad_alloc&) {
      return false;
    }
    try {
      const auto other = group.submit(barrier(static_cast<uint64_t>(rank)));
      if (!group.wait(*other)) return false;
      return other->failure() && other->failure()->kind == FailureKind::kMismatch;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  MemoryNetwork network_{{.seed = 1, .deliveries_per_progress = 4}};
  std::map<int, std::string> records_;
  std::array<std::shared_ptr<Engine>, 2> engines_;
  std::array<std::shared_ptr<Group>, 2> groups_;
};

TEST(AllocationFailuresTest, WhicheverAllocationFailsEveryCallEndsAndTheLockIsFree) {
  int64_t successful = 0;
  while (true) {
    SCOPED_TRACE(successful);
    TwoRanks ranks;
    const bool has_failed = ranks.run(successful);
    ranks.expect_unlocked();
    if (!has_failed || HasFatalFailure()) break;
    ++successful;
  }
  // A barrier alone makes several.
  EXPECT_GT(successful, 20);
  std::cout << successful << " allocations failed, one in each run\n";
}

}  // namespace
}  // namespace meshrun::ucx
