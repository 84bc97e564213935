#include "parallel/comm/ucx/engine/protocol/header_check.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/size_table.h"

namespace meshrun::ucx {
namespace {

static_assert(std::endian::native == std::endian::little, "signatures travel as they stand");
static_assert(std::is_trivially_copyable_v<Signature>);
static_assert(std::is_trivially_copyable_v<NodeKnowledge>);
static_assert(sizeof(NodeKnowledge) == sizeof(Signature::node));

int rounds_of(int size) { return std::bit_width(static_cast<unsigned>(size - 1)); }

int32_t lower(int32_t a, int32_t b) {
  if (a < 0 || b < 0) return std::max(a, b);
  return std::min(a, b);
}

// Hash of one message of one table. Messages of nothing count too: a rank that expects one would
// wait for it.
uint64_t hash_of(size_t table, int sender, int receiver, int64_t elements) {
  return Digest().add(static_cast<int64_t>(table)).add(sender).add(receiver).add(elements).value();
}

// On the wire in front of the two texts.
struct ExplanationHead {
  uint8_t reference_known, other_known, other_flags, other_kind;
  uint16_t reference_bytes, other_bytes;
};
static_assert(sizeof(ExplanationHead) + 2 * HeaderCheck::kMaxText ==
              HeaderCheck::kExplanationBytes);

constexpr std::string_view kOfOtherNodes =
    " They are not of one call's backward pass: a rank whose loss does not use a result calls "
    "tie(), and an input wants a gradient on all ranks or on none.";

}  // namespace

NodeKnowledge::NodeKnowledge(int rank, uint64_t node) {
  if (node == 0 || static_cast<uint64_t>(rank) + 1 > kRankMask) return;
  const uint64_t digest = Digest().add(static_cast<int64_t>(node)).value() >> 2 * kRankBits;
  packed_ = digest << 2 * kRankBits | (static_cast<uint64_t>(rank) + 1) << kRankBits;
}

NodeKnowledge NodeKnowledge::join(NodeKnowledge a, NodeKnowledge b) {
  if (a.reference() < 0) return b;
  if (b.reference() < 0) return a;
  if (b.reference() < a.reference()) std::swap(a, b);
  const bool alike = a.reference() == b.reference() || a.digest() == b.digest();
  const int32_t other = lower(a.other(), alike ? b.other() : b.reference());
  a.packed_ = (a.packed_ & ~kRankMask) | static_cast<uint64_t>(other + 1);
  return a;
}

bool Signature::agrees_with(const Signature& other) const {
  return (flags & kHasProblem) == 0 && std::memcmp(this, &other, sizeof(*this)) == 0;
}

Knowledge join(const Knowledge& a, const Knowledge& b) {
  if (a.reference < 0) return b;
  if (b.reference < 0) return a;
  const bool in_order = a.reference <= b.reference;
  Knowledge joined = in_order ? a : b;
  const Knowledge& above = in_order ? b : a;
  const bool alike =
      above.reference == joined.reference || joined.signature.agrees_with(above.signature);
  // If the references agree, a rank that disagrees with the upper one disagrees with the lower one
  // too. Otherwise the upper reference itself does.
  joined.other = lower(joined.other, alike ? above.other : above.reference);
  joined.node = NodeKnowledge::join(a.node, b.node);
  return joined;
}

HeaderCheck::HeaderCheck(int rank, int size, const Signature& own, const PieceSizes* sizes)
    : rank_(rank), size_(size), rounds_(rounds_of(size)), own_(own), sizes_(sizes) {
  if (sizes_ != nullptr) window_ = own_sum();
  knowledge_.reference = rank;
  knowledge_.signature = own;
  knowledge_.signature.node = 0;
  knowledge_.node = NodeKnowledge(rank, own.node);
  if (own.flags & kHasProblem) knowledge_.other = rank;
}

uint64_t HeaderCheck::own_sum() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < sizes_->sent.size(); ++i) {
    const size_t table = i / static_cast<size_t>(size_);
    const int peer = static_cast<int>(i % static_cast<size_t>(size_));
    if (peer == rank_) continue;
    sum += hash_of(table, rank_, peer, sizes_->sent[i] * sizes_->sent_slice);
    sum -= hash_of(table, peer, rank_, sizes_->expected[i] * sizes_->expected_slice);
  }
  return sum;
}

