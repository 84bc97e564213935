#include "parallel/c_api/arguments.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/c_api/call_error.h"

namespace meshrun::c_api {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string text) {
  throw CallError(MESHRUN_INVALID_ARGUMENT, std::move(text));
}

bool is_integer(const json& value) { return value.is_number_integer(); }
bool is_number(const json& value) { return value.is_number(); }

template <bool (*kFits)(const json&)>
bool is_list_of(const json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), kFits);
}

std::vector<int64_t> dense_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(shape[i], 1);
  return strides;
}

}  // namespace

void require_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) refuse(fmt::format("the argument {} is a null pointer", name));
}

std::string required_text(const char* text, const char* name) {
  require_pointer(text, name);
  return text;
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case MESHRUN_FLOAT32:
      return "float32";
    case MESHRUN_FLOAT64:
      return "float64";
    case MESHRUN_INT32:
      return "int32";
    case MESHRUN_INT64:
      return "int64";
    default:
      return nullptr;
  }
}

ArrayView view_of(const meshrun_array& array, const std::string& name) {
  if (dtype_name(array.dtype) == nullptr) {
    refuse(
        fmt::format("{} has dtype {}: use MESHRUN_FLOAT32, MESHRUN_FLOAT64, MESHRUN_INT32 or "
                    "MESHRUN_INT64 (1 to 4)",
                    name, array.dtype));
  }
  if (array.dims < 0 || array.dims > MESHRUN_MAX_DIMS) {
    refuse(fmt::format("{} has {} dimensions: 0 to {} are possible", name, array.dims,
                       MESHRUN_MAX_DIMS));
  }
  if (array.order < MESHRUN_ROW_MAJOR || array.order > MESHRUN_STRIDED || array.reserved != 0) {
    refuse(
        fmt::format("{} has order {} and reserved {}: the order is MESHRUN_ROW_MAJOR, "
                    "MESHRUN_COLUMN_MAJOR or MESHRUN_STRIDED (0 to 2), and reserved is 0. Set all "
                    "members of a meshrun_array",
                    name, array.order, array.reserved));
  }
  ArrayView view{array.data, array.dtype, {array.shape, array.shape + array.dims}, {}};
  const bool is_empty = std::count(view.shape.begin(), view.shape.end(), 0) > 0;
  if (std::any_of(view.shape.begin(), view.shape.end(), [](int64_t size) { return size < 0; })) {
    refuse(fmt::format("{} has shape [{}]: extents are not negative", name,
                       fmt::join(view.shape, ", ")));
  }
  if (array.data == nullptr && !is_empty) {
    refuse(fmt::format(
        "{} of shape [{}] has a null pointer for its data (in Fortran: it is not contiguous)", name,
        fmt::join(view.shape, ", ")));
  }
  if (array.order == MESHRUN_STRIDED) {
    view.strides.assign(array.strides, array.strides + array.dims);
    if (std::any_of(view.strides.begin(), view.strides.end(), [](int64_t s) { return s < 0; })) {
      refuse(fmt::format("{} has strides [{}]: strides are not negative", name,
                         fmt::join(view.strides, ", ")));
    }
    return view;
  }
  if (array.order == MESHRUN_COLUMN_MAJOR) std::reverse(view.shape.begin(), view.shape.end());
  view.strides = dense_strides(view.shape);
  return view;
}

std::vector<ArrayView> views_of(const meshrun_array* arrays, int32_t count,
                                const std::string& name) {
  if (count < 1) refuse(fmt::format("{} has {} arrays: at least one is needed", name, count));
  require_pointer(arrays, name.c_str());
  std::vector<ArrayView> views;
  for (int32_t i = 0; i < count; ++i) {
    views.push_back(view_of(arrays[i], count == 1 ? name : fmt::format("{}[{}]", name, i)));
  }
  return views;
}

Options::Options(const char* text, std::string owner) : owner_(std::move(owner)) {
  values_ = json::object();
  if (text == nullptr || *text == '\0') return;
  values_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!values_.is_object()) {
    refuse(fmt::format("the options of \"{}\" are not a JSON object: {}", owner_, text));
  }
}

const json* Options::find(const char* name, bool (*fits)(const json&), const char* kind) {
  known_.emplace_back(name);
  const auto found = values_.find(name);
  if (found == values_.end()) return nullptr;
  if (!fits(*found)) {
    refuse(fmt::format("the option {} of \"{}\" is {}: {} is needed", name, owner_, found->dump(),
                       kind));
  }
  return &*found;
}

int64_t Options::integer(const char* name, int64_t otherwise) {
  const json* const value = find(name, is_integer, "an integer");
  return value == nullptr ? otherwise : value->get<int64_t>();
}

double Options::number(const char* name, double otherwise) {
  const json* const value = find(name, is_number, "a number");
  return value == nullptr ? otherwise : value->get<double>();
}

bool Options::boolean(const char* name, bool otherwise) {
  const auto is_boolean = [](const json& value) { return value.is_boolean(); };
  const json* const value = find(name, is_boolean, "true or false");
  return value == nullptr ? otherwise : value->get<bool>();
}

std::string Options::text(const char* name, const std::string& otherwise) {
  const auto is_text = [](const json& value) { return value.is_string(); };
  const json* const value = find(name, is_text, "a string");
  return value == nullptr ? otherwise : value->get<std::string>();
}

std::vector<int64_t> Options::integers(const char* name, const std::vector<int64_t>& otherwise) {
  const json* const value = find(name, is_list_of<is_integer>, "a list of integers");
  return value == nullptr ? otherwise : value->get<std::vector<int64_t>>();
}

std::vector<double> Options::numbers(const char* name, const std::vector<double>& otherwise) {
  const json* const value = find(name, is_list_of<is_number>, "a list of numbers");
  return value == nullptr ? otherwise : value->get<std::vector<double>>();
}

std::vector<std::string> Options::texts(const char* name,
                                        const std::vector<std::string>& otherwise) {
  const auto are_texts = [](const json& value) {
    return value.is_array() &&
           std::all_of(value.begin(), value.end(), [](const json& one) { return one.is_string(); });
  };
  const json* const value = find(name, are_texts, "a list of strings");
  return value == nullptr ? otherwise : value->get<std::vector<std::string>>();
}

int64_t Options::required_integer(const char* name) {
  if (!values_.contains(name)) {
    refuse(fmt::format("\"{}\" needs the option {}, an integer", owner_, name));
  }
  return integer(name, 0);
}

std::vector<int64_t> Options::required_integers(const char* name) {
  if (!values_.contains(name)) {
    refuse(fmt::format("\"{}\" needs the option {}, a list of integers", owner_, name));
  }
  return integers(name, {});
}

void Options::finish() const {
  for (const auto& [name, value] : values_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    refuse(
        fmt::format("\"{}\" has no option {}: it has {}", owner_, name, fmt::join(known_, ", ")));
  }
}

}  // namespace meshrun::c_api
