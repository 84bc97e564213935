// A collective with the memory of each rank, and what a plain loop makes of it.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "tests/parallel/support/reduction_oracle.h"

namespace meshrun::ucx {

// What one rank reads and writes.
struct CallMemory {
  std::vector<std::vector<std::byte>> inputs, outputs;
};

class CollectiveCall {
 public:
  // A call that reduces computes the sum. `counts`: elements of each rank's piece; all_reduce,
  // reduce and broadcast have one piece, all_to_all P * P, by sender.
  CollectiveCall(OperationKind kind, int ranks, DType dtype, std::vector<int64_t> counts, int root,
                 uint64_t seed, const Tuning& tuning = {})
      : kind_(kind),
        size_(ranks),
        dtype_(dtype),
        element_(element_size(dtype)),
        counts_(std::move(counts)),
        root_(root),
        seed_(seed),
        tuning_(tuning) {}

  static CollectiveCall random(int ranks, uint64_t seed) {
    std::mt19937_64 random(seed);
    static constexpr OperationKind kKinds[] = {
        OperationKind::kBarrier, OperationKind::kBroadcast,     OperationKind::kAllReduce,
        OperationKind::kReduce,  OperationKind::kAllGather,     OperationKind::kGather,
        OperationKind::kScatter, OperationKind::kReduceScatter, OperationKind::kAllToAll};
    static constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,
                                       DType::kInt64, DType::kUInt8};
    const OperationKind kind = kKinds[random() % std::size(kKinds)];
    const DType dtype = kTypes[random() % std::size(kTypes)];
    const int64_t largest = random() % 4 == 0 ? 3000 : 40;
    std::vector<int64_t> counts(pieces_of(kind, ranks));
    for (int64_t& count : counts) count = random() % 5 == 0 ? 0 : random() % largest;
    Tuning tuning;
    if (random() % 2) {
      tuning.reduce_chunk = 64 << random() % 5;
      tuning.staged_message = 256;
      tuning.direct_row = 128;
      tuning.ring_message = 512;
      tuning.small_broadcast = tuning.small_all_reduce = tuning.small_reduce = 200;
      tuning.written_by_root = 500;
      tuning.in_cache = 2000;
      tuning.least_part = 64;
      if (seed % 3 == 0) tuning.messages = 8;
    }
    CollectiveCall call(kind, ranks, dtype, counts, static_cast<int>(random() % ranks), random(),
                        tuning);
    call.lay_out_in_rows(random() % 3 == 0, random() % 3 == 0);
    call.headers_carry_ = seed % 2 == 0;
    return call;
  }

  // Pieces of several rows lie apart, where they are read or written. Not of tensors that are
  // reduced whole.
  void lay_out_in_rows(bool inputs, bool outputs) {
    if (kind_ == OperationKind::kAllReduce || kind_ == OperationKind::kReduce) return;
    // The root's tensor is both.
    rows_read_ = kind_ == OperationKind::kBroadcast ? outputs : inputs;
    rows_written_ = outputs;
  }

  std::string words() const {
    return std::string(name_of(kind_)) + " of " + name_of(dtype_) + ", root " +
           std::to_string(root_);
  }

  CallMemory memory(int rank) const {
    CallMemory memory;
    for (const Side& side : inputs(rank)) {
      memory.inputs.push_back(
          laid_out(content(side.rank, side.piece), layout(side.piece, rows_read_)));
    }
    for (const Side& side : outputs(rank)) {
      memory.outputs.push_back(
          std::vector<std::byte>(layout(side.piece, rows_written_).extent(), kGap));
    }
    // In place.
    if (kind_ == OperationKind::kAllReduce) memory.outputs = std::exchange(memory.inputs, {});
    if (kind_ == OperationKind::kBroadcast && rank == root_) {
      memory.outputs = std::exchange(memory.inputs, {});
    }
    return memory;
  }

