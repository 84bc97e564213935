// Numeric gradients of functions that several ranks compute together: LibTorch has no gradcheck in
// C++, and PyTorch's knows one process.
//
//   EXPECT_EQ(gradcheck(group, f, {x}), "");
//   EXPECT_EQ(gradgradcheck(group, f, {x}), "");
//
// All ranks of `group` call it with the same function and their own inputs (leaves; shapes may
// differ between ranks and be empty; equally many on all). The loss is the sum over all ranks of
// real(sum(weight * output)), with weights that differ per element and rank. One element on one
// rank is moved at a time, all ranks evaluate, and the difference quotient is compared on the rank
// that owns the element with what backward gave it. Complex inputs: real and imaginary part, by
// LibTorch's convention dL/da + i dL/db.
//
// dtypes: float64, complex128. Device: the inputs' one, which the group has a backend for. Cost:
// two evaluations an element, so keep inputs small. Returns what differs on this rank, "" where
// nothing does. A function that raises ends the check with its exception. Nothing is compared
// between ranks: each reports its own elements.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {

using RankFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

struct GradcheckTolerance {
  double step = 1e-6;
  double absolute = 1e-6;
  double relative = 1e-5;
};

std::string gradcheck(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                      const RankFunction& function, const std::vector<at::Tensor>& inputs,
                      const GradcheckTolerance& tolerance = {});

// The same of the gradient itself, with respect to the inputs and to what flows into backward.
std::string gradgradcheck(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                          const RankFunction& function, const std::vector<at::Tensor>& inputs,
                          const GradcheckTolerance& tolerance = {});

}  // namespace meshrun
