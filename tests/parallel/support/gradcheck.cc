#include "tests/parallel/support/gradcheck.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "spdlog/fmt/fmt.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// Between -1 and 1, another one for each element, output and rank.
Tensor weight_of(const Tensor& output, int rank, size_t index) {
  const Tensor phase =
      at::arange(output.numel(), at::kDouble) * 1.7 + (rank * 0.9 + static_cast<double>(index));
  return phase.sin().reshape(output.sizes()).to(output.options());
}

Tensor local_loss(const Tensors& outputs, int rank, c10::Device device) {
  Tensor loss = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    const Tensor weighted = outputs[i] * weight_of(outputs[i], rank, i);
    loss = loss + (weighted.is_complex() ? at::real(weighted) : weighted).sum();
  }
  return loss;
}

// Sum over all ranks, in rank order, in float64.
double sum_over_ranks(c10d::ProcessGroup& group, double value, c10::Device device) {
  Tensors tensors = {at::full({1}, value, at::TensorOptions(device).dtype(at::kDouble))};
  group.allreduce(tensors)->wait();
  return tensors[0].item<double>();
}

// A leaf of its own, and its elements as doubles in the same memory: autograd does not see them
// move.
struct Leaf {
  explicit Leaf(const Tensor& from)
      : tensor(from.detach().clone(at::MemoryFormat::Contiguous)),
        numbers(
            (tensor.is_complex() ? at::view_as_real(tensor) : tensor).variable_data().view({-1})) {
    tensor.set_requires_grad(from.requires_grad());
  }
  Tensor tensor;
  Tensor numbers;
};

std::vector<int64_t> counts_of_ranks(c10d::ProcessGroup& group, int64_t own, c10::Device device) {
  Tensors tensors = {at::zeros({group.getSize()}, at::TensorOptions(device).dtype(at::kLong))};
  tensors[0][group.getRank()].fill_(own);
  group.allreduce(tensors)->wait();
  const Tensor of_ranks = tensors[0].cpu();
  const int64_t* counts = of_ranks.const_data_ptr<int64_t>();
  return std::vector<int64_t>(counts, counts + group.getSize());
}

class Check {
 public:
  Check(c10d::ProcessGroup& group, const RankFunction& function, const Tensors& inputs,
        const GradcheckTolerance& tolerance)
      : group_(group), function_(function), device_(inputs.at(0).device()), tolerance_(tolerance) {
    for (const Tensor& input : inputs) leaves_.emplace_back(input);
  }

  std::string run() {
    Tensors inputs = tensors(), asked;
    for (const Tensor& input : inputs) {
      if (input.requires_grad()) asked.push_back(input);
    }
    const Tensor loss = local_loss(function_(inputs), group_.getRank(), device_);
    const Tensors gradients = torch::autograd::grad({loss}, asked, {}, /*retain_graph=*/{},
                                                    /*create_graph=*/false, /*allow_unused=*/true);
    std::string found;
    size_t next = 0;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (!inputs[i].requires_grad()) continue;
      Tensor gradient = gradients[next++];
      if (!gradient.defined()) gradient = at::zeros_like(leaves_[i].tensor);
      if (gradient.sizes() != leaves_[i].tensor.sizes()) {
        found += fmt::format("input {}: its gradient has another shape; ", i);
        gradient = at::zeros_like(leaves_[i].tensor);
      }
      if (gradient.is_complex()) gradient = at::view_as_real(gradient.resolve_conj());
      compare(i, gradient.detach().cpu().contiguous().view({-1}), found);
    }
    return found;
  }

 private:
  Tensors tensors() const {
    Tensors all;
    for (const Leaf& leaf : leaves_) all.push_back(leaf.tensor);
    return all;
  }

  // Loss of all ranks together, with one number of one rank moved.
  double loss_at(const Leaf& leaf, int64_t element, bool is_mine, double step) {
    const double before = is_mine ? leaf.numbers[element].item<double>() : 0;
    if (is_mine) leaf.numbers[element].fill_(before + step);
    // With gradients on: the function may take some itself, as gradgradcheck's does.
    const double own = local_loss(function_(tensors()), group_.getRank(), device_).item<double>();
    if (is_mine) leaf.numbers[element].fill_(before);
    return sum_over_ranks(group_, own, device_);
  }

  void compare(size_t input, const Tensor& gradient, std::string& found) {
    const Leaf& leaf = leaves_[input];
    const std::vector<int64_t> counts = counts_of_ranks(group_, leaf.numbers.numel(), device_);
    for (int rank = 0; rank < group_.getSize(); ++rank) {
      const bool is_mine = rank == group_.getRank();
      for (int64_t element = 0; element < counts[rank]; ++element) {
        const double above = loss_at(leaf, element, is_mine, tolerance_.step);
        const double below = loss_at(leaf, element, is_mine, -tolerance_.step);
        if (!is_mine) continue;
        const double numeric = (above - below) / (2 * tolerance_.step);
        const double analytic = gradient[element].item<double>();
        const double allowed = tolerance_.absolute + tolerance_.relative * std::abs(numeric);
        // Not `>`: a NaN differs.
        if (!(std::abs(numeric - analytic) <= allowed) && found.size() < 600) {
          found += fmt::format("rank {}, input {}, number {}: backward {}, numeric {}; ", rank,
                               input, element, analytic, numeric);
        }
      }
    }
  }

  c10d::ProcessGroup& group_;
  const RankFunction& function_;
  const c10::Device device_;
  const GradcheckTolerance tolerance_;
  std::vector<Leaf> leaves_;
};

}  // namespace

std::string gradcheck(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                      const RankFunction& function, const Tensors& inputs,
                      const GradcheckTolerance& tolerance) {
  return Check(*group, function, inputs, tolerance).run();
}

std::string gradgradcheck(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                          const RankFunction& function, const Tensors& inputs,
                          const GradcheckTolerance& tolerance) {
  // What flows into backward: one more input for each output.
  Tensors all = inputs;
  {
    const Tensors outputs = function(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Tensor flow = weight_of(outputs[i].detach(), group->getRank() + 7, i);
      all.push_back(flow.clone().set_requires_grad(true));
    }
  }
  const size_t count = inputs.size();
  const RankFunction gradient = [&function, count](const Tensors& values) {
    const Tensors own(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
    const Tensors flows(values.begin() + static_cast<std::ptrdiff_t>(count), values.end());
    Tensors asked;
    for (const Tensor& input : own) {
      if (input.requires_grad()) asked.push_back(input);
    }
    Tensors found = torch::autograd::grad(function(own), asked, flows, /*retain_graph=*/true,
                                          /*create_graph=*/true, /*allow_unused=*/true);
    // Nothing hangs from an input that is not used.
    std::erase_if(found, [](const Tensor& tensor) { return !tensor.defined(); });
    return found;
  };
  return gradcheck(group, gradient, all, tolerance);
}

}  // namespace meshrun
