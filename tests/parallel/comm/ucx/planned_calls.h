// All ranks' schedules carried out in one process: in random order, over memory that is poisoned,
// with sends that end early (buffered) or late (read when the receiver is there, or after). And
// each operation as a case: its ranks' pieces, and what a plain loop makes of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "tests/parallel/support/reduction_oracle.h"

namespace meshrun::ucx::planned {

inline constexpr std::byte kGap{0xc3};

// A piece of a caller's memory, with gaps between its rows and random bytes in them.
struct Buffer {
  Layout layout;
  std::vector<std::byte> bytes;

  Buffer(const Layout& l, std::mt19937& random) : layout(l) {
    const int64_t rows = layout.bytes() > 0 ? layout.rows : 0;
    const int64_t pitch = layout.rows > 1 ? layout.pitch : layout.row_bytes;
    bytes.assign(static_cast<size_t>(rows * pitch), kGap);
    std::vector<std::byte> content(static_cast<size_t>(layout.bytes()));
    for (std::byte& b : content) b = static_cast<std::byte>(random());
    write(content);
  }
  StridedSpan span() { return {bytes.empty() ? nullptr : bytes.data(), layout}; }
  void write(const std::vector<std::byte>& content) { unpack(span(), 0, content); }
  std::vector<std::byte> read() {
    std::vector<std::byte> content(static_cast<size_t>(layout.bytes()));
    pack(span(), 0, content);
    return content;
  }
  bool gaps_are_untouched() const {
    for (int64_t row = 0; layout.rows > 1 && row < layout.rows && !bytes.empty(); ++row) {
      for (int64_t i = layout.row_bytes; i < layout.pitch; ++i) {
        if (bytes[static_cast<size_t>(row * layout.pitch + i)] != kGap) return false;
      }
    }
    return true;
  }
};
using BufferPtr = std::shared_ptr<Buffer>;

struct Rank {
  Schedule schedule;
  std::vector<BufferPtr> inputs, outputs;
};

class Simulation {
 public:
  Simulation(std::vector<Rank> ranks, uint32_t seed) : random_(seed) {
    buffered_percent_ = std::array{0u, 50u, 100u}[random_() % 3];
    for (Rank& rank : ranks) {
      State state{std::move(rank), {}, {}, {}, {}};
      state.scratch.resize(static_cast<size_t>(state.rank.schedule.scratch_bytes));
      for (std::byte& b : state.scratch) b = static_cast<std::byte>(random_());
      const auto& steps = state.rank.schedule.steps;
      for (StepId id = 0; id < steps.size(); ++id) {
        state.waits_for.push_back(steps[id].dependencies);
        if (steps[id].dependencies == 0) state.ready.push_back(id);
      }
      left_ += steps.size();
      ranks_.push_back(std::move(state));
    }
    disseminate();
  }

  // Empty, or what is wrong.
  std::string run() {
    while (left_ > 0 && problem_.empty()) {
      std::vector<int> able;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (!ranks_[r].ready.empty()) able.push_back(static_cast<int>(r));
      }
      const size_t options = able.size() + arriving_.size() + unacknowledged_.size();
      if (options == 0) return "deadlock, " + std::to_string(left_) + " steps left";
      size_t choice = random_() % options;
      if (choice < able.size()) {
        const int rank = able[choice];
        begin(rank, taken(ranks_[static_cast<size_t>(rank)].ready));
      } else if (choice -= able.size(); choice < arriving_.size()) {
        arrive(taken(arriving_));
      } else {
        const auto [rank, step] = taken(unacknowledged_);
        end(rank, step);
      }
    }
    if (problem_.empty() && !messages_.empty()) return "a message that nobody received";
    return problem_;
  }

  int64_t messages() const { return sent_; }
  int64_t most_in_flight() const { return most_in_flight_; }

 private:
  using Key = std::tuple<int, int, uint32_t>;  // from, to, number
  struct Access {
    StepId step;
    bool writes;
    std::vector<std::pair<const std::byte*, int64_t>> runs;
  };
  struct State {
    Rank rank;
    std::vector<std::byte> scratch;
    std::vector<uint32_t> waits_for;
    std::vector<StepId> ready;
    std::vector<Access> under_way;
  };
  struct Message {
    std::optional<StepId> send, receive;
    bool buffered = false;
    std::vector<std::byte> content;
  };

