// Do all ranks of the group mean the same operation? Asked before any tensor is written.
//
// A dissemination over ceil(log2 P) rounds: in round k a rank sends what it knows to rank + 2^k and
// hears from rank - 2^k. What it knows is the signature of the lowest rank heard of and, where some
// rank differs from that, the lowest rank that does. Joining two such facts is associative,
// commutative and idempotent, so after the last round every rank holds the same pair: the lowest
// rank of the group, and the lowest rank that disagrees with it. Where nobody disagrees, the
// operation starts. Where somebody does, as many rounds more carry the two ranks' own words, and
// every rank raises the same sentence. No tensor has been written by then: the group stays usable.
//
//   agree:     ceil(log2 P) messages of 44 bytes a rank, and of small operations the pieces
//   disagree:  twice the rounds; texts of at most kMaxText bytes
//
// In an all-to-all each rank knows only its own row of the table of sizes: what it sends to each
// rank, and what it expects from each. (Several all-to-alls in one operation have a table each; a
// rank's rows of them count as one long row.) Every size is hashed with its sender and receiver. A
// rank adds the hashes of what it sends, and subtracts the hashes of what it expects. If both ends
// of every message agree, the sum over all ranks is 0. The rounds add up two such sums, which costs
// 16 bytes more per message: one over the ranks heard of in each round, and one over as many of
// them as the lower binary digits of P say, so that each rank counts once. If the sum is not 0, the
// rounds of the explanation bring the rows together, and every rank finds the same pair.
//
// A call says which autograd node's backward it is in, or that it is in none, where its rank knows
// that: traced graphs do not. The numbers that are told are compared in the same rounds, with each
// other alone: what is known is the lowest rank that tells one, its number, and the lowest rank
// that tells another.
//
// A rank whose own arguments are wrong takes part with kHasProblem set and its text: that counts as
// a disagreement, with itself alone. So a local error is everybody's error.
//
// Pure: the executor sends and receives. No errors; malformed bytes count as a disagreement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "parallel/base/digest.h"
#include "parallel/base/dtype.h"
#include "parallel/comm/interface/operation_kind.h"
#include "parallel/comm/ucx/engine/values/failure.h"

namespace meshrun::ucx {

using meshrun::OperationKind;

enum SignatureFlag : uint8_t {
  kRequiresGrad = 1,
  kHasProblem = 2,
};

// What must be equal on all ranks, in 40 bytes. On the wire as it stands (little-endian hosts).
struct Signature {
  uint64_t sequence = 0;
  // digest_of() everything else that must agree: sizes of all ranks' pieces, dim, root, reduction,
  // accumulation, kAlgorithmVersion and what the algorithms know of the group's hosts.
  uint64_t digest = 0;
  // Bytes of what all ranks agree on: the tensor, or all pieces together.
  int64_t bytes = 0;
  OperationKind kind = OperationKind::kBarrier;
  DType dtype = DType::kUInt8;
  uint8_t ndim = 0;
  uint8_t flags = 0;
  int32_t root = -1;
  // The autograd node's (comm/interface/node_number.h); 0: not told. Compared by itself: on the
  // wire, what is known of all ranks' numbers is in its place.
  uint64_t node = 0;

  // kHasProblem never agrees, not even with itself.
  bool agrees_with(const Signature& other) const;
};
static_assert(sizeof(Signature) == 40);

// This rank's row of the table of an all-to-all. Absent: the ranks' sizes are all in the digest.
struct PieceSizes {
  // By rank: along the dimension that is cut there. Several all-to-alls in one operation follow
  // each other, as many on all ranks.
  absl::InlinedVector<int64_t, 4> sent, expected;
  // Elements of a slice of extent 1, on either side.
  int64_t sent_slice = 0, expected_slice = 0;
  // What the sentence calls it, if not as its operation; static, and equal on all ranks.
  const char* call = nullptr;
};

// What a rank knows of the nodes that ranks tell.
class NodeKnowledge {
 public:
  NodeKnowledge() = default;
  // `node` 0, and a rank that does not fit: nothing is known.
  NodeKnowledge(int rank, uint64_t node);

  // The lowest rank that tells one, and the lowest that tells another; -1: none.
  int32_t reference() const { return static_cast<int32_t>(packed_ >> kRankBits & kRankMask) - 1; }
  int32_t other() const { return static_cast<int32_t>(packed_ & kRankMask) - 1; }
  bool agrees() const { return other() < 0; }

  static NodeKnowledge join(NodeKnowledge a, NodeKnowledge b);

 private:
  static constexpr int kRankBits = 20;
  static constexpr uint64_t kRankMask = (uint64_t{1} << kRankBits) - 1;
  uint64_t digest() const { return packed_ >> 2 * kRankBits; }

