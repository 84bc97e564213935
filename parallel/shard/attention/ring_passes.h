// The two passes of ring attention over one call's tensors, without autograd. Internal to
// ring_attention.h.
//
// Tensors as in block_attention.h, key and value in their own dtype. All ranks of the group run a
// pass; errors as of ParcelExchange.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "parallel/comm/interface/v_collectives.h"
#include "parallel/manager/group_argument.h"
#include "parallel/shard/attention/attention_arguments.h"
#include "parallel/shard/attention/attention_plan.h"
#include "parallel/shard/attention/block_attention.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

// A call without its tensors.
struct Ring : torch::CustomClassHolder {
  Ring(GroupArgument::Handle its_group, RingPlan its_plan)
      : group(std::move(its_group)), rank(group->getRank()), plan(std::move(its_plan)) {}

  const GroupArgument::Handle group;
  const int rank;
  const RingPlan plan;
  double scale = 1;
  std::optional<AttentionDropout> dropout;
  // Equal on all ranks. The words are made where ranks disagree.
  std::function<std::string()> words;
  uint64_t digest = 0;
  bool requires_grad = false;

  int world() const { return plan.world(); }
  int above() const { return (rank + 1) % world(); }
  int below() const { return (rank + world() - 1) % world(); }
  int64_t key_begin(int block) const {
    int64_t begin = 0;
    for (int b = 0; b < block; ++b) begin += plan.key_size(b);
    return begin;
  }
  // Shape of any rank's block: that of `own`, with the number of keys of that block.
  std::vector<int64_t> block_shape(const at::Tensor& own, int block) const {
    std::vector<int64_t> shape = own.sizes().vec();
    shape[2] = plan.key_size(block);
    return shape;
  }
  int64_t block_elements(const at::Tensor& key, const at::Tensor& value, int block) const {
    return c10::multiply_integers(block_shape(key, block)) +
           c10::multiply_integers(block_shape(value, block));
  }
  CollectiveSpec call() const {
    CollectiveSpec spec{.agreed = digest, .requires_grad = requires_grad};
    spec.say(words);
    return spec;
  }
};

// The first exchange is made even where nothing travels: it tells all ranks of a wrong call.
RunningAttention ring_forward(const Ring& ring, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask);

// Tensors of the forward pass and the cotangent: key, value and mask in their own dtype, the others
// in the accumulating one.
struct RingBackwardInputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;
  at::Tensor grad_output;
  at::Tensor output;
  at::Tensor logsumexp;  // finite
};

// In the accumulating dtype. Without `with_keys` no gradient travels, and key and value are
// undefined; with_mask: the mask's gradient, too.
BlockGradients ring_backward(const Ring& ring, const RingBackwardInputs& inputs, bool with_keys,
                             bool with_mask);

}  // namespace meshrun
