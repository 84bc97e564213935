#include "parallel/shard/attention/ring_passes.h"

#include <algorithm>

#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/attention/attention_arguments.h"
#include "parallel/shard/ring/parcel_exchange.h"

namespace meshrun {
namespace {

using at::Tensor;

struct KeysAndValues {
  Tensor key;
  Tensor value;
  Tensor both;  // one after the other, as they travel; undefined where they do not

  static KeysAndValues unpack(const Tensor& both, at::IntArrayRef key_shape,
                              at::IntArrayRef value_shape) {
    const int64_t split = c10::multiply_integers(key_shape);
    return {both.narrow(0, 0, split).view(key_shape),
            both.narrow(0, split, both.numel() - split).view(value_shape), both};
  }
  static KeysAndValues pack(const Tensor& key, const Tensor& value) {
    return unpack(at::cat({key.reshape({-1}), value.reshape({-1})}), key.sizes(), value.sizes());
  }
};

// The exchange of keys and values that goes on while `step` is computed, with parcels before it.
class KeyRing {
 public:
  KeyRing(const Ring& ring, const Tensor& key, const Tensor& value)
      : ring_(ring), own_key_(key), own_value_(value) {
    held_ = ring.world() > 1 && ring.plan.keys_sent(ring.rank, 0) >= 0
                ? KeysAndValues::pack(key, value)
                : KeysAndValues{key, value, {}};
  }

  const KeysAndValues& held() const { return held_; }

  // Adds this step's parcels; `expected` gives the index that take() needs.
  void start(int step, std::vector<Parcel>& sent, std::vector<ExpectedParcel>& expected) {
    incoming_ = ring_.plan.keys_sent(ring_.below(), step);
    if (ring_.plan.keys_sent(ring_.rank, step) >= 0) sent.push_back({ring_.above(), held_.both});
    if (incoming_ < 0) return;
    index_ = expected.size();
    expected.push_back({ring_.below(), ring_.block_elements(own_key_, own_value_, incoming_) *
                                           own_key_.element_size()});
  }
  // After the exchange.
  void take(const ParcelExchange& exchange) {
    held_ = {};
    if (incoming_ < 0) return;
    held_ = KeysAndValues::unpack(
        exchange.received(index_, own_key_.scalar_type(),
                          {ring_.block_elements(own_key_, own_value_, incoming_)}),
        ring_.block_shape(own_key_, incoming_), ring_.block_shape(own_value_, incoming_));
  }

 private:
  const Ring& ring_;
  const Tensor& own_key_;
  const Tensor& own_value_;
  KeysAndValues held_;
  int incoming_ = -1;
  size_t index_ = 0;
};

// Operands for the block that this rank holds at `step`, in the accumulating dtype.
BlockOperands operands_of(const Ring& ring, int step, const Tensor& query,
                          const KeysAndValues& held, const std::optional<Tensor>& mask) {
  const int block = ring.plan.block_at(ring.rank, step);
  const at::ScalarType dtype = query.scalar_type();
  return {.query = query,
          .key = held.key.to(dtype),
          .value = held.value.to(dtype),
          .mask = additive_mask(
              mask_columns(mask, ring.key_begin(block), ring.plan.key_size(block)), dtype),
          .scale = ring.scale,
          .dropout = ring.dropout ? &*ring.dropout : nullptr,
          .first_key = ring.key_begin(block),
          .dtype = held.key.scalar_type()};
}

}  // namespace

RunningAttention ring_forward(const Ring& ring, const Tensor& query, const Tensor& key,
                              const Tensor& value, const std::optional<Tensor>& mask) {
  const Tensor wide = query.to(accumulating_dtype(query.scalar_type()));
  RunningAttention running(wide, value.size(3));
  KeyRing keys(ring, key, value);
  const int num_exchanges = ring.world() == 1 ? 0 : std::max(1, ring.plan.num_steps() - 1);
  for (int step = 0; step < ring.plan.num_steps(); ++step) {
    std::optional<ParcelExchange> exchange;
    if (step < num_exchanges) {
      std::vector<Parcel> sent;
      std::vector<ExpectedParcel> expected;
      keys.start(step, sent, expected);
      exchange.emplace(ring.group, query.device(), sent, expected, ring.call());
    }
    if (const auto tiles = ring.plan.tiles_at(ring.rank, step); !tiles.empty()) {
      const BlockOperands operands = operands_of(ring, step, wide, keys.held(), mask);
      for (const AttentionTile& tile : tiles) running.add(tile, operands);
    }
    if (exchange) {
      exchange->wait();
      keys.take(*exchange);
    }
  }
  return running;
}

namespace {

// The second ring. Without gradients of keys and values, they alone travel.
class BackwardRing {
 public:
  BackwardRing(const Ring& ring, const RingBackwardInputs& inputs, bool with_keys, bool with_mask)
      : ring_(ring),
        plan_(ring.plan),
        inputs_(inputs),
        with_keys_(with_keys),
        with_mask_(with_mask),
        dtype_(inputs.query.scalar_type()),
        keys_(ring, inputs.key, inputs.value) {}