  OperationSpec spec(const Place& where, CallMemory& memory) const {
    Place place = where;
    place.tuning = tuning_;
    place.headers_carry = where.headers_carry && headers_carry_;
    OperationSpec spec;
    spec.signature.kind = kind_;
    spec.signature.dtype = dtype_;
    spec.signature.root = root_;
    spec.signature.digest = Digest().add(counts_).value();
    spec.text = [text = words()] { return text; };
    spec.record.ndim = 1;
    spec.record.shape[0] = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    spec.record.bytes = spec.record.shape[0] * element_;
    const bool is_in_place = kind_ == OperationKind::kAllReduce ||
                             (kind_ == OperationKind::kBroadcast && place.rank == root_);
    const std::vector<Side> read = inputs(place.rank), written = outputs(place.rank);
    for (size_t i = 0; i < memory.inputs.size(); ++i) {
      spec.inputs.push_back({memory.inputs[i].data(), layout(read[i].piece, rows_read_)});
    }
    for (size_t i = 0; i < memory.outputs.size(); ++i) {
      const int piece = is_in_place ? 0 : written[i].piece;
      spec.outputs.push_back({memory.outputs[i].data(), layout(piece, rows_written_)});
    }
    // Broadcast: what the root reads, others write.
    if (kind_ == OperationKind::kBroadcast && place.rank == root_) spec.inputs = {spec.outputs[0]};
    spec.schedule = std::make_shared<const Schedule>(plan(place));
    return spec;
  }

  // What `rank` has in its outputs afterwards.
  std::vector<std::vector<std::byte>> expected(int rank) const {
    std::vector<std::vector<std::byte>> pieces;
    for (const Side& side : outputs(rank)) {
      const Layout where = layout(side.piece, rows_written_);
      if (!reduces()) {
        pieces.push_back(laid_out(content(side.rank, side.piece), where));
        continue;
      }
      std::vector<Contribution> of_ranks;
      for (int r = 0; r < size_; ++r) of_ranks.push_back(content(r, side.piece));
      pieces.push_back(laid_out(sum_in_rank_order(of_ranks, dtype_), where));
    }
    return pieces;
  }

 private:
  // A piece and whose content it has.
  struct Side {
    int rank;
    int piece;
  };

  static int pieces_of(OperationKind kind, int ranks) {
    switch (kind) {
      case OperationKind::kBarrier:
        return 0;
      case OperationKind::kBroadcast:
      case OperationKind::kAllReduce:
      case OperationKind::kReduce:
        return 1;
      case OperationKind::kAllToAll:
        return ranks * ranks;
      default:
        return ranks;
    }
  }
  bool reduces() const {
    return kind_ == OperationKind::kAllReduce || kind_ == OperationKind::kReduce ||
           kind_ == OperationKind::kReduceScatter;
  }
  int64_t bytes_of(int piece) const { return counts_[piece] * element_; }
  std::vector<int64_t> piece_bytes() const {
    std::vector<int64_t> bytes;
    for (const int64_t count : counts_) bytes.push_back(count * element_);
    return bytes;
  }

  static constexpr std::byte kGap{0xee};
  Layout layout(int piece, bool in_rows) const {
    const int64_t bytes = bytes_of(piece), row = 4 * element_;
    if (!in_rows || bytes % row != 0 || bytes <= row) return {1, bytes, bytes};
    return {bytes / row, row, row + 3 * element_};
  }
  static std::vector<std::byte> laid_out(const std::vector<std::byte>& content,
                                         const Layout& layout) {
    std::vector<std::byte> memory(layout.extent(), kGap);
    unpack({memory.data(), layout}, 0, content);
    return memory;
  }

