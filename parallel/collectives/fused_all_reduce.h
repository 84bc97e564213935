// Many small tensors, reduced over a group in one all-reduce: losses, metrics, counts.
//
//   std::map<std::string, at::Tensor> metrics = {{"loss", loss}, {"error", error}};
//   metrics = fused_all_reduce(metrics, {.op = c10d::ReduceOp::AVG});
//
// The leaves are packed into one buffer, in order; those of maps and dictionaries in the order of
// their keys, whatever the order of insertion. Results have the input's structure, shapes, dtypes
// and devices; they are contiguous, share no memory with it or with each other, are no views (so
// they may become gradients), and have no gradient. Leaves may have any shape, empty ones too, and
// different dtypes:
//
//   all floating point or complex    reduced in their common type, at least float32
//   all integer                      reduced in their common type, exactly; overflow wraps
//   all bool                         SUM and MAX are "any rank", MIN is "all ranks"
//   integer or bool with floating    an error, since large integers would be rounded; buffer_dtype
//                                    allows it and names the type
//
// The ranks agree on op, buffer dtype, whether there is a weight, and on every leaf's key, dtype
// and shape.
//
// A group of one rank, or no DistributedManager: copies of the leaves, without communication. The
// call raises inside ElasticState::update() there as well.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: what is wrong on one
// rank or differs between ranks is raised on every rank that called; the asynchronous form raises
// it in the call or in wait() (parallel/base/collective_errors.h). UndefinedGroupError.
//
// Corresponds to physicsnemo.distributed.fused_all_reduce, whose asynchronous results can be read
// too early.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/distributed/c10d/Types.hpp"

namespace meshrun {

struct FusedAllReduceOptions {
  // SUM, AVG, MIN or MAX. AVG needs a floating-point or complex buffer.
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  // With AVG: this rank's weight, such as its number of samples; sum(weight * x) / sum(weight). Not
  // negative. 0 leaves the rank's values out, also those that are not finite (a mean of no
  // samples). All of them 0 is an error on every rank.
  std::optional<double> weight;
  // What to reduce in; results are cast back, to integers towards zero.
  std::optional<at::ScalarType> buffer_dtype;
  // The world where absent.
  GroupArgument group;
};

namespace detail {

// Structures of tensors, as a list of leaves and back.
struct FusedLeaf {
  std::string key;  // of the maps above it; empty in lists
  at::Tensor tensor;
};

class FusedReduction {
 public:
  // Starts it. `problem`: with the leaves, found by the caller; empty: none.
  FusedReduction(std::vector<FusedLeaf> leaves, std::string problem,
                 const FusedAllReduceOptions& options, bool async);
  ~FusedReduction();
  bool is_completed() const;
  // By leaf. Once.
  std::vector<at::Tensor> wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail

// The handle of an asynchronous reduction: the results exist when wait() returns, not before.
// Copies share the operation. Threads: any, one at a time.
template <typename T>
class FusedAllReduce {
 public:
  using Rebuild = std::function<T(std::vector<at::Tensor>)>;
  FusedAllReduce(std::shared_ptr<detail::FusedReduction> reduction, Rebuild rebuild)
      : shared_(std::make_shared<Shared>(std::move(reduction), std::move(rebuild))) {}

  bool is_completed() const { return shared_->result || shared_->reduction->is_completed(); }
  // The same result when called again.
  T wait() {
    if (!shared_->result) shared_->result = shared_->rebuild(shared_->reduction->wait());
    return *shared_->result;
  }

 private:
  struct Shared {
    Shared(std::shared_ptr<detail::FusedReduction> its_reduction, Rebuild its_rebuild)
        : reduction(std::move(its_reduction)), rebuild(std::move(its_rebuild)) {}
    std::shared_ptr<detail::FusedReduction> reduction;
    Rebuild rebuild;
    std::optional<T> result;
  };
  std::shared_ptr<Shared> shared_;
};

using TensorMap = std::map<std::string, at::Tensor>;

at::Tensor fused_all_reduce(const at::Tensor& tensor, const FusedAllReduceOptions& options = {});
std::vector<at::Tensor> fused_all_reduce(const std::vector<at::Tensor>& tensors,
                                         const FusedAllReduceOptions& options = {});
TensorMap fused_all_reduce(const TensorMap& tensors, const FusedAllReduceOptions& options = {});
// Tensors, lists, tuples and dictionaries by string of such, nested at will.
c10::IValue fused_all_reduce(const c10::IValue& tree, const FusedAllReduceOptions& options = {});

FusedAllReduce<at::Tensor> fused_all_reduce_async(const at::Tensor& tensor,
                                                  const FusedAllReduceOptions& options = {});
FusedAllReduce<std::vector<at::Tensor>> fused_all_reduce_async(
    const std::vector<at::Tensor>& tensors, const FusedAllReduceOptions& options = {});
FusedAllReduce<TensorMap> fused_all_reduce_async(const TensorMap& tensors,
                                                 const FusedAllReduceOptions& options = {});
FusedAllReduce<c10::IValue> fused_all_reduce_async(const c10::IValue& tree,
                                                   const FusedAllReduceOptions& options = {});

}  // namespace meshrun
