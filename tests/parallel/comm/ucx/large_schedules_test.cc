// Schedules of tensors that no test can hold: no two messages from one rank to another share a tag,
// both ends number them alike, and neither steps nor scratch memory grow with the tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

constexpr Reduction kSum{ReductionOp::kSum, DType::kFloat32};
constexpr int64_t kMillion = 1 << 20;

struct Most {
  size_t steps = 0;
  uint32_t messages = 0;
  int64_t scratch = 0;

  void add(const std::vector<Schedule>& ranks) {
    for (const Schedule& schedule : ranks) {
      steps = std::max(steps, schedule.steps.size());
      messages = std::max(messages, schedule.most_messages);
      scratch = std::max(scratch, schedule.scratch_bytes);
    }
  }
};

// Message on its way: the number of its tag, and what it is.
struct Numbered {
  uint64_t number;
  uint32_t message;
  int64_t bytes;
};
bool operator<(const Numbered& a, const Numbered& b) { return a.number < b.number; }

// Sorts by number. The first message whose number another one has; null: there is none.
const Numbered* sort_and_find_twin(std::vector<Numbered>& messages) {
  std::sort(messages.begin(), messages.end());
  const auto same = [](const Numbered& a, const Numbered& b) { return a.number == b.number; };
  const auto found = std::adjacent_find(messages.begin(), messages.end(), same);
  return found == messages.end() ? nullptr : &*found;
}

// Empty, or what is wrong. All messages of an operation count as in flight.
std::string tag_problem(const std::vector<Schedule>& ranks) {
  constexpr uint64_t kSequence = 70000;
  const int size = static_cast<int>(ranks.size());
  using Messages = std::map<std::pair<int, int>, std::vector<Numbered>>;  // by sender and receiver
  Messages sent, received, offers;
  const auto low = [](Tag tag) { return tag & ((Tag{1} << kMessageBits) - 1); };
  const auto name = [](const std::pair<int, int>& pair, uint32_t message) {
    return "message " + std::to_string(message) + " from " + std::to_string(pair.first) + " to " +
           std::to_string(pair.second);
  };
  for (int rank = 0; rank < size; ++rank) {
    for (const Step& step : ranks[rank].steps) {
      if (step.kind != StepKind::kSend && step.kind != StepKind::kReceive) continue;
      const auto number = low(collective_tag(TagKind::kData, 1, rank, kSequence, step.message));
      if (step.kind == StepKind::kSend) {
        sent[{rank, step.peer}].push_back({number, step.message, step.from.bytes});
        continue;
      }
      received[{step.peer, rank}].push_back({number, step.message, step.to.bytes});
      const auto offer = low(offer_tag(1, rank, kSequence, step.message));
      offers[{step.peer, rank}].push_back({offer, step.message, 0});
    }
  }
  for (auto& [pair, messages] : sent) {
    if (const Numbered* const twin = sort_and_find_twin(messages)) {
      return "two data messages share a tag: " + name(pair, twin->message);
    }
  }
  for (auto& [pair, messages] : offers) {
    if (const Numbered* const twin = sort_and_find_twin(messages)) {
      return "two offers share a tag: " + name(pair, twin->message);
    }
    // Offers go to the sender as headers do, whose rounds have the first numbers.
    if (messages.front().number < 2 * kExplainRound) {
      return "an offer has a header's tag: " + name(pair, messages.front().message);
    }
  }
  for (auto& [pair, messages] : received) {
    std::sort(messages.begin(), messages.end());
    const std::vector<Numbered>& all = sent[pair];
    for (size_t i = 0; i < messages.size(); ++i) {
      if (i >= all.size() || all[i].number != messages[i].number) {
        return "never sent: " + name(pair, messages[i].message);
      }
      if (all[i].bytes != messages[i].bytes) {
        return "of another length than sent: " + name(pair, messages[i].message);
      }
    }
  }
  for (const auto& [pair, messages] : sent) {
    if (messages.size() > received[pair].size()) {
      return "a message from " + std::to_string(pair.first) + " is never received";
    }
  }
  return "";
}

// How pieces are cut and how they lie.
struct Shape {
  const char* name;
  int64_t row;  // 0: along dim 0
  bool sender_in_rows, receiver_in_rows;
  bool is_known = true;  // else neither end knows the other's rows
};
constexpr Shape kShapes[] = {
    {"along dim 0", 0, false, false},       {"rows of 4 bytes", 4, true, false},
    {"rows of 4 KiB", 4096, false, true},   {"rows of 32 KiB", 32 << 10, true, true},
    {"rows of 1 MiB", 1 << 20, true, true}, {"unknown rows", 64, true, true, false},
};

