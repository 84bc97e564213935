#include "core/checkpoint/pickle_names.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace meshrun {
namespace {

struct Names {
  std::string_view module;
  PickleUse use;
  std::vector<std::string_view> names;
};

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
// What held TensorProperties until torch 2.2.
constexpr std::string_view kShardMetadata = "torch.distributed._shard.sharded_tensor.metadata";

std::vector<PickleName> AllNames() {
  const std::vector<std::string_view> builtin_values = {"bool", "dict", "float", "int",
                                                        "list", "str",  "tuple"};
  const std::vector<std::string_view> builtin_calls = {"bytearray", "bytes", "complex",
                                                       "range",     "slice", "xrange"};
  const std::vector<std::string_view> builtin_lists = {"frozenset", "set"};
  const std::vector<Names> all = {
      {"torch",
       PickleUse::kValue,
       {"bfloat16",
        "bool",
        "complex128",
        "complex32",
        "complex64",
        "float16",
        "float32",
        "float4_e2m1fn_x2",
        "float64",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "int16",
        "int32",
        "int64",
        "int8",
        "qint32",
        "qint8",
        "quint2x4",
        "quint4x2",
        "quint8",
        "uint16",
        "uint32",
        "uint64",
        "uint8"}},
      {"torch",
       PickleUse::kValue,
       {"BFloat16Storage", "BoolStorage", "ByteStorage", "CharStorage", "ComplexDoubleStorage",
        "ComplexFloatStorage", "DoubleStorage", "FloatStorage", "HalfStorage", "IntStorage",
        "LongStorage", "QInt32Storage", "QInt8Storage", "QUInt2x4Storage", "QUInt4x2Storage",
        "QUInt8Storage", "ShortStorage"}},
      {"torch.storage", PickleUse::kValue, {"TypedStorage", "UntypedStorage"}},
      {"torch",
       PickleUse::kValue,
       {"Tensor", "per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric",
        "per_tensor_affine", "per_tensor_symmetric"}},
      {"torch.nn.parameter", PickleUse::kValue, {"Parameter"}},
      {"torch", PickleUse::kCall, {"Size", "device"}},
      {"torch.serialization", PickleUse::kCall, {"_get_layout"}},
      // Also those of tensors that are refused, so that the refusal can name the tensor.
      {"torch._utils",
       PickleUse::kCall,
       {"_rebuild_device_tensor_from_cpu_tensor", "_rebuild_device_tensor_from_numpy",
        "_rebuild_meta_tensor_no_storage", "_rebuild_nested_tensor", "_rebuild_parameter",
        "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor",
        "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3",
        "_rebuild_wrapper_subclass"}},
      {"torch._tensor", PickleUse::kCall, {"_rebuild_from_type_v2"}},
      {kMetadata,
       PickleUse::kCall,
       {"BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata"}},
      {kMetadata, PickleUse::kEnum, {"_MEM_FORMAT_ENCODING"}},
      {kShardMetadata, PickleUse::kCall, {"TensorProperties"}},
      {kShardMetadata, PickleUse::kEnum, {"MEM_FORMAT_ENCODING"}},
      {"torch.distributed.checkpoint.filesystem",
       PickleUse::kCall,
       {"_StorageInfo", "_StoragePrefix"}},
      {"pathlib",
       PickleUse::kCall,
       {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"}},
      {"pathlib._local",
       PickleUse::kCall,
       {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"}},
      {"collections", PickleUse::kDict, {"Counter", "OrderedDict", "defaultdict"}},
      {"collections", PickleUse::kList, {"deque"}},
      {"_codecs", PickleUse::kCall, {"encode"}},
      // Protocol 2 writes the modules' names of Python 2.
      {"builtins", PickleUse::kValue, builtin_values},
      {"__builtin__", PickleUse::kValue, builtin_values},
      {"builtins", PickleUse::kCall, builtin_calls},
      {"__builtin__", PickleUse::kCall, builtin_calls},
      {"builtins", PickleUse::kList, builtin_lists},
      {"__builtin__", PickleUse::kList, builtin_lists},
      {"builtins", PickleUse::kGetattr, {"getattr"}},
      {"__builtin__", PickleUse::kGetattr, {"getattr"}},
      {"numpy", PickleUse::kCall, {"dtype"}},
      {"numpy", PickleUse::kValue, {"ndarray"}},
      {"numpy._core.multiarray", PickleUse::kCall, {"_reconstruct", "scalar"}},
      {"numpy.core.multiarray", PickleUse::kCall, {"_reconstruct", "scalar"}},
      {"numpy._core.numeric", PickleUse::kCall, {"_frombuffer"}},
      {"numpy.core.numeric", PickleUse::kCall, {"_frombuffer"}},
  };
  std::vector<PickleName> names;
  for (const Names& group : all) {
    for (const std::string_view name : group.names) {
      names.push_back({group.module, name, group.use});
    }
  }
  std::ranges::sort(names, {}, [](const PickleName& n) { return std::tie(n.module, n.name); });
  return names;
}

}  // namespace

const PickleName* FindPickleName(std::string_view module, std::string_view name) {
  static const std::vector<PickleName>& names = *new std::vector<PickleName>(AllNames());
  const auto at =
      std::ranges::lower_bound(names, std::tie(module, name), {},
                               [](const PickleName& n) { return std::tie(n.module, n.name); });
  return at != names.end() && at->module == module && at->name == name ? &*at : nullptr;
}

}  // namespace meshrun
