// What differs between the versions of LibTorch that meshrun is built with: 2.11 to 2.15. No other
// file asks for a version.
//
// Names are the newest version's.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/headeronly/version.h"

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 15
#error \
    "meshrun builds with LibTorch 2.11 to 2.15: set LIBTORCH_HOME, or call tools/setup --libtorch"
#endif

namespace meshrun::libtorch {

#define MESHRUN_TO_TEXT(number) #number
#define MESHRUN_MAJOR_AND_MINOR(major, minor) MESHRUN_TO_TEXT(major) "." MESHRUN_TO_TEXT(minor)

// "2.15": a program runs with LibTorch of the same.
inline constexpr char kVersion[] =
    MESHRUN_MAJOR_AND_MINOR(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);

#undef MESHRUN_MAJOR_AND_MINOR
#undef MESHRUN_TO_TEXT

// Whether LibTorch has an operator of this program's tables. 2.14 has no cholesky, of which
// linalg_cholesky took the place.
inline bool has_operator(std::string_view name) {
  return TORCH_VERSION_MINOR < 14 || name != "aten::cholesky";
}

// 2.13: autograd's nodes count their own references, and c10d::ProcessGroup has other names.
#if TORCH_VERSION_MINOR >= 13

template <typename Node>
using NodePtr = c10::intrusive_ptr<Node>;

template <typename Node, typename... Arguments>
NodePtr<Node> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}

inline auto all_gather_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options = {}) {
  return group.all_gather_single(output, input, options);
}
inline auto all_gather_single_coalesced(c10d::ProcessGroup& group, std::vector<at::Tensor>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::AllgatherOptions& options = {}) {
  return group.all_gather_single_coalesced(outputs, inputs, options);
}
inline auto reduce_scatter_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options = {}) {
  return group.reduce_scatter_single(output, input, options);
}
inline auto reduce_scatter_single_coalesced(c10d::ProcessGroup& group,
                                            std::vector<at::Tensor>& outputs,
                                            std::vector<at::Tensor>& inputs,
                                            const c10d::ReduceScatterOptions& options = {}) {
  return group.reduce_scatter_single_coalesced(outputs, inputs, options);
}
inline auto all_to_all_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                              std::vector<int64_t>& output_splits,
                              std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options = {}) {
  return group.all_to_all_single(output, input, output_splits, input_splits, options);
}

#else

template <typename Node>
using NodePtr = std::shared_ptr<Node>;

template <typename Node, typename... Arguments>
NodePtr<Node> make_node(Arguments&&... arguments) {
  return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
}

inline auto all_gather_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options = {}) {
  return group._allgather_base(output, input, options);
}
inline auto all_gather_single_coalesced(c10d::ProcessGroup& group, std::vector<at::Tensor>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::AllgatherOptions& options = {}) {
  return group.allgather_into_tensor_coalesced(outputs, inputs, options);
}
inline auto reduce_scatter_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options = {}) {
  return group._reduce_scatter_base(output, input, options);
}
inline auto reduce_scatter_single_coalesced(c10d::ProcessGroup& group,
                                            std::vector<at::Tensor>& outputs,
                                            std::vector<at::Tensor>& inputs,
                                            const c10d::ReduceScatterOptions& options = {}) {
  return group.reduce_scatter_tensor_coalesced(outputs, inputs, options);
}
inline auto all_to_all_single(c10d::ProcessGroup& group, at::Tensor& output, at::Tensor& input,
                              std::vector<int64_t>& output_splits,
                              std::vector<int64_t>& input_splits,
                              const c10d::AllToAllOptions& options = {}) {
  return group.alltoall_base(output, input, output_splits, input_splits, options);
}

#endif

}  // namespace meshrun::libtorch
