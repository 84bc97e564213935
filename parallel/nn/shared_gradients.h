// The gradients of a module that is marked as shared, between a backward pass's hooks and its end.
//
//   before_accumulation   what the gradient holds is set aside, so that what this pass adds to it
//                         stands alone
//   after_accumulation    it has
//   the end of the pass   all that the pass has added is reduced, and added to what was set aside
//
// The end is a callback of the autograd engine, one per pass for all marked modules: these are
// reduced in the order in which they were marked, equal on all ranks, whatever the order in which
// their gradients came. A pass that throws puts back what was set aside.
//
// Threads: those of the engine; one pass at a time per module, or nested ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "core/mutex.h"

namespace meshrun::detail {

class SharedGradients : public std::enable_shared_from_this<SharedGradients> {
 public:
  struct Options {
    bool mean = false;
    bool use_fp32 = true;
    int64_t bucket_bytes = 25 * 1024 * 1024;
  };
  // Keeps no reference to the parameters, which keep one to it.
  SharedGradients(c10::intrusive_ptr<c10d::ProcessGroup> group,
                  const std::vector<at::Tensor>& parameters, const Options& options);

  // By the index of a parameter; within a backward pass.
  void before_accumulation(size_t index);
  void after_accumulation(size_t index);
  // The parameter is shared no more.
  void leave(size_t index);

  // Tensors of one dtype on their way together.
  struct Bucket;
  // Collective: starts the reduction of what has been added since it was set aside, also of
  // nothing, and puts back what was. Then, of every bucket: wait(), add().
  void start(std::vector<Bucket>& buckets);
  void put_back();
  // When this was made, among all of the process.
  uint64_t order() const { return order_; }

 private:
  struct Slot {
    explicit Slot(const at::Tensor& of);
    at::Tensor lock() const { return at::Tensor(parameter.lock()); }  // undefined: gone

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    // As the ranks agreed, for when it is gone.
    std::vector<int64_t> shape;
    at::ScalarType type;
    bool has_left = false;
    bool is_set_aside = false;
    bool is_reached = false;
    at::Tensor before;  // set aside
  };
  struct Contribution;
  std::vector<Contribution> take();

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const Options options_;
  const uint64_t order_;
  Mutex mu_;
  std::vector<Slot> slots_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::detail
