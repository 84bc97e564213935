#include "parallel/comm/ucx/engine/protocol/header_check.h"

#include <array>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshrun::ucx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Signature signature(uint64_t digest, bool problem = false) {
  Signature s;
  s.sequence = 17;
  s.digest = digest;
  s.kind = OperationKind::kAllReduce;
  if (problem) s.flags |= kHasProblem;
  return s;
}

std::vector<std::byte> say(const HeaderCheck& check) {
  std::vector<std::byte> message(
      std::max(HeaderCheck::kExplanationBytes, check.explanation_bytes()));
  message.resize(check.message(message));
  return message;
}

// One phase on all ranks, a round at a time.
void run_rounds(std::vector<HeaderCheck>& ranks) {
  for (int round = 0; round < ranks[0].rounds(); ++round) {
    std::vector<std::vector<std::byte>> said;
    for (const HeaderCheck& rank : ranks) said.push_back(say(rank));
    for (HeaderCheck& rank : ranks) {
      ASSERT_TRUE(rank.receive(said[rank.receive_from(round)]));
    }
  }
}

std::vector<HeaderCheck> checks(const std::vector<Signature>& signatures) {
  std::vector<HeaderCheck> ranks;
  const int size = static_cast<int>(signatures.size());
  for (int r = 0; r < size; ++r) ranks.emplace_back(r, size, signatures[r]);
  return ranks;
}

// Empty where all agree.
std::vector<Failure> outcome(const std::vector<Signature>& signatures) {
  std::vector<HeaderCheck> ranks = checks(signatures);
  run_rounds(ranks);
  for (HeaderCheck& rank : ranks) EXPECT_EQ(rank.agree(), ranks[0].agree());
  if (ranks[0].agree()) return {};
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].begin_explaining("text of rank " + std::to_string(r));
  }
  run_rounds(ranks);
  std::vector<Failure> failures;
  for (const HeaderCheck& rank : ranks) failures.push_back(rank.failure("world"));
  return failures;
}

// What follows the header matters only between ranks that mean the same, as far as they know.
TEST(HeaderCheckTest, WhatAHeaderCarriesIsAsLongAsItsReceiverExpects) {
  const auto heard = [](uint64_t sender_means, bool sender_knows_of_another, size_t sent,
                        size_t expected) {
    HeaderCheck receiver(0, 3, signature(5));
    HeaderCheck sender(2, 3, signature(sender_means));
    if (sender_knows_of_another) {
      EXPECT_TRUE(sender.receive(say(HeaderCheck(1, 3, signature(6)))));
    }
    std::vector<std::byte> message = say(sender);
    message.resize(message.size() + sent);
    EXPECT_TRUE(receiver.receive(message, expected));
    return receiver.agrees_so_far();
  };
  EXPECT_TRUE(heard(5, false, 0, 0));
  EXPECT_TRUE(heard(5, false, 100, 100));
  EXPECT_FALSE(heard(5, false, 99, 100));
  EXPECT_FALSE(heard(5, false, 0, 100));
  EXPECT_FALSE(heard(5, false, 100, 0));
  EXPECT_FALSE(heard(5, true, 0, 100));
  EXPECT_FALSE(heard(7, false, 100, 100));
  EXPECT_FALSE(heard(7, false, 0, 0));
}

TEST(HeaderCheckTest, EveryRankNamesTheSameTwoRanks) {
  std::mt19937 random(1);
  for (int size = 1; size <= 33; ++size) {
    for (int trial = 0; trial < 100; ++trial) {
      const int kinds = 1 + random() % 3;
      std::vector<Signature> signatures;
      for (int r = 0; r < size; ++r) {
        signatures.push_back(signature(random() % 4 ? 0 : random() % kinds, random() % 40 == 0));
      }
      int named = signatures[0].flags ? 0 : -1;
      for (int r = 1; r < size && named < 0; ++r) {
        if (!signatures[0].agrees_with(signatures[r]) || signatures[r].flags) named = r;
      }
      const std::vector<Failure> failures = outcome(signatures);
      ASSERT_EQ(failures.empty(), named < 0) << size;
      if (named < 0) continue;
      const bool problem = signatures[named].flags & kHasProblem;
      for (const Failure& failure : failures) {
        ASSERT_EQ(failure.kind, problem ? FailureKind::kInvalidArgument : FailureKind::kMismatch);
        ASSERT_EQ(failure.ranks, problem ? std::vector{named} : (std::vector{0, named}));
        ASSERT_EQ(failure.message, failures[0].message);
        ASSERT_TRUE(failure.group_survives);
        ASSERT_THAT(failure.message, HasSubstr("text of rank " + std::to_string(named)));
      }
    }
  }
}