// A power of two is the last window.
uint64_t HeaderCheck::sum_of_all() const {
  return std::has_single_bit(static_cast<unsigned>(size_)) ? window_ : tail_;
}

size_t HeaderCheck::message(std::span<std::byte> out) const {
  if (!explaining_) {
    Signature said = knowledge_.signature;
    said.node = std::bit_cast<uint64_t>(knowledge_.node);
    std::memcpy(out.data(), &said, sizeof(Signature));
    std::memcpy(out.data() + sizeof(Signature), &knowledge_.other, sizeof(int32_t));
    if (sizes_ == nullptr) return kPlainBytes;
    std::memcpy(out.data() + kPlainBytes, &window_, sizeof(window_));
    std::memcpy(out.data() + kPlainBytes + sizeof(window_), &tail_, sizeof(tail_));
    return kMessageBytes;
  }
  if (tells_rows()) {
    std::memcpy(out.data(), rows_.data(), explanation_bytes());
    return explanation_bytes();
  }
  const ExplanationHead head{reference_.known,
                             other_.known,
                             other_.flags,
                             static_cast<uint8_t>(other_.kind),
                             static_cast<uint16_t>(reference_.text.size()),
                             static_cast<uint16_t>(other_.text.size())};
  std::memcpy(out.data(), &head, sizeof(head));
  std::memcpy(out.data() + sizeof(head), reference_.text.data(), reference_.text.size());
  std::memcpy(out.data() + sizeof(head) + reference_.text.size(), other_.text.data(),
              other_.text.size());
  return sizeof(head) + reference_.text.size() + other_.text.size();
}

bool HeaderCheck::receive(std::span<const std::byte> message, size_t payload) {
  if (explaining_) return receive_explanation(message);
  const int sender = receive_from(round_);
  Knowledge heard;
  // In round k a rank knows of itself and the 2^k - 1 ranks below it, so what it says needs no
  // number of its lowest; past rank 0 that is rank 0.
  heard.reference = std::max(0, sender - ((1 << round_) - 1));
  if (message.size() >= kPlainBytes) {
    std::memcpy(&heard.signature, message.data(), sizeof(Signature));
    heard.node = std::bit_cast<NodeKnowledge>(heard.signature.node);
    heard.signature.node = 0;
    std::memcpy(&heard.other, message.data() + sizeof(Signature), sizeof(int32_t));
    if (heard.signature.sequence < own_.sequence) return false;
    if (heard.other < -1 || heard.other >= size_) heard.other = sender;
    if (std::max(heard.node.reference(), heard.node.other()) >= size_) heard.other = sender;
    // A rank that disagrees may carry another length.
    const bool means_the_same =
        agrees_so_far() && heard.agrees() && knowledge_.signature.agrees_with(heard.signature);
    const size_t follows = sizes_ != nullptr ? kMessageBytes - kPlainBytes : payload;
    if (means_the_same && message.size() - kPlainBytes != follows) heard.other = sender;
  } else {
    heard.signature = knowledge_.signature;
    heard.other = sender;
  }
  knowledge_ = join(knowledge_, heard);
  // Ranks that call the same thing both have sums.
  if (sizes_ != nullptr && message.size() == kMessageBytes) {
    uint64_t window = 0, tail = 0;
    std::memcpy(&window, message.data() + kPlainBytes, sizeof(window));
    std::memcpy(&tail, message.data() + kPlainBytes + sizeof(window), sizeof(tail));
    if (size_ >> round_ & 1) tail_ = window_ + tail;
    window_ += window;
  }
  ++round_;
  return true;
}

size_t HeaderCheck::explanation_bytes() const {
  return tells_rows() ? static_cast<size_t>(size_) * row_numbers() * sizeof(int64_t)
                      : kExplanationBytes;
}

void HeaderCheck::begin_explaining(std::string_view text) {
  explaining_ = true;
  round_ = 0;
  if (tells_rows()) {
    if (!rows_fit()) return;
    rows_.resize(static_cast<size_t>(size_) * row_numbers());
    auto own = rows_.begin() + rank_ * static_cast<int64_t>(row_numbers());
    *own++ = 1;
    *own++ = sizes_->sent_slice;
    *own++ = sizes_->expected_slice;
    own = std::copy(sizes_->sent.begin(), sizes_->sent.end(), own);
    std::copy(sizes_->expected.begin(), sizes_->expected.end(), own);
    return;
  }
  const Side mine{true, own_.flags, own_.kind, std::string(text.substr(0, kMaxText))};
  if (rank_ == knowledge_.named_reference()) reference_ = mine;
  if (rank_ == knowledge_.named_other()) other_ = mine;
}