  // What the headers carry, round by round: all ranks send what they had before the round.
  void disseminate() {
    const auto size = static_cast<int>(ranks_.size());
    if (ranks_[0].rank.schedule.piggyback.slots.empty()) return;
    for (int r = 0; r < size; ++r) {
      State& state = ranks_[static_cast<size_t>(r)];
      const Piggyback& piggyback = state.rank.schedule.piggyback;
      ASSERT_EQ(piggyback.slots, ranks_[0].rank.schedule.piggyback.slots);
      int64_t at = piggyback.slots[static_cast<size_t>(r)];
      for (const Region& region : piggyback.contribution) {
        pack(memory(r, region), region.offset,
             std::span(state.scratch)
                 .subspan(static_cast<size_t>(at), static_cast<size_t>(region.bytes)));
        at += region.bytes;
      }
      ASSERT_EQ(at, piggyback.slots[static_cast<size_t>(r) + 1]);
    }
    for (int round = 0; 1 << round < size; ++round) {
      std::vector<std::vector<std::byte>> before;
      for (const State& state : ranks_) before.push_back(state.scratch);
      for (int r = 0; r < size; ++r) {
        const int sender = (r - (1 << round) + size) % size;
        State& state = ranks_[static_cast<size_t>(r)];
        const Piggyback& piggyback = state.rank.schedule.piggyback;
        ASSERT_LE(piggyback.bytes_sent_by(sender, round), kMostPayload);
        for (const Piggyback::Range& range : piggyback.sent_by(sender, round)) {
          std::copy_n(before[static_cast<size_t>(sender)].begin() + range.offset, range.bytes,
                      state.scratch.begin() + range.offset);
        }
      }
    }
  }