// Ranks that tell none agree with all; a disagreement of signatures comes before one of nodes.
TEST(HeaderCheckTest, NodesAreComparedBetweenTheRanksThatTellThem) {
  std::mt19937 random(5);
  int disagreements = 0;
  for (int size = 1; size <= 33; ++size) {
    for (int trial = 0; trial < 100; ++trial) {
      const bool signatures_differ = random() % 10 == 0;
      std::vector<Signature> signatures;
      int first = -1, other = -1, unlike = -1;
      for (int r = 0; r < size; ++r) {
        Signature s = signature(signatures_differ ? random() % 2 : 0);
        s.node = random() % 2 ? 0 : 100 + (random() % 20 == 0);
        if (s.node != 0 && first < 0) first = r;
        if (first >= 0 && first < r && s.node != 0 && other < 0 &&
            s.node != signatures[static_cast<size_t>(first)].node) {
          other = r;
        }
        signatures.push_back(s);
        if (unlike < 0 && s.digest != signatures[0].digest) unlike = r;
      }
      const std::vector<Failure> failures = outcome(signatures);
      ASSERT_EQ(failures.empty(), unlike < 0 && other < 0) << size;
      disagreements += !failures.empty();
      for (const Failure& failure : failures) {
        ASSERT_EQ(failure.kind, FailureKind::kMismatch);
        ASSERT_EQ(failure.ranks,
                  unlike < 0 ? (std::vector{first, other}) : (std::vector{0, unlike}));
        ASSERT_EQ(failure.message, failures[0].message);
        for (const int rank : failure.ranks) {
          ASSERT_THAT(failure.message, HasSubstr("text of rank " + std::to_string(rank)));
        }
      }
    }
  }
  EXPECT_GT(disagreements, 500);
}

TEST(HeaderCheckTest, JoiningIsAssociativeCommutativeAndIdempotent) {
  std::mt19937 random(2);
  const auto same = [](const Knowledge& a, const Knowledge& b) {
    return a.reference == b.reference && a.other == b.other &&
           a.signature.digest == b.signature.digest && a.node.reference() == b.node.reference() &&
           a.node.other() == b.node.other();
  };
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<Signature> of_rank;
    std::vector<NodeKnowledge> node_of_rank;
    for (int r = 0; r < 8; ++r) {
      of_rank.push_back(signature(random() % 2, random() % 10 == 0));
      node_of_rank.emplace_back(r, random() % 3);
    }
    const auto some = [&] {
      Knowledge k;
      for (int i = 0; i < 3; ++i) {
        const int r = random() % 8;
        k = join(k, {r, of_rank[r], of_rank[r].flags ? r : -1, node_of_rank[r]});
      }
      return k;
    };
    const Knowledge a = some(), b = some(), c = some();
    ASSERT_TRUE(same(join(a, b), join(b, a)));
    ASSERT_TRUE(same(join(a, a), a));
    ASSERT_TRUE(same(join(join(a, b), c), join(a, join(b, c))));
  }
}

TEST(HeaderCheckTest, AgreementCostsTheLogarithmInMessagesOf44Bytes) {
  for (const auto& [size, rounds] :
       std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}}) {
    const HeaderCheck check(0, size, signature(1));
    EXPECT_EQ(check.rounds(), rounds) << size;
    EXPECT_EQ(say(check).size(), 44u);
  }
}

// Rank r sends table[r][p] to rank p.
using Table = std::vector<std::vector<int64_t>>;

std::vector<PieceSizes> rows_of(const Table& table, int64_t slice = 4) {
  std::vector<PieceSizes> rows(table.size());
  for (size_t r = 0; r < table.size(); ++r) {
    rows[r].sent.assign(table[r].begin(), table[r].end());
    for (const auto& sender : table) rows[r].expected.push_back(sender[r]);
    rows[r].sent_slice = rows[r].expected_slice = slice;
  }
  return rows;
}

Table some_table(int size, std::mt19937& random) {
  Table table(static_cast<size_t>(size), std::vector<int64_t>(static_cast<size_t>(size)));
  for (auto& row : table) {
    for (int64_t& count : row) count = random() % 3;
  }
  return table;
}