enum class Sizes { kEven, kUneven, kOneHasAll };

struct Case {
  int size;
  int64_t elements;  // of 4 bytes, in all pieces together
  Shape shape;
  Sizes sizes;
  bool one_host;

  Place place(int rank) const { return {rank, size, one_host, {}}; }
  // Bytes of rank r's piece, or of what rank r has for rank s: multiples of 1 MiB.
  int64_t bytes(int r, int s = 0) const {
    const int64_t even = elements * 4 / size / kMillion * kMillion;
    switch (sizes) {
      case Sizes::kEven:
        return even;
      case Sizes::kUneven:
        return (r + s) % size == 1 ? even * 2 : even / 3 / kMillion * kMillion;
      case Sizes::kOneHasAll:
        return (r + s) % size == 1 % size ? even * size : 0;
    }
    return 0;
  }
  std::vector<int64_t> all_bytes() const {
    std::vector<int64_t> all;
    for (int r = 0; r < size; ++r) all.push_back(bytes(r));
    return all;
  }
  Piece piece(int64_t bytes, bool at_sender) const {
    const Layout one{1, bytes, bytes};
    if (shape.row == 0) return {one, std::max<int64_t>(bytes, 1)};
    const Layout rows{bytes / shape.row, shape.row, shape.row + 64};
    const bool in_rows = at_sender ? shape.sender_in_rows : shape.receiver_in_rows;
    return {in_rows ? rows : one, shape.is_known ? shape.row : 1};
  }
  std::vector<Piece> pieces(bool at_sender) const {
    std::vector<Piece> all;
    for (int r = 0; r < size; ++r) all.push_back(piece(bytes(r), at_sender));
    return all;
  }
};

struct Operation {
  const char* name;
  bool takes_pieces;  // else one contiguous tensor
  bool packs;         // a strided piece, to send it to all
  Schedule (*plan)(const Case& c, int rank);
};
const Operation kOperations[] = {
    {"all_reduce", false, false,
     [](const Case& c, int rank) { return plan_all_reduce(c.place(rank), c.elements, kSum); }},
    {"reduce", false, false,
     [](const Case& c, int rank) { return plan_reduce(c.place(rank), c.elements, 1, kSum); }},
    {"broadcast", true, true,
     [](const Case& c, int rank) {
       return plan_broadcast(c.place(rank), c.piece(c.elements * 4, rank == 1), 1);
     }},
    {"all_gather", true, true,
     [](const Case& c, int rank) {
       return plan_all_gather(c.place(rank), c.piece(c.bytes(rank), true), c.pieces(false), true);
     }},
    {"gather", true, false,
     [](const Case& c, int rank) {
       return plan_gather(c.place(rank), c.piece(c.bytes(rank), true), c.pieces(false),
                          c.all_bytes(), 1);
     }},
    {"scatter", true, false,
     [](const Case& c, int rank) {
       return plan_scatter(c.place(rank), c.pieces(true), c.piece(c.bytes(rank), false),
                           c.all_bytes(), 1);
     }},
    {"reduce_scatter", true, false,
     [](const Case& c, int rank) {
       const auto own = c.piece(c.bytes(rank), false);
       return plan_reduce_scatter(c.place(rank), c.pieces(true), own, kSum);
     }},
    {"all_to_all", true, false,
     [](const Case& c, int rank) {
       std::vector<Piece> to, from;
       for (int r = 0; r < c.size; ++r) {
         to.push_back(c.piece(c.bytes(rank, r), true));
         from.push_back(c.piece(c.bytes(r, rank), false));
       }
       return plan_all_to_all(c.place(rank), to, from);
     }},
};

std::vector<Schedule> plans_of(const Operation& operation, const Case& c) {
  std::vector<Schedule> ranks;
  for (int rank = 0; rank < c.size; ++rank) ranks.push_back(operation.plan(c, rank));
  return ranks;
}

class LargeSchedulesTest : public testing::Test {};
class LargeSchedulesOfSizeTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LargeSchedulesOfSizeTest, testing::Range(2, 9));

