// Bool and integer parameters that take nothing else.
//
//   at::Tensor all_gather_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
//                           BoolArgument use_fp32, const GroupArgument& group);
//   all_gather_v(x, {}, 0, "spatial");    does not compile: a string is not a bool
//
// A plain bool parameter takes strings, pointers, handles and numbers, and a plain integer takes
// bools, characters and fractions: a call that leaves out an argument then means something else,
// without a warning. These two take their own kind:
//
//   BoolArgument   bool
//   IntArgument    every integer type but bool and the character types; int8_t and uint8_t are
//                  numbers here, as they are dtypes in LibTorch. A number beyond int64_t becomes
//                  the nearest one, which every check of a range refuses
//
// Neither takes {}, an enum, a floating-point value, a pointer, a string or an object that converts
// to a number. Members of options take the same types.
//
// Values: as cheap as what they hold, which they convert to. No errors at run time.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>

namespace meshrun {

namespace detail {

template <typename T, typename... Others>
inline constexpr bool kIsOneOf = (std::same_as<T, Others> || ...);

template <typename T>
concept Number = std::integral<T> && !kIsOneOf<T, bool, char, wchar_t, char8_t, char16_t, char32_t>;

}  // namespace detail

class BoolArgument {
 public:
  template <std::same_as<bool> T>
  constexpr BoolArgument(T value) : value_(value) {}  // NOLINT(google-explicit-constructor)
  constexpr operator bool() const { return value_; }  // NOLINT(google-explicit-constructor)

 private:
  bool value_;
};

class IntArgument {
 public:
  template <detail::Number T>
  constexpr IntArgument(T value)  // NOLINT(google-explicit-constructor)
      : value_(std::in_range<int64_t>(value) ? static_cast<int64_t>(value)
                                             : std::numeric_limits<int64_t>::max()) {}
  constexpr operator int64_t() const { return value_; }  // NOLINT(google-explicit-constructor)

  // For what counts in int; a number beyond it becomes the nearest one too.
  constexpr int to_int() const {
    return static_cast<int>(std::clamp<int64_t>(value_, std::numeric_limits<int>::min(),
                                                std::numeric_limits<int>::max()));
  }

 private:
  int64_t value_;
};

}  // namespace meshrun