// By rank; empty where all agree.
std::vector<Failure> outcome_of(const std::vector<PieceSizes>& rows) {
  const int size = static_cast<int>(rows.size());
  std::vector<HeaderCheck> ranks;
  for (int r = 0; r < size; ++r) {
    Signature s = signature(1);
    s.kind = OperationKind::kAllToAllV;
    ranks.emplace_back(r, size, s, &rows[static_cast<size_t>(r)]);
  }
  run_rounds(ranks);
  for (HeaderCheck& rank : ranks) EXPECT_EQ(rank.agree(), ranks[0].agree());
  if (ranks[0].agree()) return {};
  for (HeaderCheck& rank : ranks) rank.begin_explaining("");
  run_rounds(ranks);
  std::vector<Failure> failures;
  for (const HeaderCheck& rank : ranks) failures.push_back(rank.failure("world"));
  return failures;
}

TEST(HeaderCheckTest, SizesThatOnlyTwoRanksKnowAreComparedPairByPair) {
  std::mt19937 random(3);
  for (int size = 2; size <= 17; ++size) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<PieceSizes> rows = rows_of(some_table(size, random));
      ASSERT_TRUE(outcome_of(rows).empty()) << size;
      const int receiver = random() % size;
      const int sender = (receiver + 1 + random() % (size - 1)) % size;
      rows[receiver].expected[sender] += 1 + random() % 3;
      // What a rank sends to itself is its own affair.
      rows[sender].sent[sender] = 100;
      const std::vector<Failure> failures = outcome_of(rows);
      ASSERT_EQ(failures.size(), rows.size()) << size;
      for (const Failure& failure : failures) {
        ASSERT_EQ(failure.kind, FailureKind::kMismatch);
        ASSERT_THAT(failure.ranks, ElementsAre(sender, receiver));
        ASSERT_TRUE(failure.group_survives);
        ASSERT_EQ(failure.message, failures[0].message);
      }
    }
  }
}

// Their sum and their difference are what they should be.
TEST(HeaderCheckTest, WrongSizesDoNotCancelEachOther) {
  std::vector<PieceSizes> rows = rows_of({{0, 1, 1}, {1, 0, 1}, {1, 1, 0}});
  rows[0].expected[1] = 2;
  rows[1].expected[0] = 0;
  const std::vector<Failure> failures = outcome_of(rows);
  ASSERT_EQ(failures.size(), 3u);
  EXPECT_EQ(
      failures[2].message,
      "Ranks disagree on the sizes of all_to_all_v number 17 of group \"world\": rank 0 sends 1 "
      "to rank 1, which expects 0 (rank 0 sends [0, 1, 1] to the ranks; rank 1 expects [0, 0, 1] "
      "of them). No tensor was written, and the group can still be used.");
}

TEST(HeaderCheckTest, SlicesOfOtherExtentsAreOtherSizes) {
  std::vector<PieceSizes> rows = rows_of({{0, 2}, {2, 0}});
  rows[1].expected_slice = 5;
  const std::vector<Failure> failures = outcome_of(rows);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_THAT(failures[0].message, HasSubstr("rank 0 sends 2 slices of 4 elements to rank 1, which "
                                             "expects slices of 5"));
}

TEST(HeaderCheckTest, AComparedTableCosts16BytesMoreAndOfManyRanksNoPairIsNamed) {
  const std::vector<PieceSizes> two = rows_of({{0, 2}, {2, 0}});
  EXPECT_EQ(say(HeaderCheck(0, 2, signature(1), &two[0])).size(), 60u);
  std::mt19937 random(4);
  std::vector<PieceSizes> rows = rows_of(some_table(HeaderCheck::kMaxRows + 1, random));
  EXPECT_TRUE(outcome_of(rows).empty());
  rows[3].sent[4] += 1;
  const std::vector<Failure> failures = outcome_of(rows);
  ASSERT_EQ(failures.size(), rows.size());
  EXPECT_TRUE(failures[0].ranks.empty());
  EXPECT_THAT(failures[0].message, HasSubstr("some rank sends another size"));
}

