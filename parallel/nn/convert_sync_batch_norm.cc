#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm_native.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "parallel/nn/sync_batch_norm.h"

namespace meshrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// What tells a converted module in the arguments of aten::batch_norm; undefined: nothing does.
template <typename Norm>
Tensor mark_of(const Norm& norm) {
  return norm.weight.defined() ? norm.weight : norm.running_mean;
}

// A converted module.
struct ConvertedNorm {
  GroupArgument group;
  // Absent: with running statistics, so that aten::batch_norm says itself whether it is training.
  std::optional<std::weak_ptr<const torch::nn::Module>> module;

  bool is_evaluating() const {
    if (!module) return false;
    const auto alive = module->lock();
    return alive && !alive->is_training();
  }
};

// By mark. A weak reference keeps the address of a mark from being used again.
class ConvertedNorms {
 public:
  void add(const Tensor& mark, const ConvertedNorm& norm) {
    const MutexLock lock(mu_);
    std::erase_if(norms_, [](const auto& entry) { return entry.second.alive.expired(); });
    norms_.insert_or_assign(mark.unsafeGetTensorImpl(), Entry{Weak(mark.getIntrusivePtr()), norm});
  }
  std::optional<ConvertedNorm> find(const Tensor& mark) const {
    const MutexLock lock(mu_);
    const auto found = norms_.find(mark.unsafeGetTensorImpl());
    if (found == norms_.end()) return std::nullopt;
    return found->second.norm;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak alive;
    ConvertedNorm norm;
  };
  mutable Mutex mu_;
  std::map<const c10::TensorImpl*, Entry> norms_ MESHRUN_GUARDED_BY(mu_);
};

// Never destroyed: groups in it may end later than static objects.
ConvertedNorms& converted_norms() {
  static auto& norms = *new ConvertedNorms;
  return norms;
}

Tensor batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                  const OptionalTensor& running_mean, const OptionalTensor& running_var,
                  bool training, double momentum, double eps, bool cudnn_enabled) {
  const auto value = [](const OptionalTensor& tensor) { return tensor.value_or(Tensor()); };
  if (training) {
    const Tensor mark = value(weight).defined() ? *weight : value(running_mean);
    if (mark.defined()) {
      const std::optional<ConvertedNorm> norm = converted_norms().find(mark);
      // Without running statistics LibTorch passes `training` in evaluation too.
      if (norm && !norm->is_evaluating()) {
        return sync_batch_norm(input, value(weight), value(bias), value(running_mean),
                               value(running_var), momentum, eps, norm->group);
      }
    }
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum,
                                eps, cudnn_enabled);
}

// From the first conversion on; before it nothing of LibTorch's is changed. The operator is a
// composite one, whose own kernel goes before one for the alias Autograd.
void register_kernel() {
  static const auto register_for = [](c10::DispatchKey key) {
    // Never destroyed: the dispatcher may be gone before static objects are.
    auto& library = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library.impl("batch_norm", TORCH_FN(batch_norm));
    return true;
  };
  static const bool on_cpu = register_for(c10::DispatchKey::AutogradCPU);
  static const bool on_cuda = register_for(c10::DispatchKey::AutogradCUDA);
  static_cast<void>(on_cpu && on_cuda);
}

}  // namespace

int64_t convert_sync_batch_norm(torch::nn::Module& module, const GroupArgument& group) {
  std::vector<std::pair<Tensor, ConvertedNorm>> norms;
  module.apply(
      [&](const std::string& name, torch::nn::Module& child) {
        const auto add = [&](const auto* norm) {
          if (norm == nullptr) return;
          const Tensor mark = mark_of(*norm);
          TORCH_CHECK_VALUE(mark.defined(), "BatchNorm '", name,
                            "' has neither parameters nor running statistics: use SyncBatchNorm");
          ConvertedNorm converted{.group = group, .module = std::nullopt};
          if (!norm->options.track_running_stats()) {
            converted.module = child.weak_from_this();
            TORCH_CHECK_VALUE(!converted.module->expired(), "BatchNorm '", name,
                              "' has no running statistics and no shared_ptr owns it, so nobody "
                              "can tell evaluation from training: use SyncBatchNorm");
          }
          norms.emplace_back(mark, std::move(converted));
        };
        add(dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&child));
        add(dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&child));
        add(dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&child));
      },
      /*name_prefix=*/std::string());
  if (!norms.empty()) register_kernel();
  for (const auto& [mark, norm] : norms) converted_norms().add(mark, norm);
  return static_cast<int64_t>(norms.size());
}

}  // namespace meshrun