  uint64_t packed_ = 0;  // 24 bits of a digest, both ranks + 1
};

// What a rank knows of the group's signatures.
struct Knowledge {
  int32_t reference = -1;  // the lowest rank heard of
  Signature signature;
  int32_t other = -1;  // the lowest rank that disagrees with it, or has a problem; -1: none
  NodeKnowledge node = {};

  bool agrees() const { return other < 0 && node.agrees(); }
  // Two ranks that disagree: those of the signatures first.
  int32_t named_reference() const { return other < 0 ? node.reference() : reference; }
  int32_t named_other() const { return other < 0 ? node.other() : other; }
};
Knowledge join(const Knowledge& a, const Knowledge& b);

class HeaderCheck {
 public:
  static constexpr size_t kMaxText = 400;
  // Without sums of sizes, and with them. What a header carries follows kPlainBytes.
  static constexpr size_t kPlainBytes = sizeof(Signature) + sizeof(int32_t);
  static constexpr size_t kMessageBytes = kPlainBytes + 2 * sizeof(uint64_t);
  static constexpr size_t kExplanationBytes = 8 + 2 * kMaxText;
  // Rows of more ranks, or as many numbers of several all-to-alls, are not brought together: the
  // sentence then names no pair.
  static constexpr int kMaxRows = 128;

  // `sizes`: this rank's row, where there is a table; outlives this.
  HeaderCheck(int rank, int size, const Signature& own, const PieceSizes* sizes = nullptr);

  // Rounds of the phase under way. In round k: send message() to send_to(k), give what comes from
  // receive_from(k) to receive(). One round after the other.
  int rounds() const { return explaining_ && tells_rows() && !rows_fit() ? 0 : rounds_; }
  int send_to(int round) const { return (rank_ + (1 << round)) % size_; }
  int receive_from(int round) const { return ((rank_ - (1 << round)) % size_ + size_) % size_; }
  // Writes what this rank says in the round under way; returns its length. `out` has room for
  // kMessageBytes, while explaining for explanation_bytes().
  size_t message(std::span<std::byte> out) const;
  // `payload` bytes follow the header if the sender agrees and has heard of no rank that disagrees
  // (piggyback.h). False: the header is of an operation that this rank has left behind (a verdict
  // skipped it); post the receive again.
  bool receive(std::span<const std::byte> message, size_t payload = 0);

  // Whether nobody heard of so far means anything else.
  bool agrees_so_far() const { return knowledge_.agrees(); }
  // After the last round. True: all agree. Else the explanation follows: begin_explaining() with
  // this rank's text, the rounds again, then failure().
  bool agree() const { return knowledge_.agrees() && sum_of_all() == 0; }
  // Whether `text` is wanted of this rank.
  bool is_named() const {
    return rank_ == knowledge_.named_reference() || rank_ == knowledge_.named_other();
  }
  // `text` is this rank's side of the sentence ("all_gather_v of float32 [3, 4], sizes [3, 2, 3]"),
  // or its problem; cut at kMaxText.
  void begin_explaining(std::string_view text);
  size_t explanation_bytes() const;
  Failure failure(std::string_view group_name) const;

 private:
  struct Side {
    bool known = false;
    uint8_t flags = 0;
    OperationKind kind = OperationKind::kBarrier;
    std::string text;
  };
  bool receive_explanation(std::span<const std::byte> message);

  // Signatures agree and the sizes do not.
  bool tells_rows() const { return sizes_ != nullptr && knowledge_.agrees(); }
  // Numbers of a row, where there is one: whether it is known, the slices' elements, the sizes of
  // both sides.
  size_t row_numbers() const { return 3 + 2 * sizes_->sent.size(); }
  bool rows_fit() const {
    constexpr size_t kMaxNumbers = kMaxRows * (3 + 2 * kMaxRows);
    return static_cast<size_t>(size_) * row_numbers() <= kMaxNumbers;
  }
  uint64_t own_sum() const;
  uint64_t sum_of_all() const;
  Failure failure_of_sizes(std::string_view group_name) const;

  const int rank_;
  const int size_;
  const int rounds_;
  const Signature own_;
  int round_ = 0;
  Knowledge knowledge_;
  const PieceSizes* const sizes_;
  uint64_t window_ = 0;  // over the 2^round_ ranks up to this one
  uint64_t tail_ = 0;    // over size_ mod 2^round_ ranks up to this one
  bool explaining_ = false;
  Side reference_, other_;
  std::vector<int64_t> rows_;  // of all ranks, while the rows are told
};

}  // namespace meshrun::ucx