TEST_P(LargeSchedulesOfSizeTest, NoTwoMessagesOfAPairShareATag) {
  constexpr Sizes kSizes[] = {Sizes::kEven, Sizes::kUneven, Sizes::kOneHasAll};
  unsigned seed = static_cast<unsigned>(GetParam());
  Most most;
  for (const int64_t elements : {int64_t{1} << 31, int64_t{1} << 33}) {
    for (const Operation& operation : kOperations) {
      for (const Shape& shape : kShapes) {
        if (!operation.takes_pieces && &shape != kShapes) continue;
        ++seed;
        const Case c{GetParam(), elements, shape, kSizes[seed / 2 % 3], seed % 2 == 0};
        SCOPED_TRACE(testing::Message()
                     << operation.name << " of " << elements << " elements, " << shape.name
                     << ", sizes " << static_cast<int>(c.sizes) << ", one host " << c.one_host);
        const std::vector<Schedule> ranks = plans_of(operation, c);
        ASSERT_EQ(tag_problem(ranks), "");
        for (const Schedule& schedule : ranks) {
          ASSERT_LE(schedule.most_messages, kMaxMessages);
          ASSERT_LE(schedule.steps.size(), 1u << 20);
          const bool packs = operation.packs && shape.row > 0;
          ASSERT_LE(schedule.scratch_bytes, packs ? elements * 5 : elements / 32);
        }
        most.add(ranks);
      }
    }
  }
  std::printf(
      "schedules of 2^31 and 2^33 elements on %d ranks: at most %zu steps a rank, %u "
      "messages between two ranks of %lld\n",
      GetParam(), most.steps, most.messages, static_cast<long long>(kMaxMessages));
}

TEST_F(LargeSchedulesTest, TheCheckNoticesTagsThatAreShared) {
  // As schedules were made before: chunks that do not grow.
  Case c{2, int64_t{1} << 31, kShapes[0], Sizes::kEven, true};
  std::vector<Schedule> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Place place = c.place(rank);
    place.tuning.messages = int64_t{1} << 40;
    ranks.push_back(plan_all_reduce(place, c.elements, kSum));
  }
  EXPECT_THAT(tag_problem(ranks), testing::HasSubstr("two data messages share a tag"));
  EXPECT_EQ(ranks[0].most_messages, 32768u);
}

TEST_F(LargeSchedulesTest, SchedulesOfManyRanksStayShort) {
  Most most;
  for (const int size : {33, 128, 1000}) {
    const Place place{size - 1, size, true, {}};
    most.add({plan_all_reduce(place, int64_t{1} << 33, kSum)});
    const int64_t bytes = int64_t{1} << 30, row = 64 << 10;
    const std::vector<Piece> pieces(static_cast<size_t>(size),
                                    Piece{{bytes / row, row, 2 * row}, row});
    most.add({plan_all_to_all(place, pieces, pieces)});
    most.add({plan_reduce_scatter(place, pieces, pieces[0], kSum)});
  }
  std::printf("schedules of 33 to 1,000 ranks: at most %zu steps a rank\n", most.steps);
  EXPECT_LE(most.steps, 1u << 20);
  EXPECT_LE(most.messages, kMaxMessages);
}

// Parts of a coalesced call share the numbers.
TEST_F(LargeSchedulesTest, FourHundredPartsTogetherShareNoTag) {
  constexpr int kSize = 3, kParts = 400;
  std::vector<int64_t> bytes;
  for (int part = 0; part < kParts; ++part) bytes.push_back(part % 7 == 0 ? 4 : int64_t{64} << 20);
  bytes[5] = int64_t{8} << 30;
  const std::vector<int64_t> shares = share_messages(kMaxMessages, bytes);
  std::vector<Schedule> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    Place place{rank, kSize, true, {}};
    Schedule all;
    for (int part = 0; part < kParts; ++part) {
      place.tuning.messages = shares[part];
      Schedule next = plan_all_reduce(place, bytes[part] / 4, kSum);
      all = part == 0 ? std::move(next) : join(std::move(all), next, 0, 1);
    }
    ranks.push_back(std::move(all));
  }
  EXPECT_EQ(tag_problem(ranks), "");
  EXPECT_LE(ranks[0].most_messages, kMaxMessages);
  EXPECT_GT(ranks[0].most_messages, kMaxMessages / 4) << "the numbers are used";
}

TEST_F(LargeSchedulesTest, SharesFitAndFollowTheSize) {
  EXPECT_THAT(share_messages(8192, std::vector<int64_t>{0}), testing::ElementsAre(8192));
  EXPECT_THAT(share_messages(8192, std::vector<int64_t>{5}), testing::ElementsAre(8192));
  EXPECT_THAT(share_messages(8192, std::vector<int64_t>{0, 0}), testing::ElementsAre(4096, 4096));
  EXPECT_THAT(share_messages(8192, std::vector<int64_t>{1, 3}),
              testing::ElementsAre(2048 + 1024, 2048 + 3072));
  EXPECT_THAT(share_messages(8, std::vector<int64_t>(12, 1)), testing::Each(1));
}

}  // namespace
}  // namespace meshrun::ucx
