// What a training has beside its model and its optimizer, by names of the program's own:
// schedulers, an average of the parameters, a sampler, a loss scale.
//
//   KeptValues kept;
//   kept.keep("scheduler", scheduler);   // a torch::optim::LRScheduler
//   kept.keep("ema", *ema);              // a module: all its parameters and buffers
//   kept.keep("best", best_loss);        // a tensor
//   kept.keep("critic", critic_adam);    // another optimizer: Adam, AdamW or SGD
//   kept.keep("sampler", [&] { return sampler.to_string(); },
//             [&](const std::string& bytes) { sampler = Sampler::from_string(bytes); });
//   checkpoints.save(*model, optimizer, progress, kept);
//
// A checkpoint and a memory hold the values of one rank, and give them to all: what is kept is
// equal on all ranks, except the pieces of a module's sharded parameters. Tensors and schedulers
// must outlive this; restored tensors keep their memory (copy_). The program writes a kept tensor
// in place (best_loss.fill_(x)): `best_loss = x` makes another tensor, which is not kept.
//
// An optimizer's moments are kept, as "<name>.<moment>.<group>.<place>", with its counts of steps
// and its options; keep() makes moments of zeros if the optimizer has not stepped yet. The
// parameters that it steps belong to the module or are kept themselves.
//
// A scheduler's count of steps is kept. LibTorch's StepLR has no more state, and the learning rate
// goes along as an option of the optimizer. A scheduler with more state is kept by functions.
// LibTorch's ReduceLROnPlateauScheduler hides its state, and keep() does not take it.
//
// Threads: one at a time. Errors, c10::ValueError: a name is taken or empty, a tensor is undefined,
// or a ShardTensor; an optimizer has the option dampening, or its ranks hold the moments in pieces.
// c10::NotImplementedError: an optimizer of another kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/nn/sharded_parameters.h"

namespace meshrun {

namespace detail {

// What keep() takes after a name, without functions.
template <typename Value>
concept KeptAlone = std::is_convertible_v<Value, const at::Tensor&> ||
    std::is_convertible_v<Value, torch::nn::Module&> ||
    std::is_convertible_v<Value, torch::optim::LRScheduler&> ||
    std::is_convertible_v<Value, torch::optim::Optimizer&>;

// For assertions in what must not be called.
template <typename...>
inline constexpr bool kIsTaken = false;

}  // namespace detail

class KeptValues {
 public:
  using Save = std::function<std::string()>;
  using Load = std::function<void(const std::string& bytes)>;
  struct KeptTensor {
    at::Tensor tensor;
    std::optional<ParameterShard> shard = {};  // absent: every rank has all of it
    bool is_buffer = false;                    // of a module: its forward pass may write it
  };

  void keep(const std::string& name, const at::Tensor& tensor);
  // As "<name>.<name in the module>".
  void keep(const std::string& name, torch::nn::Module& module);
  void keep(const std::string& name, torch::optim::LRScheduler& scheduler);
  void keep(const std::string& name, torch::optim::Optimizer& optimizer);
  // `save` gives any bytes; `load` gets those of a `save`, perhaps another process's. Neither calls
  // a collective.
  void keep(const std::string& name, Save save, Load load);
  // Anything else does not compile, with one sentence.
  template <typename Value>
  requires(!detail::KeptAlone<Value>) void keep(const std::string&, Value&&) {
    static_assert(
        detail::kIsTaken<Value>,
        "keep(name, value) takes an at::Tensor, a torch::nn::Module (of a holder *holder), a "
        "torch::optim::LRScheduler or a torch::optim::Optimizer; a number is kept as a tensor of "
        "it, at::full({}, x), and anything else by two functions: keep(name, save, load)");
  }
  template <typename Saving, typename Loading>
  requires(!std::is_convertible_v<Saving, Save> ||
           !std::is_convertible_v<Loading, Load>) void keep(const std::string&, Saving&&,
                                                            Loading&&) {
    static_assert(detail::kIsTaken<Saving, Loading>,
                  "keep(name, save, load) takes two functions: std::string save() and void "
                  "load(const std::string& bytes)");
  }

  const std::map<std::string, KeptTensor>& tensors() const { return tensors_; }
  // Calls each `save`.
  std::map<std::string, std::string> saved() const;
  // Calls each `load` whose name is in `saved`.
  void load(const std::map<std::string, std::string>& saved) const;
  // Names of the kept tensors and bytes, sorted.
  std::vector<std::string> names() const;
  // No tensor lies in pieces on several ranks.
  bool is_whole() const;
  // Whether a kept optimizer steps it.
  bool is_stepped(const at::Tensor& parameter) const;
  // Raises c10::ValueError where a kept optimizer steps a parameter that is neither the module's
  // nor kept: its moments would go on without it.
  void check_stepped(const torch::nn::Module& module) const;
  // Takes the moments that kept optimizers have now, which are other tensors where an optimizer has
  // loaded a state since keep(). Whether any is another one.
  bool list_moments() const;

 private:
  struct KeptOptimizer {
    std::string name;
    torch::optim::Optimizer* optimizer = nullptr;
    bool has_moments = false;
    uint64_t token = 0;  // of the states whose moments are listed
  };
  struct Functions {
    Save save;
    Load load;
  };
  void add(const std::string& name, KeptTensor tensor);
  void check_name(const std::string& name) const;

  mutable std::map<std::string, KeptTensor> tensors_;
  mutable std::vector<KeptOptimizer> optimizers_;
  std::map<std::string, Functions> functions_;
  std::set<const c10::TensorImpl*> stepped_;
};

// One sentence where the names differ, with both lists; else empty. `source`: what has `theirs`,
// "the checkpoint DIR/step-3". Both are sorted.
std::string difference_of_names(const std::string& source, const std::vector<std::string>& theirs,
                                const std::vector<std::string>& ours);
// For equal names: one sentence if a value is a tensor on one side and bytes on the other; else
// empty.
std::string difference_of_kinds(const std::string& source,
                                const std::set<std::string>& their_tensors, const KeptValues& ours);

}  // namespace meshrun
