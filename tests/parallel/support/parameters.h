// Which values a bool or integer parameter of a public function takes, asked of the compiler.
//
//   EXPECT_TAKES_BOOL_ONLY(all_gather_v(x, sizes, 0, value));
//   EXPECT_TAKES_INTEGERS_ONLY(all_gather_v(x, sizes, value));
//
// `value` stands for the argument that is tried; everything else in the call must be at namespace
// scope, and need only be declared: nothing is called. A failure names the types that are taken and
// should not be, and those that should be and are not.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Scalar.h"
#include "c10/util/Half.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::parameters {

enum Plain { kPlain };
enum class Scoped { kScoped };

// Neither a bool nor an integer.
using Others =
    std::tuple<char, wchar_t, char8_t, char16_t, char32_t, float, double, long double, c10::Half,
               const char (&)[8], const char*, char*, std::string, std::string_view, std::nullptr_t,
               void*, const int*, void (*)(), Plain, Scoped, GroupArgument::Handle, GroupArgument,
               std::optional<std::string>, std::nullopt_t, std::optional<bool>,
               std::optional<double>, std::true_type, std::integral_constant<int, 0>,
               std::vector<bool>::reference, std::shared_ptr<int>, std::unique_ptr<int>,
               std::function<void()>, at::Tensor, c10::Scalar>;
using Integers = std::tuple<signed char, unsigned char, short, unsigned short, int, unsigned, long,
                            unsigned long, long long, unsigned long long, int8_t, uint8_t, int64_t,
                            uint64_t, size_t, const int&, int64_t&, IntArgument>;
using Bools = std::tuple<bool, bool&, const bool&, BoolArgument>;

template <typename T>
std::string name_of() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("T = ") + 4;
  return std::string(text.substr(begin, text.find_first_of(";]", begin) - begin));
}

// The types of the list that `Call` takes, if `taken`, else those that it refuses.
template <typename Call, typename... Ts>
std::string all_that_are(bool taken, const std::tuple<Ts...>*) {
  std::string names;
  const auto add = [&](bool is_taken, const std::string& name) {
    if (is_taken == taken) names += (names.empty() ? "" : ", ") + name;
  };
  (add(std::is_invocable_v<Call, Ts>, name_of<Ts>()), ...);
  return names;
}

template <typename Right, typename Wrong, typename Call>
std::string what_is_wrong(const Call&) {
  const auto part = [](const char* what, const std::string& names) {
    return names.empty() ? "" : what + names + "; ";
  };
  return part("refuses ", all_that_are<Call>(false, static_cast<Right*>(nullptr))) +
         part("takes ", all_that_are<Call>(true, static_cast<Wrong*>(nullptr))) +
         part("takes ", all_that_are<Call>(true, static_cast<Others*>(nullptr)));
}

}  // namespace meshrun::parameters

// A function object that can be called with what the call compiles with.
#define MESHRUN_CALL_WITH(...)                        \
  [](auto&& value) requires requires { __VA_ARGS__; } \
  {}

#define EXPECT_TAKES_BOOL_ONLY(...)                                                 \
  EXPECT_EQ((::meshrun::parameters::what_is_wrong<::meshrun::parameters::Bools,     \
                                                  ::meshrun::parameters::Integers>( \
                MESHRUN_CALL_WITH(__VA_ARGS__))),                                   \
            "")                                                                     \
      << #__VA_ARGS__
#define EXPECT_TAKES_INTEGERS_ONLY(...)                                            \
  EXPECT_EQ((::meshrun::parameters::what_is_wrong<::meshrun::parameters::Integers, \
                                                  ::meshrun::parameters::Bools>(   \
                MESHRUN_CALL_WITH(__VA_ARGS__))),                                  \
            "")                                                                    \
      << #__VA_ARGS__
