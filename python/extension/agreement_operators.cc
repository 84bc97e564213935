// What a Python module asks the ranks of a group before it communicates: whether all of them were
// made alike, and that an error of one becomes an error of all. They have neither gradient nor
// trace.
#include <optional>
#include <string>

#include "parallel/collectives/all_reduce.h"
#include "parallel/comm/v_collectives_of.h"
#include "parallel/nn/module_agreement.h"
#include "python/extension/operators.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

// Collective: the same sentence on all ranks where one has a `problem` (not empty) or where the
// `options`, one line, differ; else empty.
std::string difference_between_ranks(const std::string& group, const std::string& options,
                                     const std::string& problem) {
  const GroupHandle handle = group_named(group);
  const c10::Device device(device_of(at::Tensor(), *handle));
  return detail::find_difference(*handle, device, options, "", problem);
}

// Takes part in whatever collective the other ranks call next, with `problem`, which all of them
// raise as ValueError. `tensor`: what this rank would have sent.
void raise_problem_on_all_ranks(const std::optional<at::Tensor>& tensor, const std::string& group,
                                const std::string& problem) {
  const GroupHandle handle = group_named(group);
  const c10::DeviceType device = device_of(tensor.value_or(at::Tensor()), *handle);
  detail::raise_on_all_ranks(handle, device, problem);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  m.def("difference_between_ranks", &difference_between_ranks);
  m.def("raise_on_all_ranks", &raise_problem_on_all_ranks);
}

}  // namespace meshrun::python
