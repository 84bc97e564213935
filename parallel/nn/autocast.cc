#include "parallel/nn/autocast.h"

#include "c10/util/Exception.h"

namespace meshrun {

using at::Tensor;

namespace {

c10::DeviceType checked(c10::DeviceType device) {
  TORCH_CHECK_VALUE(at::autocast::is_autocast_available(device), "Autocast knows no device ",
                    device);
  return device;
}

}  // namespace

AutocastGuard::AutocastGuard(c10::DeviceType device, BoolArgument enabled, at::ScalarType dtype,
                             BoolArgument cache)
    : device_(checked(device)),
      was_enabled_(at::autocast::is_autocast_enabled(device)),
      former_dtype_(at::autocast::get_autocast_dtype(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(cache);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, former_dtype_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
}

namespace detail {

Tensor in_float32(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

}  // namespace detail
}  // namespace meshrun
