#include "core/checkpoint/torch_names.h"

#include <fmt/format.h>

#include <utility>

#include "core/checkpoint/pickle_text.h"
#include "core/checkpoint/torch_archive.h"
#include "core/status.h"
#include "core/utf8.h"

namespace meshrun {
namespace {

constexpr int kDeepest = 64;

class TorchNaming {
 public:
  // Values that are shared count each time, so that few bytes could stand for endlessly many names.
  TorchNaming(const std::string& where, const Pickle& pickle)
      : where_(where), budget_(128 * pickle.bytes.size() + (1 << 20)) {}

  absl::Status Add(const std::string& name, const PickleValue& value, int depth);

  TorchNames Take() && { return std::move(names_); }

 private:
  absl::Status AddAll(const std::string& name, const PickleValue& value, int depth);
  absl::StatusOr<std::string> Key(const std::string& name, const PickleValue& key);

  const std::string& where_;
  uint64_t budget_;  // bytes of names and notes that may still come
  TorchNames names_;
};

absl::Status TorchNaming::Add(const std::string& name, const PickleValue& value, int depth) {
  using Kind = PickleValue::Kind;
  std::string text;
  const bool nested = value.Is(Kind::kDict) || value.Is(Kind::kList) || value.Is(Kind::kTuple) ||
                      value.Is(Kind::kSet);
  const bool tensor = TorchArchive::IsTensor(value);
  if (!nested && !tensor) text = PickleText(value);
  const uint64_t cost = (tensor ? 1024 : 32) + name.size() + text.size();
  if (cost > budget_ || depth > kDeepest) {
    return absl::DataLossError(fmt::format(
        "{} is damaged: values at '{}' are nested too deeply, or stand for more than the file has",
        where_, EscapeControls(Utf8Prefix(name, 200))));
  }
  budget_ -= cost;
  if (nested) return AddAll(name, value, depth);
  std::string shown = name;
  if (name.empty()) shown = tensor ? kUnnamedTensor : kUnnamedValue;
  if (!tensor) {
    names_.notes.insert_or_assign(std::move(shown), std::move(text));
  } else if (!names_.tensors.emplace(shown, &value).second) {
    return absl::UnimplementedError(fmt::format(
        "{}: two tensors have the name '{}' once it is joined", where_, EscapeControls(shown)));
  }
  return absl::OkStatus();
}

absl::Status TorchNaming::AddAll(const std::string& name, const PickleValue& value, int depth) {
  const std::string prefix = depth == 0 ? "" : name + ".";
  const std::vector<PickleValue>& items = value.items();
  if (!value.Is(PickleValue::Kind::kDict)) {
    for (size_t k = 0; k < items.size(); ++k) {
      MESHRUN_RETURN_IF_ERROR(Add(fmt::format("{}{}", prefix, k), items[k], depth + 1));
    }
    return absl::OkStatus();
  }
  for (size_t k = 0; k + 1 < items.size(); k += 2) {
    MESHRUN_ASSIGN_OR_RETURN(const std::string key, Key(name, items[k]));
    MESHRUN_RETURN_IF_ERROR(Add(prefix + key, items[k + 1], depth + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TorchNaming::Key(const std::string& name, const PickleValue& key) {
  using Kind = PickleValue::Kind;
  switch (key.kind) {
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kText:
    case Kind::kName:
      return PickleText(key);
    case Kind::kTuple: {
      // Such as (0, "weight").
      std::string text;
      for (const PickleValue& item : key.items()) {
        if (item.HasObject() || text.size() > budget_) break;
        text += (text.empty() ? "(" : ", ") + PickleText(item);
      }
      return text + ")";
    }
    default:
      return absl::UnimplementedError(
          fmt::format("{}: a key of the dict '{}' is {}, which is not read", where_,
                      EscapeControls(Utf8Prefix(name, 200)), key.Describe()));
  }
}

}  // namespace

absl::StatusOr<TorchNames> NameTorchValues(const std::string& where, const Pickle& pickle) {
  TorchNaming naming(where, pickle);
  MESHRUN_RETURN_IF_ERROR(naming.Add("", pickle.root, 0));
  return std::move(naming).Take();
}

}  // namespace meshrun
