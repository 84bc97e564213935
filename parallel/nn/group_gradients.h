// Gradients that the ranks of a group reduce at the end of each backward pass, between the pass's
// hooks and its end: of modules that are marked as shared, and of what distribute_module() keeps
// whole.
//
//   before_accumulation   sets aside what the gradient holds; the gradient then has only what this
//                         pass adds
//   after_accumulation    notes that the pass has added to it
//   the end of the pass   reduces all that the pass has added, and adds what was set aside
//
// The end is a callback of the autograd engine, one per pass for all marked modules. It reduces
// them in the order in which they were marked, which is equal on all ranks, whatever the order of
// their gradients. If a pass throws, what was set aside is put back.
//
// Threads: those of the engine; one pass at a time per module, or nested ones.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace meshrun::detail {

class GroupGradients : public std::enable_shared_from_this<GroupGradients> {
 public:
  struct Options {
    bool mean = false;
    bool use_fp32 = true;
    int64_t bucket_bytes = 25 * 1024 * 1024;
    // Names of the parameters, for the comparison of the ranks' values at the first reduction;
    // empty: the values are known to be equal.
    std::vector<std::string> names = {};
  };
  // Holds no reference to the parameters; they hold one to it.
  GroupGradients(c10::intrusive_ptr<c10d::ProcessGroup> group,
                 const std::vector<at::Tensor>& parameters, const Options& options);

  // By the index of a parameter; within a backward pass.
  void before_accumulation(size_t index);
  void after_accumulation(size_t index);
  // The parameter is shared no more.
  void leave(size_t index);

  // Collective: raises SharedModuleError on all ranks if their values of a parameter differ. Once,
  // before anything is reduced; again after an error.
  void compare_values();
  // Tensors of one dtype on their way together.
  struct Bucket;
  // Collective: starts the reduction of what this pass has added, even if that is nothing, and puts
  // back what was set aside. The caller then calls add() of every bucket.
  void start(std::vector<Bucket>& buckets);
  void put_back();
  // Counts the objects of this process in the order in which they were made.
  uint64_t order() const { return order_; }
  const c10d::ProcessGroup& group() const { return *group_; }
  bool is_mean() const { return options_.mean; }

 private:
  struct Slot {
    explicit Slot(const at::Tensor& of);
    at::Tensor lock() const { return at::Tensor(parameter.lock()); }  // undefined: gone

    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
    // For when it is gone: as the ranks agreed, and as last seen, since to() may change it.
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
  const uint64_t number_;  // of the group's, in the order in which they were made
  Mutex mu_;
  std::vector<Slot> slots_ MESHRUN_GUARDED_BY(mu_);
  bool are_compared_ MESHRUN_GUARDED_BY(mu_) = false;
};

// Tells the pass what has arrived at a parameter. Its presence is the mark.
struct GroupGradientHook : torch::autograd::PostAccumulateGradHook {
  GroupGradientHook(std::shared_ptr<GroupGradients> its_gradients, size_t its_index)
      : gradients(std::move(its_gradients)), index(its_index) {}
  void operator()(const at::Tensor&) override { gradients->after_accumulation(index); }

  const std::shared_ptr<GroupGradients> gradients;
  const size_t index;
  unsigned before_hook = 0;  // the other hook's handle
};

// Null where the parameter has none.
GroupGradientHook* mark_of(const at::Tensor& parameter);
// Whether it has a post-accumulate hook of another kind.
bool has_other_hook(const at::Tensor& parameter);
// Marks the parameters, which have neither: from now on each pass reduces what it adds to them.
void reduce_gradients_over(c10::intrusive_ptr<c10d::ProcessGroup> group,
                           const std::vector<at::Tensor>& parameters,
                           const GroupGradients::Options& options);

}  // namespace meshrun::detail
