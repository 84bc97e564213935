// Lists of strict arguments (arguments.h): as strict as their elements.
//
//   at::Tensor transform(const at::Tensor& tensor, const ListArgument<IntArgument>& dim);
//   transform(x, {true, 3});    does not compile: a bool is not an integer
//
// A std::vector<IntArgument> takes {true, 3} as one 3: it has a constructor from a count and a
// value, and the count takes all that converts to a number. This one is made of its elements, or of
// a std::vector of them, and is a std::vector in all else.
#pragma once

#include <concepts>
#include <initializer_list>
#include <utility>
#include <vector>

namespace meshrun {

template <typename Argument>
class ListArgument : public std::vector<Argument> {
 public:
  ListArgument() = default;
  ListArgument(std::initializer_list<Argument> values) : std::vector<Argument>(values) {}
  template <std::same_as<std::vector<Argument>> Values>
  ListArgument(Values values)  // NOLINT(google-explicit-constructor)
      : std::vector<Argument>(std::move(values)) {}
};

}  // namespace meshrun
