// Arguments of C functions: pointers, arrays of the caller, options as JSON.
//
// Errors: CallError with MESHRUN_INVALID_ARGUMENT, which names the argument and its value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/c_api/meshrun.h"

namespace meshrun::c_api {

void require_pointer(const void* pointer, const char* name);
// Raises for null too.
std::string required_text(const char* text, const char* name);

// "inputs[1]": an array as a tensor sees it, without LibTorch.
struct ArrayView {
  void* data = nullptr;
  int32_t dtype = MESHRUN_FLOAT32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};
ArrayView view_of(const meshrun_array& array, const std::string& name);
// `name`: "inputs". At least one.
std::vector<ArrayView> views_of(const meshrun_array* arrays, int32_t count,
                                const std::string& name);

const char* dtype_name(int32_t dtype);

// A JSON object whose members are asked for by name; finish() names those that nobody asked for.
class Options {
 public:
  // `text` null or empty: none. `owner` begins the messages: "unet".
  Options(const char* text, std::string owner);

  int64_t integer(const char* name, int64_t otherwise);
  double number(const char* name, double otherwise);
  bool boolean(const char* name, bool otherwise);
  std::string text(const char* name, const std::string& otherwise);
  std::vector<int64_t> integers(const char* name, const std::vector<int64_t>& otherwise);
  std::vector<double> numbers(const char* name, const std::vector<double>& otherwise);
  std::vector<std::string> texts(const char* name, const std::vector<std::string>& otherwise);
  // Raises where it is missing.
  int64_t required_integer(const char* name);
  std::vector<int64_t> required_integers(const char* name);
  void finish() const;

 private:
  // Null: absent. `kind` names what it should be.
  const nlohmann::json* find(const char* name, bool (*fits)(const nlohmann::json&),
                             const char* kind);

  const std::string owner_;
  nlohmann::json values_;
  std::vector<std::string> known_;
};

}  // namespace meshrun::c_api
