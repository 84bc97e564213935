// Mixed precision in bfloat16: float32 parameters, gradients and losses, bfloat16 in between.
//
//   Tensor predicted = in_bfloat16(x.device(), [&] { return model(x); });   // float32
//   mse_loss(predicted, y).backward();
//   optimizer.step();
//
// The recipe is all of that: the module's parameters stay float32 (they are the master copies);
// within in_bfloat16 LibTorch's autocast casts what matrix products, convolutions and attention
// read to bfloat16, and leaves norms' statistics and losses to float32; each cast's backward gives
// float32, so gradients accumulate over micro-batches and ranks in float32; results come back in
// float32, and the loss is computed on them. bfloat16 has float32's range: no loss scaling.
//
// How equal: a step's gradients differ from float32's by about 1e-2 in relative L2 per tensor, as
// bfloat16 has 8 bits; 1 and n ranks differ by as much, since each rank's share of a weight's
// gradient is rounded before the float32 sum.
//
// Threads: any; the state is the thread's. Errors: c10::ValueError for a device that has no
// autocast.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

// Autocast of one kind of device on this thread, and what it casts to, while the guard lives.
// Leaving the outermost one forgets cached casts, as torch.autocast does.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, BoolArgument enabled, at::ScalarType dtype = at::kBFloat16,
                BoolArgument cache = true);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const c10::DeviceType device_;
  const bool was_enabled_;
  const at::ScalarType former_dtype_;
  const bool was_cached_;
};

namespace detail {

at::Tensor in_float32(const at::Tensor& tensor);  // other dtypes are left alone

}  // namespace detail

// What `function` returns, a tensor or a vector of them, with bfloat16 and float16 made float32.
template <typename Function>
std::invoke_result_t<Function> in_bfloat16(c10::Device device, Function&& function) {
  auto result = [&] {
    const AutocastGuard autocast(device.type(), true);
    return std::forward<Function>(function)();
  }();
  if constexpr (std::is_same_v<decltype(result), std::vector<at::Tensor>>) {
    for (at::Tensor& tensor : result) tensor = detail::in_float32(tensor);
    return result;
  } else {
    return detail::in_float32(result);
  }
}

}  // namespace meshrun
