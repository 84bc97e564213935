// The address book of the ucx engine over a c10d store, and over the agent's.
#include "parallel/comm/ucx/store_address_book.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <resolv.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/store/agent_store.h"
#include "tests/parallel/support/fake_agent.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace meshrun {
namespace {

using std::chrono::milliseconds;

// Says whether a look-up of a name, as torch's TCPStore does one where it connects, would leave the
// host.
class NamingStore : public c10d::HashStore {
 public:
  explicit NamingStore(std::atomic<int>& asked) : asked_(asked) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    if (_res.nsaddr_list[0].sin_addr.s_addr != htonl(INADDR_LOOPBACK)) ++asked_;
    return HashStore::clone();
  }

 private:
  std::atomic<int>& asked_;
};

TEST(StoreAddressBookTest, AsksNoNameServer) {
  std::atomic<int> asked = 0;
  StoreAddressBook book(c10::make_intrusive<NamingStore>(asked), std::chrono::seconds(60));
  EXPECT_EQ(book.publish(1, ucx::AddressRecord()), std::nullopt);
  std::promise<void> found;
  book.look_up({1}, [&](int, auto, const std::string&) { found.set_value(); });
  found.get_future().get();
  EXPECT_EQ(asked, 0);
}

TEST(StoreAddressBookTest, FindsARecordThatIsPublishedLaterAndSaysWhichIsMissing) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  StoreAddressBook first(store, std::chrono::seconds(60)), hasty(store, milliseconds(1));
  ucx::AddressRecord record;
  record.transport_address = std::string("a\0b", 3);
  EXPECT_EQ(first.publish(0, record), std::nullopt);
  record.process = 2;
  EXPECT_NE(first.publish(0, record), std::nullopt);

  std::promise<std::string> address, reason;
  first.look_up({1}, [&](int rank, std::optional<ucx::AddressRecord> found, const std::string&) {
    EXPECT_EQ(rank, 1);
    address.set_value(found->transport_address);
  });
  hasty.look_up({2}, [&](int, std::optional<ucx::AddressRecord> found, const std::string& why) {
    EXPECT_FALSE(found);
    reason.set_value(why);
  });
  EXPECT_NE(reason.get_future().get().find("no address within"), std::string::npos);
  EXPECT_EQ(StoreAddressBook(store, milliseconds(1)).publish(1, record), std::nullopt);
  EXPECT_EQ(address.get_future().get(), record.transport_address);
  // If several are looked up, those that are there are found, though one never comes.
  std::promise<int> there;
  first.look_up({1, 7}, [&](int rank, auto found, const std::string&) {
    EXPECT_TRUE(found);
    there.set_value(rank);
  });
  EXPECT_EQ(there.get_future().get(), 1);
  // Nobody is called after stop().
  first.look_up({5}, [](int, auto, const std::string&) { ADD_FAILURE(); });
  first.stop();
}

TEST(StoreAddressBookTest, AsksOnceForAllRanks) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::seconds(60)),
                        std::chrono::seconds(60));
  ucx::AddressRecord record;
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const int rank : ranks) EXPECT_EQ(book.publish(rank, record), std::nullopt);
  const int64_t before = agent->store_calls();
  std::atomic<size_t> found = 0;
  std::promise<void> all;
  book.look_up(ranks, [&](int, std::optional<ucx::AddressRecord> at, const std::string& why) {
    EXPECT_TRUE(at) << why;
    if (++found == ranks.size()) all.set_value();
  });
  all.get_future().wait();
  EXPECT_EQ(agent->store_calls() - before, 1);
}

// As on a busy host: a question for each that is missing, again and again, would be P * P calls.
TEST(StoreAddressBookTest, RanksThatComeOneAfterTheOtherCostFewCalls) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::seconds(60)),
                        std::chrono::seconds(60));
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  std::atomic<size_t> found = 0;
  std::promise<void> all;
  book.look_up(ranks, [&](int, std::optional<ucx::AddressRecord> at, const std::string& why) {
    EXPECT_TRUE(at) << why;
    if (++found == ranks.size()) all.set_value();
  });
  for (const int rank : ranks) {
    std::this_thread::sleep_for(milliseconds(80));
    EXPECT_EQ(book.publish(rank, ucx::AddressRecord()), std::nullopt);
  }
  all.get_future().wait();
  // Theirs, the wait, and once those that were there.
  EXPECT_LE(agent->store_calls(), 8 + 1 + 10);
}

// Far within the time of a call that nobody ends.
constexpr std::chrono::seconds kSoon(8);

TEST(StoreAddressBookTest, AQuestionThatIsLateWaitsForNoOther) {
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment(), c10::make_intrusive<c10d::HashStore>());
  StoreAddressBook book(c10::make_intrusive<AgentStore>(agent, std::chrono::minutes(10)),
                        std::chrono::minutes(10));
  EXPECT_EQ(book.publish(0, ucx::AddressRecord()), std::nullopt);
  for (int rank = 1; rank <= 4; ++rank) {
    book.look_up({rank}, [](int, auto, const std::string&) { ADD_FAILURE(); });
    while (agent->store_calls() < 1 + rank) std::this_thread::yield();
  }
  std::promise<void> answered;
  book.look_up({0}, [&](int, auto found, const std::string& why) {
    EXPECT_TRUE(found) << why;
    answered.set_value();
  });
  EXPECT_EQ(answered.get_future().wait_for(kSoon), std::future_status::ready);
  std::future<void> stopped = std::async([&] { book.stop(); });
  EXPECT_EQ(stopped.wait_for(kSoon), std::future_status::ready);
}

}  // namespace
}  // namespace meshrun