  template <class T>
  T taken(std::vector<T>& from) {
    std::swap(from[random_() % from.size()], from.back());
    T value = from.back();
    from.pop_back();
    return value;
  }
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }
  const Step& step_of(int rank, StepId step) const {
    return ranks_[static_cast<size_t>(rank)].rank.schedule.steps[step];
  }

  StridedSpan memory(int rank, const Region& region) {
    State& state = ranks_[static_cast<size_t>(rank)];
    if (region.space == Space::kScratch) {
      return contiguous(state.scratch.data(), static_cast<int64_t>(state.scratch.size()));
    }
    auto& pieces = region.space == Space::kInput ? state.rank.inputs : state.rank.outputs;
    if (region.piece < 0 || region.piece >= static_cast<int>(pieces.size())) {
      fail("no such piece");
      return {};
    }
    return pieces[static_cast<size_t>(region.piece)]->span();
  }

  // Notes the access and complains of one under way that it must not meet.
  void use(int rank, StepId step, const Region& region, bool writes, bool in_one_run) {
    if (region.bytes == 0) return;
    const StridedSpan span = memory(rank, region);
    if (region.offset < 0 || region.offset + region.bytes > span.layout.bytes()) {
      return fail("a region beyond its piece");
    }
    if (in_one_run && !span.layout.is_contiguous(region.offset, region.bytes)) {
      return fail("a message or sum in several runs");
    }
    Access access{step, writes, {}};
    for (int64_t at = region.offset; at < region.offset + region.bytes;) {
      int64_t length = region.offset + region.bytes - at;
      if (!span.layout.is_contiguous()) {
        length = std::min(length, span.layout.row_bytes - at % span.layout.row_bytes);
      }
      access.runs.push_back({span.data + span.layout.position(at), length});
      at += length;
    }
    auto& under_way = ranks_[static_cast<size_t>(rank)].under_way;
    for (const Access& other : under_way) {
      if (other.step == step || !(other.writes || writes)) continue;
      for (const auto& [a, a_length] : access.runs) {
        for (const auto& [b, b_length] : other.runs) {
          if (a < b + b_length && b < a + a_length) {
            return fail("step " + std::to_string(step) + " of rank " + std::to_string(rank) +
                        " touches what step " + std::to_string(other.step) + " uses");
          }
        }
      }
    }
    under_way.push_back(std::move(access));
  }

  void begin(int rank, StepId id) {
    const Step& step = step_of(rank, id);
    switch (step.kind) {
      case StepKind::kSend: {
        use(rank, id, step.from, false, step.staging.bytes == 0);
        use(rank, id, step.staging, true, true);
        if (!problem_.empty()) return;
        stage(rank, step.from, step.staging);
        const Key key{rank, step.peer, step.message};
        Message& message = messages_[key];
        message.send = id;
        message.buffered = random_() % 100 < buffered_percent_;
        ++sent_;
        most_in_flight_ = std::max(most_in_flight_, ++in_flight_[{rank, step.peer}]);
        if (message.buffered) {
          message.content = bytes_at(rank, sent(step));
          unacknowledged_.push_back({rank, id});
        }
        if (message.receive) arriving_.push_back(key);
        return;
      }
      case StepKind::kReceive: {
        use(rank, id, step.to, true, step.staging.bytes == 0);
        use(rank, id, step.staging, true, true);
        const Key key{step.peer, rank, step.message};
        Message& message = messages_[key];
        message.receive = id;
        if (message.send) arriving_.push_back(key);
        return;
      }
      case StepKind::kCopy:
        use(rank, id, step.from, false, false);
        use(rank, id, step.to, true, false);
        if (!problem_.empty()) return;
        if (step.from.bytes != step.to.bytes) return fail("a copy of other bytes than it writes");
        copy(memory(rank, step.from), step.from.offset, memory(rank, step.to), step.to.offset,
             step.to.bytes);
        return end(rank, id);
      case StepKind::kReduce: {
        const Schedule& schedule = ranks_[static_cast<size_t>(rank)].rank.schedule;
        const Reduction& reduction = schedule.reductions[step.reduction];
        const int64_t count = step.to.bytes / element_size(reduction.target());
        std::vector<const std::byte*> sources;
        for (uint32_t k = 0; k < step.source_count; ++k) {
          const Region& source = schedule.sources[step.first_source + k];
          use(rank, id, source, false, true);
          if (source.bytes != count * element_size(reduction.source())) {
            fail("a source of other elements than the sum");
          }
          sources.push_back(pointer(rank, source));
        }
        use(rank, id, step.to, true, true);
        if (!problem_.empty()) return;
        reduce(sources, pointer(rank, step.to), count, reduction);
        return end(rank, id);
      }
    }
  }

  std::byte* pointer(int rank, const Region& region) {
    const StridedSpan span = memory(rank, region);
    return span.data + span.layout.position(region.offset);
  }
  // Between a piece and the memory that a message goes through, if there is one.
  void stage(int rank, const Region& from, const Region& to) {
    if (from.bytes != to.bytes) return;
    copy(memory(rank, from), from.offset, memory(rank, to), to.offset, to.bytes);
  }
  static const Region& sent(const Step& step) {
    return step.staging.bytes > 0 ? step.staging : step.from;
  }
  std::vector<std::byte> bytes_at(int rank, const Region& region) {
    if (region.bytes == 0) return {};
    const std::byte* data = pointer(rank, region);
    return {data, data + region.bytes};
  }

  void arrive(const Key& key) {
    const auto [from, to, number] = key;
    const Message message = std::move(messages_.extract(key).mapped());
    const Region& source = sent(step_of(from, *message.send));
    const Step& receive = step_of(to, *message.receive);
    if (source.bytes != receive.to.bytes) return fail("a message of another length than expected");
    const auto content = message.buffered ? message.content : bytes_at(from, source);
    const Region& target = receive.staging.bytes > 0 ? receive.staging : receive.to;
    if (!content.empty()) std::memcpy(pointer(to, target), content.data(), content.size());
    stage(to, receive.staging, receive.to);
    end(to, *message.receive);
    if (!message.buffered) unacknowledged_.push_back({from, *message.send});
  }

  void end(int rank, StepId id) {
    State& state = ranks_[static_cast<size_t>(rank)];
    std::erase_if(state.under_way, [&](const Access& access) { return access.step == id; });
    const Schedule& schedule = state.rank.schedule;
    const Step& step = schedule.steps[id];
    if (step.kind == StepKind::kSend) --in_flight_[{rank, step.peer}];
    for (uint32_t k = 0; k < step.successor_count; ++k) {
      const StepId next = schedule.successors[step.first_successor + k];
      if (--state.waits_for[next] == 0) state.ready.push_back(next);
    }
    --left_;
  }

  std::mt19937 random_;
  uint32_t buffered_percent_ = 0;
  std::vector<State> ranks_;
  size_t left_ = 0;
  std::map<Key, Message> messages_;
  std::vector<Key> arriving_;
  std::vector<std::pair<int, StepId>> unacknowledged_;
  std::map<std::pair<int, int>, int64_t> in_flight_;
  int64_t sent_ = 0, most_in_flight_ = 0;
  std::string problem_;
};