  std::vector<Side> inputs(int rank) const {
    std::vector<Side> sides;
    switch (kind_) {
      case OperationKind::kAllReduce:
      case OperationKind::kReduce:
        return {{rank, 0}};
      case OperationKind::kBroadcast:
        if (rank == root_) sides = {{rank, 0}};
        return sides;
      case OperationKind::kAllGather:
      case OperationKind::kGather:
        return {{rank, rank}};
      case OperationKind::kScatter:
        for (int p = 0; rank == root_ && p < size_; ++p) sides.push_back({rank, p});
        return sides;
      case OperationKind::kReduceScatter:
        for (int p = 0; p < size_; ++p) sides.push_back({rank, p});
        return sides;
      case OperationKind::kAllToAll:
        for (int p = 0; p < size_; ++p) sides.push_back({rank, rank * size_ + p});
        return sides;
      default:
        return sides;
    }
  }
  std::vector<Side> outputs(int rank) const {
    std::vector<Side> sides;
    switch (kind_) {
      case OperationKind::kAllReduce:
        return {{rank, 0}};
      case OperationKind::kReduce:
        if (rank == root_) sides = {{rank, 0}};
        return sides;
      case OperationKind::kBroadcast:
        return {{root_, 0}};
      case OperationKind::kAllGather:
        for (int p = 0; p < size_; ++p) sides.push_back({p, p});
        return sides;
      case OperationKind::kGather:
        for (int p = 0; rank == root_ && p < size_; ++p) sides.push_back({p, p});
        return sides;
      case OperationKind::kScatter:
        return {{root_, rank}};
      case OperationKind::kReduceScatter:
        return {{rank, rank}};
      case OperationKind::kAllToAll:
        for (int p = 0; p < size_; ++p) sides.push_back({p, p * size_ + rank});
        return sides;
      default:
        return sides;
    }
  }

  Schedule plan(const Place& place) const {
    const Reduction sum{reduces() ? ReductionOp::kSum : ReductionOp::kNone, dtype_};
    std::vector<Piece> read, written;
    for (size_t p = 0; p < counts_.size(); ++p) {
      const int piece = static_cast<int>(p);
      const Layout rows = layout(piece, rows_read_ || rows_written_);
      const int64_t cut = std::max<int64_t>(1, rows.row_bytes);
      read.push_back({layout(piece, rows_read_), cut});
      written.push_back({layout(piece, rows_written_), cut});
    }
    switch (kind_) {
      case OperationKind::kBroadcast:
        return plan_broadcast(place, written[0], root_);
      case OperationKind::kAllReduce:
        return plan_all_reduce(place, counts_[0], sum);
      case OperationKind::kReduce:
        return plan_reduce(place, counts_[0], root_, sum);
      case OperationKind::kAllGather:
        return plan_all_gather(place, read[place.rank], written, false);
      case OperationKind::kGather:
        return plan_gather(place, read[place.rank], written, piece_bytes(), root_);
      case OperationKind::kScatter:
        return plan_scatter(place, read, written[place.rank], piece_bytes(), root_);
      case OperationKind::kReduceScatter:
        return plan_reduce_scatter(place, read, written[place.rank], sum);
      case OperationKind::kAllToAll: {
        std::vector<Piece> to, from;
        for (int p = 0; p < size_; ++p) {
          to.push_back(read[place.rank * size_ + p]);
          from.push_back(written[p * size_ + place.rank]);
        }
        return plan_all_to_all(place, to, from);
      }
      default:
        return plan_barrier(place);
    }
  }

  // Floats of many magnitudes: another order of adding gives other bits.
  std::vector<std::byte> content(int rank, int piece) const {
    std::mt19937_64 random(seed_ + rank * 1000003 + piece);
    std::vector<std::byte> bytes(bytes_of(piece));
    for (int64_t i = 0; i < counts_[piece]; ++i) {
      std::byte* const at = bytes.data() + i * element_;
      const double number = std::ldexp(static_cast<double>(random() % 100000), random() % 30);
      const float as_float = static_cast<float>(number);
      const uint64_t as_integer = random() % 1000;
      if (dtype_ == DType::kFloat32) {
        std::memcpy(at, &as_float, sizeof(as_float));
      } else if (dtype_ == DType::kFloat64) {
        std::memcpy(at, &number, sizeof(number));
      } else {
        std::memcpy(at, &as_integer, element_);
      }
    }
    return bytes;
  }

  OperationKind kind_;
  int size_;
  DType dtype_;
  int64_t element_;
  std::vector<int64_t> counts_;
  int root_;
  uint64_t seed_;
  Tuning tuning_;
  bool rows_read_ = false, rows_written_ = false;
  bool headers_carry_ = true;  // if the place says that they can
};

}  // namespace meshrun::ucx
