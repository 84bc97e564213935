// What the collectives of this folder share: a collective without its tensors, and the calls that
// make an output and hand it to the group's backend. Internal to parallel/collectives.
//
// Three structs describe a call, one per layer:
//
//   Exchange   what the caller asked for, checked. Autograd nodes keep it for their backward, which
//              is another collective over the same one. It holds no tensor
//   CallForm   how it is made this time: with a gradient, asynchronously
//   VCall      what the backend is told beside tensors and sizes (comm/interface/v_collectives.h)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "c10/core/DeviceType.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/pieces.h"
#include "parallel/collectives/sizes.h"
#include "parallel/comm/interface/v_collectives.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

struct Exchange : torch::CustomClassHolder {
  GroupArgument::Handle group;
  int rank = 0;
  int world = 1;
  // What is wrong with this rank's arguments; empty: nothing, else nothing below holds.
  std::string problem;
  int64_t dim = 0;
  Extents sizes;
  // Of an all-to-all: the receiving side.
  int64_t other_dim = 0;
  Extents other_sizes;
  // Of a transpose: a digest of dims and sizes, which all ranks must have alike; of halos and of
  // planned collectives, that of their plan. 0: an all-to-all's sizes differ between ranks.
  uint64_t agreed = 0;
  // What a mismatch says of it; empty: dims and sizes of a transpose.
  std::string words;
  int root = 0;  // dst or src
  bool use_fp32 = true;

  bool is_root() const { return rank == root; }
  int64_t total() const;
  int64_t own() const { return sizes[static_cast<size_t>(rank)]; }
};

using ExchangePtr = c10::intrusive_ptr<Exchange>;
using WorkPtr = VCollectives::WorkPtr;

// The form of a call: whether autograd will want its backward, and where an asynchronous one leaves
// its Work (null: it is waited for).
struct CallForm {
  bool requires_grad = false;
  WorkPtr* work = nullptr;
};

// What no collective takes: an undefined tensor, a sharded one. Empty: nothing is wrong.
const char* tensor_problem(const at::Tensor& tensor);

// Group, rank and world alone.
ExchangePtr make_exchange(const GroupArgument& group);
// From the arguments of each, checked. `tensor` may be undefined, which is a problem.
ExchangePtr make_all_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                            bool use_fp32, const GroupArgument& group);
ExchangePtr make_reduce_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                                bool use_fp32, const GroupArgument& group);
ExchangePtr make_gather(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                        const GroupArgument& group);
// Waits for a message where sizes are absent.
ExchangePtr make_scatter(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t src,
                         const GroupArgument& group);
ExchangePtr make_all_to_all(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                            at::IntArrayRef output_sizes, int64_t input_dim, int64_t output_dim,
                            const GroupArgument& group);
// An all-to-all from pieces along dim1 to pieces along dim0. Without dim1_sizes it waits for a
// message, and raises what is wrong.
ExchangePtr make_transpose(const at::Tensor& tensor, int64_t dim0, int64_t dim1,
                           const std::optional<std::vector<int64_t>>& dim1_sizes,
                           const GroupArgument& group);

// Makes the ranks compare the dims and sizes of a transpose, and `also`, in each of its calls.
void agree_on_transpose(Exchange& exchange, uint64_t also = 0);
// The ranks' extents along a dimension, told by all to all. Raises the problem of any rank.
// `tensor`, which may be undefined, says on which device.
Extents tell_extents(const at::Tensor& tensor, const Exchange& exchange, int64_t extent);

// Each makes one output, without a gradient. If there is a problem, they still make the call, so
// that the other ranks get the problem too, and then throw it (or leave it to the Work).
// all_to_all: `reversed` exchanges its two sides. It keeps the Exchange alive, because the error of
// a wrong transpose describes it.
at::Tensor all_gather(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form);
at::Tensor reduce_scatter(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form);
at::Tensor gather(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form);
at::Tensor scatter(const at::Tensor& tensor, const Exchange& exchange, const CallForm& form);
at::Tensor all_to_all(const at::Tensor& tensor, const ExchangePtr& exchange, bool reversed,
                      const CallForm& form);

// Names the function that the caller knows, where a collective of another name does its work, for
// the errors of calls that this thread makes meanwhile: "backward of all_gather_v" for a
// reduce_scatter_v.
class CalledAs {
 public:
  explicit CalledAs(const char* name);
  ~CalledAs();
  CalledAs(const CalledAs&) = delete;
  CalledAs& operator=(const CalledAs&) = delete;

 private:
  const char* const before_;
};

// What all of these need, and the indexed exchange too.
// Uninitialised, contiguous, like `tensor` except its extent along `dim`.
at::Tensor empty_with_extent(const at::Tensor& tensor, int64_t dim, int64_t extent);
VCall make_call(const std::string& problem, const CallForm& form);
// Waits, or leaves the Work in `form`.
void finish(WorkPtr work, const std::string& problem, const CallForm& form);

}  // namespace meshrun