// How pieces lie at the two ends.
enum class Shape {
  kDim0,
  kRowsAtReceiver,
  kRowsAtSender,
  kRowsAtBoth,
  kUnknownToTheOther,
  kOneMessage,  // of rows that the other end does not have
};
inline constexpr Shape kShapes[] = {
    Shape::kDim0,       Shape::kRowsAtReceiver,    Shape::kRowsAtSender,
    Shape::kRowsAtBoth, Shape::kUnknownToTheOther, Shape::kOneMessage};

enum class Pattern { kEven, kUneven, kSomeZero, kOneHasAll, kAllZero };
inline constexpr Pattern kPatterns[] = {Pattern::kEven, Pattern::kUneven, Pattern::kSomeZero,
                                        Pattern::kOneHasAll, Pattern::kAllZero};

// Sizes are multiples of this, and so have rows of many lengths.
inline constexpr int64_t kUnit = 48;

inline int64_t piece_bytes(Pattern pattern, int size, int a, int b = 0) {
  switch (pattern) {
    case Pattern::kEven:
      return 9 * kUnit;
    case Pattern::kUneven:
      return (1 + (a * 7 + b * 5) % 17) * kUnit;
    case Pattern::kSomeZero:
      return (a + b) % 2 == 0 ? 0 : (3 + a) * kUnit;
    case Pattern::kOneHasAll:
      return a == size / 2 ? 41 * kUnit : 0;
    case Pattern::kAllZero:
      return 0;
  }
  return 0;
}

// Everything small, so that a kilobyte goes through all that a gigabyte does.
inline Place small_place(int rank, int size, bool one_host, uint32_t seed) {
  Place place{rank, size, one_host, {}};
  place.tuning.direct_row = seed % 2 == 0 ? 40 : 1000;
  place.tuning.staged_message = seed % 3 == 0 ? 100 : 33;
  place.tuning.ring_message = 64;
  place.tuning.reduce_chunk = 20 + 4 * (seed % 23);
  place.tuning.small_broadcast = 9 * kUnit;
  place.tuning.small_all_reduce = 200;
  place.tuning.small_reduce = 100;
  place.tuning.written_by_root = 5 * kUnit;
  place.tuning.least_part = 64;
  place.tuning.in_cache = seed % 2 == 0 ? 20 * kUnit : 5 * kUnit;
  place.tuning.messages = std::array<int64_t, 4>{4, 9, 40, kMaxMessages}[seed / 3 % 4];
  return place;
}

struct Case {
  int size;
  Pattern pattern;
  Shape shape;
  bool one_host;
  uint32_t seed;
  Tuning tuning;
  bool in_place = false;
  std::shared_ptr<const Hosts> hosts = nullptr;
  bool headers_carry = false;

  Place place(int rank) const {
    return {.rank = rank,
            .size = size,
            .one_host = one_host,
            .tuning = tuning,
            .hosts = hosts.get(),
            .headers_carry = headers_carry};
  }
  // Row lengths that divide kUnit, and so every piece.
  int64_t row() const { return std::array<int64_t, 4>{12, 16, 24, 48}[seed / 2 % 4]; }

  Piece piece(int64_t bytes, bool at_sender) const {
    const Layout one{1, bytes, bytes};
    const Layout rows{bytes / row(), row(), row() + 20};
    const Layout other{bytes / 8, 8, 12};
    switch (shape) {
      case Shape::kDim0:
        return {one, bytes};
      case Shape::kRowsAtReceiver:
        return {at_sender ? one : rows, row()};
      case Shape::kRowsAtSender:
        return {at_sender ? rows : one, row()};
      case Shape::kRowsAtBoth:
        return {rows, row()};
      case Shape::kUnknownToTheOther:
        return {at_sender ? rows : other, 1};
      case Shape::kOneMessage:
        return {at_sender ? rows : other, bytes};
    }
    return {};
  }
};

