// All ranks' schedules carried out in one process: in random order, over memory that is poisoned,
// with sends that end early (buffered) or late (read when the receiver is there, or after).
#include "parallel/comm/ucx/engine/planning/algorithms.h"

#include <gmock/gmock.h>
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

namespace meshrun::ucx {
namespace {

constexpr std::byte kGap{0xc3};

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
        std::vector<const std::byte*> sources;
        for (uint32_t k = 0; k < step.source_count; ++k) {
          const Region& source = schedule.sources[step.first_source + k];
          use(rank, id, source, false, true);
          if (source.bytes != step.to.bytes) fail("a source of other bytes than the sum");
          sources.push_back(pointer(rank, source));
        }
        use(rank, id, step.to, true, true);
        if (!problem_.empty()) return;
        const Reduction& reduction = schedule.reductions[step.reduction];
        reduce(sources, pointer(rank, step.to), step.to.bytes / element_size(reduction.dtype),
               reduction);
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
constexpr Shape kShapes[] = {Shape::kDim0,       Shape::kRowsAtReceiver,    Shape::kRowsAtSender,
                             Shape::kRowsAtBoth, Shape::kUnknownToTheOther, Shape::kOneMessage};

enum class Pattern { kEven, kUneven, kSomeZero, kOneHasAll, kAllZero };
constexpr Pattern kPatterns[] = {Pattern::kEven, Pattern::kUneven, Pattern::kSomeZero,
                                 Pattern::kOneHasAll, Pattern::kAllZero};

// Sizes are multiples of this, and so have rows of many lengths.
constexpr int64_t kUnit = 48;

int64_t piece_bytes(Pattern pattern, int size, int a, int b = 0) {
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
Place small_place(int rank, int size, bool one_host, uint32_t seed) {
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

  Place place(int rank) const { return {rank, size, one_host, tuning}; }
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
};

class Runner {
 public:
  explicit Runner(const Case& c) : case_(c), random_(c.seed * 977 + 5) {}

  BufferPtr buffer(const Piece& piece) { return std::make_shared<Buffer>(piece.layout, random_); }

  Result run(const std::vector<Rank>& ranks) {
    Result result;
    for (const Rank& rank : ranks) {
      EXPECT_LE(rank.schedule.most_messages, case_.tuning.messages);
      result.copied.push_back(rank.schedule.copied_bytes());
      result.sent_bytes.push_back(0);
      result.messages.push_back(0);
      for (const Step& step : rank.schedule.steps) {
        if (step.kind != StepKind::kSend) continue;
        result.sent_bytes.back() += step.from.bytes;
        ++result.messages.back();
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

Result run_barrier(const Case& c) {
  std::vector<Rank> ranks(static_cast<size_t>(c.size));
  for (int r = 0; r < c.size; ++r)
    ranks[static_cast<size_t>(r)].schedule = plan_barrier(c.place(r));
  return Runner(c).run(ranks);
}

Result run_broadcast(const Case& c) {
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

Result run_all_gather(const Case& c) {
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

Result run_gather_or_scatter(const Case& c, bool gathers) {
  Runner runner(c);
  const int root = static_cast<int>(c.seed / 3) % c.size;
  std::vector<Rank> ranks;
  for (int r = 0; r < c.size; ++r) {
    Rank rank;
    std::vector<Piece> pieces;
    for (int s = 0; r == root && s < c.size; ++s) {
      pieces.push_back(c.piece(piece_bytes(c.pattern, c.size, s), !gathers));
      (gathers ? rank.outputs : rank.inputs).push_back(runner.buffer(pieces.back()));
    }
    const Piece own = c.piece(piece_bytes(c.pattern, c.size, r), gathers);
    (gathers ? rank.inputs : rank.outputs).push_back(runner.buffer(own));
    rank.schedule = gathers ? plan_gather(c.place(r), own, pieces, root)
                            : plan_scatter(c.place(r), pieces, own, root);
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

Result run_all_to_all(const Case& c) {
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
std::vector<std::byte> random_floats(int64_t bytes, std::mt19937& random) {
  std::vector<float> values(static_cast<size_t>(bytes / 4));
  for (float& x : values) {
    x = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40) - 30);
  }
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  if (bytes > 0) std::memcpy(content.data(), values.data(), content.size());
  return content;
}

std::vector<std::byte> sum(const std::vector<std::vector<std::byte>>& contributions) {
  std::vector<float> total(contributions[0].size() / 4), x(total.size());
  for (size_t r = 0; r < contributions.size() && !total.empty(); ++r) {
    std::memcpy(x.data(), contributions[r].data(), contributions[r].size());
    for (size_t i = 0; i < x.size(); ++i) total[i] = r == 0 ? x[i] : total[i] + x[i];
  }
  std::vector<std::byte> content(contributions[0].size());
  if (!content.empty()) std::memcpy(content.data(), total.data(), content.size());
  return content;
}

constexpr Reduction kSumOfFloats{ReductionOp::kSum, DType::kFloat32};

int64_t tensor_bytes(const Case& c) {
  return c.pattern == Pattern::kAllZero
             ? 0
             : piece_bytes(c.pattern, c.size, c.size / 2) - c.seed % 9 * 4;
}

Result run_all_reduce(const Case& c) {
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
  const auto expected = sum(contributions);
  for (size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(ranks[r].outputs[0]->read(), expected) << r;
  return result;
}

Result run_reduce(const Case& c) {
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
  EXPECT_EQ(ranks[static_cast<size_t>(root)].outputs[0]->read(), sum(contributions));
  for (int r = 0; r < c.size; ++r) {
    if (r == root && c.in_place) continue;
    const auto at = static_cast<size_t>(r);
    EXPECT_EQ(ranks[at].inputs[0]->read(), contributions[at]) << r;
  }
  return result;
}

Result run_reduce_scatter(const Case& c) {
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
    EXPECT_EQ(ranks[r].outputs[0]->read(), sum(contributions[r])) << r;
  }
  return result;
}

struct Operation {
  const char* name;
  std::function<Result(const Case&)> run;
};
const std::vector<Operation>& operations() {
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

class AlgorithmsTest : public testing::Test {};
class AlgorithmsOfSizeTest : public testing::TestWithParam<int> {};

TEST_P(AlgorithmsOfSizeTest, EveryPlanMatchesTheOracle) {
  const int size = GetParam();
  // Beyond kWindow peers a lane serves several.
  const bool few = size > 9;
  const uint32_t seeds = few ? 1 : 3;
  uint32_t seed = static_cast<uint32_t>(size);
  for (const Operation& operation : operations()) {
    for (Pattern pattern : kPatterns) {
      if (few && pattern != Pattern::kUneven) continue;
      for (Shape shape : kShapes) {
        for (bool one_host : {true, false}) {
          for (uint32_t repeat = 0; repeat < seeds; ++repeat) {
            ++seed;
            Case c{size,     pattern, shape,
                   one_host, seed,    small_place(0, size, one_host, seed).tuning};
            c.in_place = seed % 4 == 0;
            SCOPED_TRACE(testing::Message()
                         << operation.name << ", pattern " << static_cast<int>(pattern)
                         << ", shape " << static_cast<int>(shape) << ", one host " << one_host
                         << ", seed " << seed << ", in place " << c.in_place);
            const Result result = operation.run(c);
            // All-reduce and reduce have a window for each of their two halves.
            EXPECT_LE(result.most_in_flight, 2 * kMessagesInFlight);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, AlgorithmsOfSizeTest,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 36));

// The simulation finds what it is there to find: a schedule without one of its dependencies fails.
TEST_F(AlgorithmsTest, AMissingDependencyIsNoticed) {
  int noticed = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Case c{3, Pattern::kEven, Shape::kDim0, true, seed, small_place(0, 3, true, seed).tuning};
    std::mt19937 random(seed);
    std::vector<Rank> ranks;
    for (int r = 0; r < 3; ++r) {
      auto tensor = std::make_shared<Buffer>(Layout{1, 432, 432}, random);
      Schedule schedule = plan_all_reduce(c.place(r), 108, kSumOfFloats);
      if (r == 1) {
        // Results may come before the own contribution is gone.
        for (Step& step : schedule.steps) {
          if (step.kind == StepKind::kSend && step.from.offset >= 288) {
            for (uint32_t k = 0; k < step.successor_count; ++k) {
              --schedule.steps[schedule.successors[step.first_successor + k]].dependencies;
            }
            step.successor_count = 0;
          }
        }
      }
      ranks.push_back({std::move(schedule), {}, {tensor}});
    }
    noticed += Simulation(ranks, seed).run().empty() ? 0 : 1;
  }
  EXPECT_GT(noticed, 0);
}

TEST_F(AlgorithmsTest, AllReduceOfAnyChunkGivesRankOrderBits) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Case c{1 + static_cast<int>(seed % 5), Pattern::kUneven, Shape::kDim0, true, seed, {}};
    c.tuning.reduce_chunk = 4 * (1 + seed % 40);
    c.tuning.small_all_reduce = seed % 3 == 0 ? 1 << 20 : 0;
    run_all_reduce(c);
    if (HasFailure()) return;
  }
}

TEST_F(AlgorithmsTest, AlongDim0OnlyTheOwnPieceIsCopied) {
  for (int size = 1; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      for (bool one_host : {true, false}) {
        SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
        const Case c{size, pattern, Shape::kDim0, one_host, 6, {}};
        const auto own = [&](int r) { return piece_bytes(pattern, size, r); };
        const int root_of_gather = 6 / 3 % size;
        const Result gathered = run_all_gather(c), to_root = run_gather_or_scatter(c, true),
                     dealt = run_gather_or_scatter(c, false), exchanged = run_all_to_all(c),
                     scattered = run_reduce_scatter(c), all_reduced = run_all_reduce(c),
                     broadcast = run_broadcast(c);
        for (int r = 0; r < size; ++r) {
          const auto at = static_cast<size_t>(r);
          EXPECT_EQ(gathered.copied[at], own(r));
          EXPECT_EQ(to_root.copied[at], r == root_of_gather ? own(r) : 0);
          EXPECT_EQ(dealt.copied[at], r == root_of_gather ? own(r) : 0);
          EXPECT_EQ(exchanged.copied[at], piece_bytes(pattern, size, r, r));
          EXPECT_EQ(scattered.copied[at], size == 1 ? own(r) : 0);
          EXPECT_EQ(all_reduced.copied[at], 0);
          EXPECT_EQ(broadcast.copied[at], 0);
        }
        Case in_place = c;
        in_place.in_place = true;
        for (int64_t copied : run_all_gather(in_place).copied) EXPECT_EQ(copied, 0);
      }
    }
  }
}

TEST_F(AlgorithmsTest, AlongDim0APieceIsOneMessage) {
  for (int size = 1; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
      const Case c{size, pattern, Shape::kDim0, true, 0, {}};
      const Result gathered = run_all_gather(c), exchanged = run_all_to_all(c),
                   to_root = run_gather_or_scatter(c, true), scattered = run_reduce_scatter(c);
      for (int r = 0; r < size; ++r) {
        const auto at = static_cast<size_t>(r);
        int64_t full = 0, exchanges = 0;
        for (int s = 0; s < size; ++s) {
          if (s == r) continue;
          full += piece_bytes(pattern, size, s) > 0;
          exchanges += piece_bytes(pattern, size, r, s) > 0;
        }
        const bool has = piece_bytes(pattern, size, r) > 0;
        EXPECT_EQ(gathered.messages[at], has ? size - 1 : 0);
        EXPECT_EQ(to_root.messages[at], has && r != 0 ? 1 : 0);
        EXPECT_EQ(exchanged.messages[at], exchanges);
        EXPECT_EQ(scattered.messages[at], full);
      }
    }
  }
}

TEST_F(AlgorithmsTest, NoMoreBytesAreSentThanTheBound) {
  for (int size = 2; size <= 9; ++size) {
    for (Pattern pattern : kPatterns) {
      SCOPED_TRACE(testing::Message() << size << " ranks, pattern " << static_cast<int>(pattern));
      Case c{size, pattern, Shape::kDim0, false, 0, {}};
      c.tuning.small_all_reduce = c.tuning.small_reduce = c.tuning.small_broadcast = 0;
      int64_t whole = 0;
      for (int r = 0; r < size; ++r) whole += piece_bytes(pattern, size, r);
      const Result scattered = run_reduce_scatter(c);
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(scattered.sent_bytes[static_cast<size_t>(r)],
                  whole - piece_bytes(pattern, size, r));
      }
      const auto total = [](const Result& result) {
        return std::accumulate(result.sent_bytes.begin(), result.sent_bytes.end(), int64_t{0});
      };
      EXPECT_EQ(total(run_all_gather(c)), whole * (size - 1));
      const int64_t tensor = std::max<int64_t>(tensor_bytes(c), 0);
      EXPECT_EQ(total(run_all_reduce(c)), 2 * tensor * (size - 1));
      const Result broadcast = run_broadcast(c);
      EXPECT_EQ(total(broadcast), tensor * (size - 1));
      if (size > 2) {
        // Not (size - 1) times from the root.
        EXPECT_LE(broadcast.sent_bytes[0], 2 * tensor);
      }
      // To the root come the others' contributions to its slice, and their slices.
      EXPECT_EQ(total(run_reduce(c)), tensor * (size - 1) + tensor - tensor / 4 / size * 4);
    }
  }
}

TEST_F(AlgorithmsTest, LongRowsAreMessagesAndAreNotStaged) {
  for (Shape shape : {Shape::kRowsAtReceiver, Shape::kRowsAtSender, Shape::kRowsAtBoth}) {
    Case c{4, Pattern::kUneven, shape, true, 6, {}};
    c.tuning.direct_row = c.row();
    ASSERT_EQ(c.row(), 48);
    const Result result = run_all_to_all(c);
    for (int r = 0; r < 4; ++r) {
      int64_t rows = 0;
      for (int s = 0; s < 4; ++s) rows += s == r ? 0 : piece_bytes(c.pattern, 4, r, s) / c.row();
      EXPECT_EQ(result.messages[static_cast<size_t>(r)], rows);
      EXPECT_EQ(result.copied[static_cast<size_t>(r)], piece_bytes(c.pattern, 4, r, r));
    }
  }
}

TEST_F(AlgorithmsTest, ShortRowsAreStagedWhereTheyLieApartAndOnlyOnce) {
  Case c{4, Pattern::kEven, Shape::kRowsAtReceiver, true, 0, {}};
  const int64_t piece = piece_bytes(c.pattern, 4, 0);
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 4 * piece);
  c.shape = Shape::kRowsAtSender;
  for (int64_t copied : run_all_to_all(c).copied) EXPECT_EQ(copied, 4 * piece);
  // For each peer, unless it is written where it belongs there, and moved to the output.
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 4 * piece);
  // Between hosts nobody writes: packed once for all peers.
  c.one_host = false;
  for (int64_t copied : run_all_gather(c).copied) EXPECT_EQ(copied, 2 * piece);
  c.one_host = true;
  // The receiver adds from scratch memory anyway.
  c.shape = Shape::kRowsAtReceiver;
  for (int64_t copied : run_reduce_scatter(c).copied) EXPECT_LE(copied, piece);
}

TEST_F(AlgorithmsTest, ScratchMemoryIsBounded) {
  const int64_t gigabyte = int64_t{1} << 30;
  for (int size : {2, 3, 8, 9, 33, 64}) {
    SCOPED_TRACE(size);
    const Place place{size - 1, size, true, {}};
    const int64_t two_mb = 2 << 20;
    EXPECT_LE(plan_all_reduce(place, gigabyte / 16, kSumOfFloats).scratch_bytes, two_mb);
    EXPECT_LE(plan_reduce(place, gigabyte / 16, 0, kSumOfFloats).scratch_bytes,
              two_mb + (512 << 10));
    const int64_t bytes = 64 << 20, row = 4 << 10;
    const Piece strided{{bytes / row, row, 2 * row}, row};
    const std::vector<Piece> pieces(static_cast<size_t>(size), strided);
    // Two slots for each of the peers at least, in each direction.
    EXPECT_LE(plan_all_to_all(place, pieces, pieces).scratch_bytes,
              2 * std::max<int64_t>(two_mb, 2 * kWindow * (128 << 10)));
    // No slot where nothing is staged.
    const Piece contiguous{{1, bytes, bytes}, bytes};
    const std::vector<Piece> plain(static_cast<size_t>(size), contiguous);
    EXPECT_EQ(plan_all_to_all(place, plain, plain).scratch_bytes, 0);
    EXPECT_EQ(plan_all_gather(place, contiguous, plain, false).scratch_bytes, 0);
    // Packed once for all.
    EXPECT_LE(plan_all_gather(place, {strided.layout, bytes}, plain, false).scratch_bytes, bytes);
  }
}

TEST_F(AlgorithmsTest, TheChoiceFollowsTheTable) {
  const Place two{0, 2, false, {}}, hosts{0, 5, false, {}}, host{0, 5, true, {}};
  EXPECT_EQ(choose_broadcast(two, 1 << 30), BroadcastAlgorithm::kFlat);
  EXPECT_EQ(choose_broadcast(host, 1 << 30), BroadcastAlgorithm::kFlat);
  EXPECT_EQ(choose_broadcast(hosts, (64 << 10) - 1), BroadcastAlgorithm::kBinomial);
  EXPECT_EQ(choose_broadcast(hosts, 64 << 10), BroadcastAlgorithm::kScatterAllGather);
  EXPECT_EQ(choose_all_reduce(host, 8 << 10), AllReduceAlgorithm::kExchange);
  EXPECT_EQ(choose_all_reduce(host, (8 << 10) + 4), AllReduceAlgorithm::kReduceScatterAllGather);
  EXPECT_EQ(choose_reduce(host, 16 << 10), ReduceAlgorithm::kGather);
  EXPECT_EQ(choose_reduce(host, (16 << 10) + 4), ReduceAlgorithm::kReduceScatterGather);
  const std::vector<int64_t> even(5, 1000), skewed = {5000, 0, 0, 0, 0},
                                            level = {100, 101, 99, 100, 100};
  EXPECT_EQ(choose_all_gather(hosts, even), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(choose_all_gather(hosts, level), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(choose_all_gather(hosts, skewed), AllGatherAlgorithm::kRing);
  EXPECT_EQ(choose_all_gather(host, skewed), AllGatherAlgorithm::kDirect);
  EXPECT_EQ(reduce_chunk_bytes(2), 256 << 10);
  EXPECT_EQ(reduce_chunk_bytes(8), (1 << 20) / 7 / 64 * 64);
  EXPECT_EQ(reduce_chunk_bytes(1000), 16 << 10);
}

TEST_F(AlgorithmsTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  // By who has heard of whom: a send tells all that its sender has heard by then.
  for (int size = 1; size <= 40; ++size) {
    std::vector<uint64_t> known(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) known[static_cast<size_t>(r)] = uint64_t{1} << r;
    std::vector<Schedule> plans;
    for (int r = 0; r < size; ++r) plans.push_back(plan_barrier({r, size, true, {}}));
    for (size_t step = 0; step < plans[0].steps.size(); step += 2) {
      const std::vector<uint64_t> before = known;
      for (size_t r = 0; r < known.size(); ++r) {
        EXPECT_EQ(plans[r].steps[step].dependencies, step / 2);
        known[static_cast<size_t>(plans[r].steps[step].peer)] |= before[r];
      }
    }
    for (uint64_t ranks : known) EXPECT_EQ(ranks, (uint64_t{1} << size) - 1) << size;
  }
}

}  // namespace
}  // namespace meshrun::ucx
