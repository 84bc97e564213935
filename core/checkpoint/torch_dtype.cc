#include "core/checkpoint/torch_dtype.h"

#include <array>
#include <string>
#include <utility>

namespace meshrun {
namespace {

constexpr std::array<TorchDtype, 18> kTorchDtypes = {{
    {"bool", "BOOL", 1, "BoolStorage"},
    {"uint8", "U8", 1, "ByteStorage"},
    {"int8", "I8", 1, "CharStorage"},
    {"uint16", "U16", 2, ""},
    {"int16", "I16", 2, "ShortStorage"},
    {"uint32", "U32", 4, ""},
    {"int32", "I32", 4, "IntStorage"},
    {"uint64", "U64", 8, ""},
    {"int64", "I64", 8, "LongStorage"},
    {"float8_e4m3fn", "F8_E4M3", 1, ""},
    {"float8_e5m2", "F8_E5M2", 1, ""},
    {"float8_e8m0fnu", "F8_E8M0", 1, ""},
    {"float16", "F16", 2, "HalfStorage", true},
    {"bfloat16", "BF16", 2, "BFloat16Storage", true},
    {"float32", "F32", 4, "FloatStorage", true},
    {"float64", "F64", 8, "DoubleStorage", true},
    {"complex64", "C64", 8, "ComplexFloatStorage", true, true},
    {"complex128", "F64", 16, "ComplexDoubleStorage", true, true},
}};

}  // namespace

TensorInfo TorchDtype::Tell(std::vector<int64_t> shape) const {
  if (bytes == 16) shape.push_back(2);
  return {.dtype = std::string(dtype), .shape = std::move(shape)};
}

const TorchDtype* FindTorchDtype(const PickleValue& value) {
  if (!value.Is(PickleValue::Kind::kName) || value.name->module != "torch") return nullptr;
  const std::string_view name = value.name->name;
  for (const TorchDtype& dtype : kTorchDtypes) {
    if (name == dtype.torch || (!dtype.storage.empty() && name == dtype.storage)) return &dtype;
  }
  return nullptr;
}

}  // namespace meshrun