struct Result {
  std::vector<int64_t> copied;
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> messages;
  int64_t most_in_flight = 0;
  // By host, from other hosts and to them.
  std::vector<int64_t> bytes_in, bytes_out;
};

class Runner {
 public:
  explicit Runner(const Case& c) : case_(c), random_(c.seed * 977 + 5) {}

  BufferPtr buffer(const Piece& piece) { return std::make_shared<Buffer>(piece.layout, random_); }

  Result run(const std::vector<Rank>& ranks) {
    Result result;
    if (case_.hosts) result.bytes_in.resize(static_cast<size_t>(case_.hosts->count()));
    result.bytes_out = result.bytes_in;
    for (const Rank& rank : ranks) {
      const int at = static_cast<int>(&rank - ranks.data());
      EXPECT_LE(rank.schedule.most_messages, case_.tuning.messages);
      result.copied.push_back(rank.schedule.copied_bytes());
      result.sent_bytes.push_back(0);
      result.messages.push_back(0);
      for (const Step& step : rank.schedule.steps) {
        if (step.kind != StepKind::kSend) continue;
        result.sent_bytes.back() += step.from.bytes;
        ++result.messages.back();
        if (!case_.hosts) continue;
        const int from = case_.hosts->host_of(at), to = case_.hosts->host_of(step.peer);
        if (from == to) continue;
        result.bytes_out[static_cast<size_t>(from)] += step.from.bytes;
        result.bytes_in[static_cast<size_t>(to)] += step.from.bytes;
      }
    }
    Simulation simulation(ranks, case_.seed);
    const std::string problem = simulation.run();
    EXPECT_EQ(problem, "");
    result.most_in_flight = simulation.most_in_flight();
    for (const Rank& rank : ranks) {
      for (const BufferPtr& output : rank.outputs) EXPECT_TRUE(output->gaps_are_untouched());
    }
    return result;
  }

 private:
  const Case case_;
  std::mt19937 random_;
};

inline Result run_barrier(const Case& c) {
  std::vector<Rank> ranks(static_cast<size_t>(c.size));
  for (int r = 0; r < c.size; ++r)
    ranks[static_cast<size_t>(r)].schedule = plan_barrier(c.place(r));
  return Runner(c).run(ranks);
}

inline Result run_broadcast(const Case& c) {
  Runner runner(c);
  const int root = static_cast<int>(c.seed) % c.size;
  const int64_t bytes = piece_bytes(c.pattern, c.size, c.size / 2) * (c.seed % 2 == 0 ? 1 : 3);
  std::vector<Rank> ranks;
  for (int r = 0; r < c.size; ++r) {
    const Piece piece = c.piece(bytes, r == root);
    Rank rank{plan_broadcast(c.place(r), piece, root), {}, {}};
    (r == root ? rank.inputs : rank.outputs).push_back(runner.buffer(piece));
    ranks.push_back(std::move(rank));
  }
  const auto expected = ranks[static_cast<size_t>(root)].inputs[0]->read();
  const Result result = runner.run(ranks);
  EXPECT_EQ(ranks[static_cast<size_t>(root)].inputs[0]->read(), expected);
  for (int r = 0; r < c.size; ++r) {
    if (r == root) continue;
    EXPECT_EQ(ranks[static_cast<size_t>(r)].outputs[0]->read(), expected) << r;
  }
  return result;
}

inline Result run_all_gather(const Case& c) {
  Runner runner(c);
  std::vector<Rank> ranks;
  std::vector<std::vector<std::byte>> expected;
  for (int r = 0; r < c.size; ++r) {
    std::vector<Piece> pieces;
    Rank rank;
    for (int s = 0; s < c.size; ++s) {
      pieces.push_back(c.piece(piece_bytes(c.pattern, c.size, s), false));
      rank.outputs.push_back(runner.buffer(pieces.back()));
    }
    const auto at = static_cast<size_t>(r);
    const Piece own = c.in_place ? pieces[at] : c.piece(piece_bytes(c.pattern, c.size, r), true);
    rank.inputs.push_back(c.in_place ? rank.outputs[at] : runner.buffer(own));
    expected.push_back(rank.inputs[0]->read());
    rank.schedule = plan_all_gather(c.place(r), own, pieces, c.in_place);
    ranks.push_back(std::move(rank));
  }
  const Result result = runner.run(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t s = 0; s < ranks.size(); ++s) {
      EXPECT_EQ(ranks[r].outputs[s]->read(), expected[s]) << "rank " << r << ", piece " << s;
    }
  }
  return result;
}

