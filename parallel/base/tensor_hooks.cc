#include "parallel/base/tensor_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace meshrun::detail {

void keep_hooks(const at::TensorBase& tensor) {
  auto* const meta = torch::autograd::impl::materialize_autograd_meta(tensor);
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> others;
  {
    const std::lock_guard lock(meta->mutex_);
    if (meta->cpp_hooks_list_ != nullptr) return;
    others.swap(meta->hooks_);
  }
  torch::autograd::impl::create_cpp_hook(tensor);
  const std::lock_guard lock(meta->mutex_);
  meta->hooks_.insert(meta->hooks_.begin(), std::make_move_iterator(others.begin()),
                      std::make_move_iterator(others.end()));
}

}  // namespace meshrun::detail