bool HeaderCheck::receive_explanation(std::span<const std::byte> message) {
  ++round_;
  if (tells_rows()) {
    if (message.size() != explanation_bytes()) return true;
    std::vector<int64_t> heard(rows_.size());
    std::memcpy(heard.data(), message.data(), message.size());
    for (size_t begin = 0; begin < heard.size(); begin += row_numbers()) {
      if (heard[begin] == 1)
        std::copy_n(heard.begin() + begin, row_numbers(), rows_.begin() + begin);
    }
    return true;
  }
  ExplanationHead head;
  if (message.size() < sizeof(head)) return true;
  std::memcpy(&head, message.data(), sizeof(head));
  if (message.size() != sizeof(head) + head.reference_bytes + head.other_bytes) return true;
  const char* texts = reinterpret_cast<const char*>(message.data()) + sizeof(head);
  if (head.reference_known && !reference_.known) {
    reference_ = {true, 0, OperationKind::kBarrier, std::string(texts, head.reference_bytes)};
  }
  if (head.other_known && !other_.known) {
    other_ = {true, head.other_flags, static_cast<OperationKind>(head.other_kind),
              std::string(texts + head.reference_bytes, head.other_bytes)};
  }
  return true;
}

// Failure of the first table that has a wrong pair. The same on all ranks.
Failure HeaderCheck::failure_of_sizes(std::string_view group_name) const {
  Failure failure;
  failure.group_survives = true;
  failure.kind = FailureKind::kMismatch;
  std::string pair = "some rank sends another size than its receiver expects";
  const auto size = static_cast<size_t>(size_);
  const size_t tables = sizes_->sent.size() / size;
  for (size_t table = 0; table < tables && !rows_.empty() && failure.ranks.empty(); ++table) {
    std::vector<SizeRow> rows;
    for (size_t rank = 0; rank < size; ++rank) {
      const int64_t* const numbers = rows_.data() + rank * row_numbers();
      const int64_t* const sent = numbers + 3 + table * size;
      rows.push_back({.sent = {sent, size},
                      .expected = {sent + sizes_->sent.size(), size},
                      .sent_slice = numbers[1],
                      .expected_slice = numbers[2],
                      .is_known = numbers[0] == 1});
    }
    const std::optional<SizeDifference> found = first_difference(rows);
    if (!found) continue;
    failure.ranks = {found->sender, found->receiver};
    pair = tables > 1 ? fmt::format("in all-to-all {} of {}, ", table + 1, tables) : "";
    pair += found->words;
  }
  failure.message = fmt::format(
      "Ranks disagree on the sizes of {} number {} of group \"{}\": {}. No tensor was written, and "
      "the group can still be used.",
      sizes_->call != nullptr ? sizes_->call : name_of(own_.kind), own_.sequence, group_name, pair);
  return failure;
}

Failure HeaderCheck::failure(std::string_view group_name) const {
  if (tells_rows()) return failure_of_sizes(group_name);
  Failure failure;
  failure.group_survives = true;
  const uint64_t sequence = own_.sequence;
  if (other_.flags & kHasProblem) {
    failure.kind = FailureKind::kInvalidArgument;
    failure.ranks = {knowledge_.named_other()};
    failure.message =
        fmt::format("{} number {} of group \"{}\" has wrong arguments on rank {}: {}",
                    // It tells of a problem, and of nothing that anybody has called.
                    other_.kind == OperationKind::kCompare ? "operation" : name_of(other_.kind),
                    sequence, group_name, knowledge_.named_other(), other_.text);
  } else {
    failure.kind = FailureKind::kMismatch;
    failure.ranks = {knowledge_.named_reference(), knowledge_.named_other()};
    failure.message = fmt::format(
        "Ranks disagree on operation number {} of group \"{}\": rank {} called {}; rank {} called "
        "{}.{} No tensor was written, and the group can still be used.",
        sequence, group_name, knowledge_.named_reference(), reference_.text,
        knowledge_.named_other(), other_.text, knowledge_.other < 0 ? kOfOtherNodes : "");
  }
  return failure;
}

}  // namespace meshrun::ucx
