#include "parallel/checkpoint/stored_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include <cstring>

namespace meshrun {
namespace {

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return "BOOL";
    case at::kByte:
      return "U8";
    case at::kChar:
      return "I8";
    case at::kUInt16:
      return "U16";
    case at::kShort:
      return "I16";
    case at::kUInt32:
      return "U32";
    case at::kInt:
      return "I32";
    case at::kUInt64:
      return "U64";
    case at::kLong:
      return "I64";
    case at::kFloat8_e4m3fn:
      return "F8_E4M3";
    case at::kFloat8_e5m2:
      return "F8_E5M2";
    case at::kFloat8_e8m0fnu:
      return "F8_E8M0";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kComplexFloat:
      return "C64";
    default:
      TORCH_CHECK_TYPE(false, "the safetensors format has no ", dtype);
  }
}

// The same memory in a dtype that every copy of LibTorch knows.
at::Tensor movable(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kUInt16:
      return tensor.view(at::kShort);
    case at::kUInt32:
      return tensor.view(at::kInt);
    case at::kUInt64:
      return tensor.view(at::kLong);
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
    case at::kFloat8_e8m0fnu:
      return tensor.view(at::kByte);
    default:
      return tensor;
  }
}

// A view of a dtype that the format has.
at::Tensor storable(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  return plain.scalar_type() == at::kComplexDouble ? at::view_as_real(plain) : plain;
}

}  // namespace

StoredTensor to_stored(const at::Tensor& tensor) {
  const at::Tensor source = storable(tensor.detach().resolve_conj().resolve_neg());
  const at::Tensor values = movable(source).cpu().contiguous();
  return {dtype_name(source.scalar_type()), values.sizes().vec(),
          std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes())};
}

void copy_stored(const StoredTensor& stored, const std::string& name, const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) {
    const at::Tensor plain = at::empty_like(tensor.detach().resolve_conj().resolve_neg());
    copy_stored(stored, name, plain);
    tensor.detach().copy_(plain);
    return;
  }
  const at::Tensor target = storable(tensor);
  TORCH_CHECK_VALUE(
      stored.dtype == dtype_name(target.scalar_type()) && target.sizes() == stored.shape, name,
      " is ", stored.dtype, " ", at::IntArrayRef(stored.shape), " in the file, but ",
      dtype_name(target.scalar_type()), " ", target.sizes(), " is asked for");
  const at::Tensor moved = movable(target);
  const at::Tensor values = at::empty(moved.sizes(), moved.options().device(at::kCPU));
  std::memcpy(values.mutable_data_ptr(), stored.bytes.data(), stored.bytes.size());
  const at::NoGradGuard no_grad;
  moved.copy_(values);
}

}  // namespace meshrun