inline Result run_gather_or_scatter(const Case& c, bool gathers) {
  Runner runner(c);
  const int root = static_cast<int>(c.seed / 3) % c.size;
  std::vector<int64_t> piece_bytes;
  for (int r = 0; r < c.size; ++r)
    piece_bytes.push_back(planned::piece_bytes(c.pattern, c.size, r));
  std::vector<Rank> ranks;
  for (int r = 0; r < c.size; ++r) {
    Rank rank;
    std::vector<Piece> pieces;
    for (int s = 0; r == root && s < c.size; ++s) {
      pieces.push_back(c.piece(piece_bytes[static_cast<size_t>(s)], !gathers));
      (gathers ? rank.outputs : rank.inputs).push_back(runner.buffer(pieces.back()));
    }
    const Piece own = c.piece(piece_bytes[static_cast<size_t>(r)], gathers);
    (gathers ? rank.inputs : rank.outputs).push_back(runner.buffer(own));
    rank.schedule = gathers ? plan_gather(c.place(r), own, pieces, piece_bytes, root)
                            : plan_scatter(c.place(r), pieces, own, piece_bytes, root);
    ranks.push_back(std::move(rank));
  }
  std::vector<std::vector<std::byte>> expected;
  Rank& at_root = ranks[static_cast<size_t>(root)];
  for (size_t s = 0; s < ranks.size(); ++s) {
    expected.push_back(gathers ? ranks[s].inputs[0]->read() : at_root.inputs[s]->read());
  }
  const Result result = runner.run(ranks);
  for (size_t s = 0; s < ranks.size(); ++s) {
    EXPECT_EQ(gathers ? at_root.outputs[s]->read() : ranks[s].outputs[0]->read(), expected[s]) << s;
  }
  return result;
}

inline Result run_all_to_all(const Case& c) {
  Runner runner(c);
  std::vector<Rank> ranks;
  std::vector<std::vector<std::vector<std::byte>>> expected(static_cast<size_t>(c.size));
  for (int r = 0; r < c.size; ++r) {
    Rank rank;
    std::vector<Piece> to, from;
    for (int s = 0; s < c.size; ++s) {
      to.push_back(c.piece(piece_bytes(c.pattern, c.size, r, s), true));
      from.push_back(c.piece(piece_bytes(c.pattern, c.size, s, r), false));
      rank.inputs.push_back(runner.buffer(to.back()));
      rank.outputs.push_back(runner.buffer(from.back()));
      expected[static_cast<size_t>(r)].push_back(rank.inputs.back()->read());
    }
    rank.schedule = plan_all_to_all(c.place(r), to, from);
    ranks.push_back(std::move(rank));
  }
  const Result result = runner.run(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t s = 0; s < ranks.size(); ++s) {
      EXPECT_EQ(ranks[r].outputs[s]->read(), expected[s][r]) << "from " << s << " to " << r;
    }
  }
  return result;
}

// Floats of which each order of addition makes another sum.
inline std::vector<std::byte> random_floats(int64_t bytes, std::mt19937& random) {
  std::vector<float> values(static_cast<size_t>(bytes / 4));
  for (float& x : values) {
    x = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40) - 30);
  }
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  if (bytes > 0) std::memcpy(content.data(), values.data(), content.size());
  return content;
}

// With the brackets of two levels where the case has them.
inline Contribution sum(const Case& c, const std::vector<Contribution>& contributions) {
  return c.hosts ? sum_by_hosts(*c.hosts, contributions, DType::kFloat32)
                 : sum_in_rank_order(contributions, DType::kFloat32);
}

inline constexpr Reduction kSumOfFloats{ReductionOp::kSum, DType::kFloat32};

inline int64_t tensor_bytes(const Case& c) {
  return c.pattern == Pattern::kAllZero
             ? 0
             : piece_bytes(c.pattern, c.size, c.size / 2) - c.seed % 9 * 4;
}