// Several all-to-alls in one operation.
TEST(HeaderCheckTest, EveryTableOfAnOperationIsComparedAndTheWrongOneIsNamed) {
  const auto joined = [](const std::vector<PieceSizes>& a, const std::vector<PieceSizes>& b) {
    std::vector<PieceSizes> rows = a;
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].sent.insert(rows[r].sent.end(), b[r].sent.begin(), b[r].sent.end());
      rows[r].expected.insert(rows[r].expected.end(), b[r].expected.begin(), b[r].expected.end());
    }
    return rows;
  };
  const std::vector<PieceSizes> one = rows_of({{1, 0}, {3, 1}}), two = rows_of({{0, 5}, {2, 0}});
  EXPECT_TRUE(outcome_of(joined(one, two)).empty());
  // What the tables say of a pair is exchanged between them: their sums alone would not tell.
  std::vector<PieceSizes> rows = joined(one, two);
  std::swap(rows[1].expected[0], rows[1].expected[2]);
  std::vector<Failure> failures = outcome_of(rows);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_THAT(failures[0].message, HasSubstr("in all-to-all 1 of 2, rank 0 sends 0 to rank 1, "
                                             "which expects 5"));
  EXPECT_EQ(failures[1].message, failures[0].message);
  rows = joined(one, two);
  rows[0].sent[3] = 0;
  for (PieceSizes& row : rows) row.call = "alltoall_v";
  failures = outcome_of(rows);
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_THAT(failures[1].message, HasSubstr("the sizes of alltoall_v number 17"));
  EXPECT_THAT(failures[1].message, HasSubstr("in all-to-all 2 of 2, rank 0 sends 0 to rank 1, "
                                             "which expects 5"));
}

TEST(HeaderCheckTest, AHeaderLeftBehindIsDropped) {
  Signature late = signature(1);
  late.sequence = 16;
  HeaderCheck check(0, 2, signature(1));
  EXPECT_FALSE(check.receive(say(HeaderCheck(1, 2, late))));
  EXPECT_TRUE(check.receive(say(HeaderCheck(1, 2, signature(1)))));
  EXPECT_TRUE(check.agree());
}

TEST(HeaderCheckTest, MalformedBytesAreADisagreement) {
  HeaderCheck check(0, 2, signature(1));
  EXPECT_TRUE(check.receive(std::array<std::byte, 3>{}));
  EXPECT_FALSE(check.agree());
  check.begin_explaining("mine");
  EXPECT_TRUE(check.receive(std::array<std::byte, 9>{std::byte{1}, std::byte{1}}));
  EXPECT_THAT(check.failure("world").ranks, ElementsAre(0, 1));
}

TEST(HeaderCheckTest, LongTextsAreCut) {
  HeaderCheck a(0, 2, signature(1)), b(1, 2, signature(2));
  const auto of_a = say(a), of_b = say(b);
  ASSERT_TRUE(a.receive(of_b));
  ASSERT_TRUE(b.receive(of_a));
  a.begin_explaining(std::string(5000, 'a'));
  b.begin_explaining(std::string(5000, 'b'));
  ASSERT_TRUE(a.receive(say(b)));
  EXPECT_EQ(say(a).size(), HeaderCheck::kExplanationBytes);
  EXPECT_THAT(a.failure("world").message, HasSubstr(std::string(HeaderCheck::kMaxText, 'b')));
}

TEST(HeaderCheckTest, EveryFieldOfASignatureMatters) {
  const Signature base = signature(1);
  EXPECT_TRUE(base.agrees_with(base));
  for (const auto& change : std::vector<void (*)(Signature&)>{
           [](Signature& s) { ++s.sequence; }, [](Signature& s) { ++s.digest; },
           [](Signature& s) { ++s.bytes; }, [](Signature& s) { s.kind = OperationKind::kReduce; },
           [](Signature& s) { s.dtype = DType::kInt8; }, [](Signature& s) { ++s.ndim; },
           [](Signature& s) { s.flags = kRequiresGrad; }, [](Signature& s) { s.root = 3; }}) {
    Signature other = base;
    change(other);
    EXPECT_FALSE(base.agrees_with(other));
  }
  EXPECT_FALSE(signature(1, true).agrees_with(signature(1, true)));
}

TEST(HeaderCheckTest, DigestsTellOrderAndLengthApart) {
  const auto digest = [](std::vector<int64_t> values) { return Digest().add(values).value(); };
  EXPECT_NE(digest({1, 2}), digest({2, 1}));
  EXPECT_NE(digest({0}), digest({0, 0}));
  EXPECT_NE(digest({}), digest({0}));
  EXPECT_EQ(digest({3, 4}), digest({3, 4}));
}

}  // namespace
}  // namespace meshrun::ucx