  BlockGradients run();

 private:
  int num_exchanges() const {
    return with_keys_ ? plan_.num_backward_exchanges() : plan_.num_steps() - 1;
  }
  int64_t num_elements(int block) const {
    return ring_.block_elements(inputs_.key, inputs_.value, block);
  }
  // Gradients that leave and arrive during `step`; what arrives goes on or is at home.
  void add_parcels(int step, std::vector<Parcel>& sent, std::vector<ExpectedParcel>& expected);
  void take_parcels(const ParcelExchange& exchange);
  // This rank's part of the gradient of the block of `step`, into parts_.
  void compute(int step, BlockGradients& sums);

  const Ring& ring_;
  const RingPlan& plan_;
  const RingBackwardInputs& inputs_;
  const bool with_keys_;
  const bool with_mask_;
  const at::ScalarType dtype_;
  KeyRing keys_;
  Tensor parts_;     // dK and dV of the block of this step
  Tensor finished_;  // of this rank's own block, from all ranks
  struct Incoming {
    int block = -1;
    size_t index = 0;
  };
  std::vector<Incoming> incoming_;
};

void BackwardRing::add_parcels(int step, std::vector<Parcel>& sent,
                               std::vector<ExpectedParcel>& expected) {
  incoming_.clear();
  if (!with_keys_) return;
  const RingPlan::Sent own = plan_.gradients_sent(ring_.rank, step);
  if (own.block >= 0) sent.push_back({own.to, parts_});
  for (int from = 0; from < ring_.world(); ++from) {
    const RingPlan::Sent theirs = plan_.gradients_sent(from, step);
    if (theirs.block < 0 || theirs.to != ring_.rank) continue;
    incoming_.push_back({theirs.block, expected.size()});
    const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
    expected.push_back({from, num_elements(theirs.block) * element});
  }
}

void BackwardRing::take_parcels(const ParcelExchange& exchange) {
  for (const Incoming& parcel : incoming_) {
    const Tensor received = exchange.received(parcel.index, dtype_, {num_elements(parcel.block)});
    if (parcel.block == ring_.rank) {
      finished_ = received;
    } else {
      parts_ = received.add_(parts_);  // in the order of the ring
    }
  }
}

void BackwardRing::compute(int step, BlockGradients& sums) {
  const int block = plan_.block_at(ring_.rank, step);
  parts_.reset();
  if (block < 0) return;
  parts_ = at::zeros({num_elements(block)}, inputs_.query.options());
  const auto tiles = plan_.tiles_at(ring_.rank, step);
  if (tiles.empty()) return;
  BlockOperands operands = operands_of(ring_, step, inputs_.query, keys_.held(), inputs_.mask);
  operands.wants_mask_gradient = with_mask_;
  const KeysAndValues parts = KeysAndValues::unpack(parts_, ring_.block_shape(inputs_.key, block),
                                                    ring_.block_shape(inputs_.value, block));
  BlockGradients block_sums{sums.query, parts.key, parts.value, {}};
  if (with_mask_) {
    block_sums.mask = *mask_columns(sums.mask, ring_.key_begin(block), plan_.key_size(block));
  }
  for (const AttentionTile& tile : tiles) {
    add_gradients(tile, operands, inputs_.grad_output, inputs_.output, inputs_.logsumexp,
                  block_sums);
  }
}

BlockGradients BackwardRing::run() {
  BlockGradients sums;
  sums.query = at::zeros(inputs_.query.sizes(), inputs_.query.options());
  if (with_mask_) sums.mask = at::zeros(inputs_.mask->sizes(), inputs_.query.options());
  for (int step = 0; step < std::max(plan_.num_steps(), num_exchanges()); ++step) {
    std::optional<ParcelExchange> exchange;
    if (step < num_exchanges()) {
      std::vector<Parcel> sent;
      std::vector<ExpectedParcel> expected;
      add_parcels(step, sent, expected);
      keys_.start(step, sent, expected);
      exchange.emplace(ring_.group, inputs_.query.device(), sent, expected, ring_.call());
    }
    compute(step, sums);
    // A block that does not travel is at home at once.
    if (step == 0 && plan_.gradients_sent(ring_.rank, 1).block < 0) finished_ = parts_;
    if (exchange) {
      exchange->wait();
      take_parcels(*exchange);
      keys_.take(*exchange);
    }
  }
  if (with_keys_) {
    const KeysAndValues own =
        KeysAndValues::unpack(finished_, inputs_.key.sizes(), inputs_.value.sizes());
    sums.key = own.key;
    sums.value = own.value;
  }
  return sums;
}

}  // namespace

BlockGradients ring_backward(const Ring& ring, const RingBackwardInputs& inputs, bool with_keys,
                             bool with_mask) {
  return BackwardRing(ring, inputs, with_keys, with_mask).run();
}

}  // namespace meshrun