inline Result run_all_reduce(const Case& c) {
  Runner runner(c);
  std::mt19937 random(c.seed);
  const int64_t bytes = std::max<int64_t>(tensor_bytes(c), 0);
  std::vector<Rank> ranks;
  std::vector<std::vector<std::byte>> contributions;
  for (int r = 0; r < c.size; ++r) {
    contributions.push_back(random_floats(bytes, random));
    const BufferPtr tensor = runner.buffer({{1, bytes, bytes}, bytes});
    tensor->write(contributions.back());
    ranks.push_back({plan_all_reduce(c.place(r), bytes / 4, kSumOfFloats), {}, {tensor}});
  }
  const Result result = runner.run(ranks);
  const auto expected = sum(c, contributions);
  for (size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(ranks[r].outputs[0]->read(), expected) << r;
  return result;
}

inline Result run_reduce(const Case& c) {
  Runner runner(c);
  std::mt19937 random(c.seed);
  const int root = static_cast<int>(c.seed) % c.size;
  const int64_t bytes = std::max<int64_t>(tensor_bytes(c), 0);
  const Piece piece{{1, bytes, bytes}, bytes};
  std::vector<Rank> ranks;
  std::vector<std::vector<std::byte>> contributions;
  for (int r = 0; r < c.size; ++r) {
    contributions.push_back(random_floats(bytes, random));
    const BufferPtr tensor = runner.buffer(piece);
    tensor->write(contributions.back());
    Rank rank{plan_reduce(c.place(r), bytes / 4, root, kSumOfFloats), {tensor}, {}};
    if (r == root) rank.outputs.push_back(c.in_place ? tensor : runner.buffer(piece));
    ranks.push_back(std::move(rank));
  }
  const Result result = runner.run(ranks);
  EXPECT_EQ(ranks[static_cast<size_t>(root)].outputs[0]->read(),
            sum_in_rank_order(contributions, DType::kFloat32));
  for (int r = 0; r < c.size; ++r) {
    if (r == root && c.in_place) continue;
    const auto at = static_cast<size_t>(r);
    EXPECT_EQ(ranks[at].inputs[0]->read(), contributions[at]) << r;
  }
  return result;
}

inline Result run_reduce_scatter(const Case& c) {
  Runner runner(c);
  std::mt19937 random(c.seed);
  std::vector<Rank> ranks;
  std::vector<std::vector<std::vector<std::byte>>> contributions(static_cast<size_t>(c.size));
  for (int r = 0; r < c.size; ++r) {
    Rank rank;
    std::vector<Piece> pieces;
    for (int s = 0; s < c.size; ++s) {
      pieces.push_back(c.piece(piece_bytes(c.pattern, c.size, s), true));
      // Floats lie at multiples of four bytes.
      if (pieces.back().layout.rows > 1) pieces.back().layout.pitch = c.row() + 20;
      rank.inputs.push_back(runner.buffer(pieces.back()));
      contributions[static_cast<size_t>(s)].push_back(
          random_floats(pieces.back().layout.bytes(), random));
      rank.inputs.back()->write(contributions[static_cast<size_t>(s)].back());
    }
    Piece own = c.piece(piece_bytes(c.pattern, c.size, r), false);
    if (c.shape == Shape::kUnknownToTheOther) own.layout.pitch = 16;
    if (c.in_place) own = pieces[static_cast<size_t>(r)];
    rank.outputs.push_back(c.in_place ? rank.inputs[static_cast<size_t>(r)] : runner.buffer(own));
    rank.schedule = plan_reduce_scatter(c.place(r), pieces, own, kSumOfFloats);
    ranks.push_back(std::move(rank));
  }
  const Result result = runner.run(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_EQ(ranks[r].outputs[0]->read(), sum(c, contributions[r])) << r;
  }
  return result;
}

struct Operation {
  const char* name;
  std::function<Result(const Case&)> run;
};
inline const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"barrier", run_barrier},
      {"broadcast", run_broadcast},
      {"all_reduce", run_all_reduce},
      {"reduce", run_reduce},
      {"all_gather", run_all_gather},
      {"gather", [](const Case& c) { return run_gather_or_scatter(c, true); }},
      {"scatter", [](const Case& c) { return run_gather_or_scatter(c, false); }},
      {"reduce_scatter", run_reduce_scatter},
      {"all_to_all", run_all_to_all},
  };
  return all;
}

}  // namespace meshrun::ucx::planned
