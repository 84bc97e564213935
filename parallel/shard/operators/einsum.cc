// einsum: the letters of the equation are the labels of the product.
#include "ATen/ops/einsum.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/shard/dispatch/cast_policy.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/product.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {
namespace {

using Labels = ProductLabels;

// Dimensions under "..." have labels from here, counted from the back.
constexpr int kEllipsis = 1000;

[[noreturn]] void refuse(const std::string& equation, const std::string& problem) {
  throw ShardTensorError(fmt::format("einsum: the equation '{}' {}", equation, problem));
}

// `ellipsis`: how many dimensions it stands for.
Labels labels_of(const std::string& term, const std::string& equation, int ellipsis) {
  Labels labels;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term.compare(i, 3, "...") == 0) {
      for (int d = ellipsis; d > 0; --d) labels.push_back(kEllipsis + d);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
      labels.push_back(static_cast<unsigned char>(term[i]));
    } else {
      refuse(equation, fmt::format("has '{}'", term[i]));
    }
  }
  return labels;
}

int count_letters(const std::string& term) {
  return static_cast<int>(std::count_if(
      term.begin(), term.end(), [](unsigned char letter) { return std::isalpha(letter) != 0; }));
}

// Without "->": letters that occur once, in alphabetical order, after the ellipsis.
Labels implicit_result(c10::ArrayRef<Labels> terms, int ellipsis) {
  std::map<int, int> occurrences;
  for (const Labels& term : terms) {
    for (const int label : term) ++occurrences[label];
  }
  Labels result;
  for (int d = ellipsis; d > 0; --d) result.push_back(kEllipsis + d);
  for (const auto& [label, count] : occurrences) {
    if (label < kEllipsis && count == 1) result.push_back(label);
  }
  return result;
}

// Labels of extent 1 where another operand's is longer become kBroadcastLabel.
void mark_broadcast(at::TensorList operands, c10::SmallVectorImpl<Labels>& labels) {
  std::map<int, int64_t> extents;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t d = 0; d < labels[i].size(); ++d) {
      const int64_t extent = operands[i].size(static_cast<int64_t>(d));
      const auto [known, is_new] = extents.emplace(labels[i][d], extent);
      if (known->second == 1) known->second = extent;
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t d = 0; d < labels[i].size(); ++d) {
      int& label = labels[i][d];
      if (operands[i].size(static_cast<int64_t>(d)) == 1 && extents.at(label) != 1) {
        label = kBroadcastLabel;
      }
    }
  }
}

// Letters that an operand has twice: its diagonal is taken, so they stay whole.
Labels repeated(c10::ArrayRef<Labels> terms) {
  Labels twice;
  for (const Labels& term : terms) {
    for (const int label : term) {
      if (std::count(term.begin(), term.end(), label) > 1) twice.push_back(label);
    }
  }
  return twice;
}

// The dtype of the whole result under autocast.
at::ScalarType cast_dtype(const std::string& equation, at::TensorList tensors,
                          at::OptionalIntArrayRef path) {
  std::vector<at::Tensor> small;
  for (const at::Tensor& tensor : tensors) small.push_back(small_stand_in(tensor));
  return at::einsum(equation, small, path).scalar_type();
}

at::Tensor einsum(c10::string_view given, at::TensorList tensors, at::OptionalIntArrayRef path) {
  std::string equation(given);
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  std::vector<std::string> terms = {""};
  for (const char letter : equation.substr(0, arrow)) {
    if (letter == ',') {
      terms.emplace_back();
    } else {
      terms.back() += letter;
    }
  }
  if (terms.size() != tensors.size()) {
    refuse(equation, fmt::format("has {} operands, and {} came", terms.size(), tensors.size()));
  }
  Product product{"einsum", {tensors.begin(), tensors.end()}, {}, {}};
  int longest = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const int left = static_cast<int>(tensors[i].dim()) - count_letters(terms[i]);
    const bool has_ellipsis = terms[i].find("...") != std::string::npos;
    if (left < 0 || (left > 0 && !has_ellipsis)) {
      refuse(equation, fmt::format("does not fit operand {} of [{}]", i, tensors[i].dim()));
    }
    longest = std::max(longest, left);
    product.labels.push_back(labels_of(terms[i], equation, left));
  }
  product.result = arrow == std::string::npos
                       ? implicit_result(product.labels, longest)
                       : labels_of(equation.substr(arrow + 2), equation, longest);
  product.whole = repeated(product.labels);
  mark_broadcast(product.operands, product.labels);
  for (const int label : product.result) {
    const bool is_known =
        std::any_of(product.labels.begin(), product.labels.end(), [&](const Labels& term) {
          return std::find(term.begin(), term.end(), label) != term.end();
        });
    if (!is_known) refuse(equation, "has a result that no operand has");
  }
  const std::optional<at::ScalarType> dtype =
      any_autocast() ? std::optional(cast_dtype(equation, tensors, path)) : std::nullopt;
  return product_above_autograd(product, [&](at::TensorList locals, bool) {
    const at::Tensor result = at::einsum(equation, locals, path);
    return dtype ? result.to(*dtype) : result;
  });
}

const bool kRegistered =
    OperatorFamily("matrix products")
        .above_autograd("aten::einsum", &einsum,
                        {"any Shard that the other operands have too or where they are Replicate; "
                         "one Partial(sum)",
                         "where two cuts meet on one axis, the smaller operands; letters that one "
                         "operand has twice are made whole; a cut contracted letter becomes "
                         "Partial(sum)",
                         "the gradient of a Replicate operand becomes Partial(sum)"})
        .registered();

}  // namespace
}  // namespace meshrun
