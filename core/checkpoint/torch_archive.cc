#include "core/checkpoint/torch_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/checkpoint/pickle_text.h"
#include "core/checkpoint/torch_dtype.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

constexpr std::string_view kZipMagic = "PK\x03\x04";
// The pickled number that files of torch before 1.6 begin with.
constexpr std::string_view kLegacyMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

// What a tensor is that is rebuilt by another function than those of strided ones.
std::string_view KindOfTensor(std::string_view function) {
  if (function == "_rebuild_sparse_tensor") return "a sparse tensor";
  if (function == "_rebuild_qtensor") return "a quantized tensor";
  if (function == "_rebuild_nested_tensor") return "a nested tensor";
  if (function == "_rebuild_meta_tensor_no_storage") return "a tensor of the meta device";
  if (function == "_rebuild_wrapper_subclass") return "a tensor of another class than torch.Tensor";
  if (function == "_rebuild_from_type_v2") return "a tensor of another class than torch.Tensor";
  return "a tensor of a device without storages";
}

absl::Status CheckMagic(const FileRegion& region) {
  std::string begin(std::min<uint64_t>(region.size(), kLegacyMagic.size()), '\0');
  MESHRUN_RETURN_IF_ERROR(region.Read(0, begin));
  if (begin.starts_with(kZipMagic)) return absl::OkStatus();
  if (begin == kLegacyMagic) {
    return absl::UnimplementedError(
        fmt::format("{} is a torch.save() file in the format before torch 1.6, which is not read: "
                    "load it in a current torch and save it again",
                    region.Describe()));
  }
  return absl::DataLossError(fmt::format(
      "{} is not a file of torch.save(): it does not begin as a zip", region.Describe()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TorchArchive>> TorchArchive::Open(const FileRegion& region) {
  MESHRUN_RETURN_IF_ERROR(CheckMagic(region));
  MESHRUN_ASSIGN_OR_RETURN(ZipFile zip, ZipFile::Open(region));
  const std::string prefix = zip.first_name().substr(0, zip.first_name().find('/') + 1);
  if (zip.Has(prefix + "constants.pkl") || zip.HasPrefix(prefix + "code/")) {
    return absl::UnimplementedError(fmt::format(
        "{} is TorchScript, which is not read: save the state_dict() of the module with "
        "torch.save()",
        region.Describe()));
  }
  const std::string data = prefix + "data.pkl";
  if (prefix.empty() || !zip.Has(data)) {
    return absl::DataLossError(
        fmt::format("{} is a zip, but not of torch.save(): it has no data.pkl", region.Describe()));
  }
  if (zip.Has(prefix + "byteorder")) {
    MESHRUN_ASSIGN_OR_RETURN(const FileRegion member, zip.Find(prefix + "byteorder"));
    MESHRUN_ASSIGN_OR_RETURN(const std::string order, member.ReadAll(16, "byteorder"));
    if (order != "little") {
      return absl::UnimplementedError(
          fmt::format("{} has the byte order '{}', and only little-endian files are read",
                      region.Describe(), EscapeControls(order)));
    }
  }
  MESHRUN_ASSIGN_OR_RETURN(const FileRegion member, zip.Find(data));
  MESHRUN_ASSIGN_OR_RETURN(std::string bytes, member.ReadAll(kLongestPickle, "data.pkl"));
  std::unique_ptr<TorchArchive> archive(new TorchArchive(std::move(zip), prefix));
  MESHRUN_ASSIGN_OR_RETURN(
      archive->pickle_,
      ReadPickle(fmt::format("{}: {}", region.Describe(), EscapeControls(data)), std::move(bytes)));
  return archive;
}

bool TorchArchive::IsTensor(const PickleValue& value) {
  if (!value.Is(PickleValue::Kind::kCall)) return false;
  const PickleName& name = *value.object->name;
  return name.module == "torch._utils" || name.module == "torch._tensor";
}

absl::StatusOr<StridedTensor> TorchArchive::Tensor(const PickleValue& value,
                                                   const std::string& name) const {
  if (!IsTensor(value)) return Damaged(name, "is not a tensor");
  std::string_view function = value.object->name->name;
  const std::vector<PickleValue>* arguments = &value.items();
  // Parameters and tensors with attributes wrap the call of a tensor: each at most once.
  for (int depth = 0; depth < 4; ++depth) {
    const std::vector<PickleValue>& wrapper = *arguments;
    if (function.starts_with("_rebuild_parameter") && !wrapper.empty() && IsTensor(wrapper[0])) {
      function = wrapper[0].object->name->name;
      arguments = &wrapper[0].items();
    } else if (function == "_rebuild_from_type_v2" && wrapper.size() == 4 &&
               wrapper[0].Is(PickleValue::Kind::kName) && wrapper[1].Is(PickleValue::Kind::kName) &&
               (wrapper[1].name->name == "Tensor" || wrapper[1].name->name == "Parameter")) {
      function = wrapper[0].name->name;
      arguments = &wrapper[2].items();
    }
  }
  const bool v3 = function == "_rebuild_tensor_v3";
  if (!v3 && function != "_rebuild_tensor_v2" && function != "_rebuild_tensor") {
    return Unread(name, fmt::format("is {} ({})", KindOfTensor(function), function));
  }
  const std::vector<PickleValue>& items = *arguments;
  if (items.size() < (v3 ? 7 : 4) || !items[0].Is(PickleValue::Kind::kStorage) ||
      items[0].items().size() < 5 || !items[1].Is(PickleValue::Kind::kInt)) {
    return Damaged(name, "has impossible arguments");
  }
  const PickleValue& type = v3 ? items[6] : items[0].items()[1];
  const TorchDtype* dtype = FindTorchDtype(type);
  if (dtype == nullptr) return Unread(name, fmt::format("has the dtype {}", type.Describe()));
  auto shape = PickleDimensions(items[2]);
  auto strides = PickleDimensions(items[3]);
  if (!shape || !strides) return Damaged(name, "has an impossible shape");
  MESHRUN_ASSIGN_OR_RETURN(FileRegion storage, Storage(items[0], dtype->bytes, name));
  StridedTensor tensor = {.info = dtype->Tell(*shape),
                          .storage = std::move(storage),
                          .element_bytes = dtype->bytes,
                          .offset = items[1].integer,
                          .shape = *std::move(shape),
                          .strides = *std::move(strides)};
  const size_t flags_at = v3 ? 7 : 6;
  const std::vector<PickleValue>& flags =
      flags_at < items.size() ? items[flags_at].items() : PickleValue().items();
  if (flags.size() > 2 * kMostDimensions) return Damaged(name, "has impossible flags");
  for (size_t k = 0; k + 1 < flags.size(); k += 2) {
    if (!flags[k + 1].Is(PickleValue::Kind::kBool) || flags[k + 1].integer == 0) continue;
    const std::string flag = PickleText(flags[k]);
    if (flag == "neg" && dtype->negatable) {
      tensor.negates_first = !tensor.negates_first;
      tensor.negates_second = !tensor.negates_second;
    } else if (flag == "conj" && dtype->complex) {
      tensor.negates_second = !tensor.negates_second;
    } else {
      return Unread(name, fmt::format("is a view with the flag '{}'", EscapeControls(flag)));
    }
  }
  const std::string subject = fmt::format("'{}'", EscapeControls(name));
  if (const auto bytes = TensorBytes(subject, tensor.info); !bytes.ok()) {
    return absl::DataLossError(fmt::format("{} is damaged: {}", zip_.region().Describe(),
                                           std::string(bytes.status().message())));
  }
  MESHRUN_RETURN_IF_ERROR(CheckStrides(tensor, subject));
  return tensor;
}

absl::StatusOr<FileRegion> TorchArchive::Storage(const PickleValue& storage, uint64_t element_bytes,
                                                 const std::string& name) const {
  const std::vector<PickleValue>& items = storage.items();
  const PickleValue& type = items[1];
  const PickleValue& key = items[2];
  const PickleValue& count = items[4];
  if (!type.Is(PickleValue::Kind::kName) || !key.Is(PickleValue::Kind::kText) ||
      !count.Is(PickleValue::Kind::kInt) || count.integer < 0) {
    return Damaged(name, "has an impossible storage");
  }
  // An untyped storage counts bytes.
  if (type.name->name == "UntypedStorage") element_bytes = 1;
  MESHRUN_ASSIGN_OR_RETURN(FileRegion member,
                           zip_.Find(fmt::format("{}data/{}", prefix_, key.text())));
  if (member.size() % element_bytes != 0 ||
      member.size() / element_bytes != static_cast<uint64_t>(count.integer)) {
    return Damaged(name, fmt::format("has a storage of {} bytes, and {} elements of {} were saved",
                                     member.size(), count.integer, element_bytes));
  }
  return member;
}

absl::Status TorchArchive::Damaged(const std::string& name, std::string_view reason) const {
  return absl::DataLossError(fmt::format("{} is damaged: tensor '{}' {}", zip_.region().Describe(),
                                         EscapeControls(name), reason));
}

absl::Status TorchArchive::Unread(const std::string& name, std::string_view reason) const {
  return absl::UnimplementedError(fmt::format("{}: tensor '{}' {}, which is not read",
                                              zip_.region().Describe(), EscapeControls(name),
                                              reason));
}

}  // namespace meshrun
