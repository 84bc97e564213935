#include "parallel/nn/graph/row_map.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "parallel/kernels/row_kernels.h"

namespace meshrun {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

using StatePtr = c10::intrusive_ptr<RowMap::State>;

Tensor empty_like_with_rows(const Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, x.options());
}

void check_rows(const Tensor& x, int64_t rows, const char* what) {
  TORCH_CHECK_VALUE(x.defined() && x.dim() >= 1 && x.size(0) == rows, "RowMap::", what,
                    " needs a tensor of ", rows, " rows, got ",
                    x.defined() ? c10::str("shape ", x.sizes()) : std::string("none"));
}

StatePtr saved_state(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<RowMap::State>(ctx->saved_data.at("rows").toCapsule());
}

void save_state(AutogradContext* ctx, const StatePtr& state) {
  ctx->saved_data.emplace("rows", at::IValue::make_capsule(state));
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const StatePtr& state) {
    save_state(ctx, state);
    Tensor output = empty_like_with_rows(x, state->rows.size(0));
    row_kernels(x.device().type()).gather_rows(output, x, state->rows, 0);
    return output;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients);
};

struct SumRows : torch::autograd::Function<SumRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const StatePtr& state) {
    save_state(ctx, state);
    Tensor output = empty_like_with_rows(x, state->num_rows);
    row_kernels(x.device().type())
        .segmented_sum(output, x, x.narrow(0, 0, 0), state->offsets, state->positions, 0,
                       /*use_fp32=*/true);
    return output;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {GatherRows::apply(gradients[0], saved_state(ctx)), Tensor()};
  }
};

variable_list GatherRows::backward(AutogradContext* ctx, const variable_list& gradients) {
  return {SumRows::apply(gradients[0], saved_state(ctx)), Tensor()};
}

}  // namespace

RowMap::RowMap(std::span<const int64_t> rows, IntArgument num_rows, c10::Device device)
    : state_(c10::make_intrusive<State>()) {
  std::vector<int64_t> offsets(static_cast<size_t>(num_rows) + 1, 0);
  for (const int64_t row : rows) {
    TORCH_CHECK_VALUE(row >= 0 && row < num_rows, "RowMap: row ", row, " of ",
                      static_cast<int64_t>(num_rows));
    ++offsets[static_cast<size_t>(row) + 1];
  }
  for (size_t r = 1; r < offsets.size(); ++r) offsets[r] += offsets[r - 1];
  std::vector<int64_t> positions(rows.size());
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    positions[static_cast<size_t>(next[static_cast<size_t>(rows[i])]++)] = static_cast<int64_t>(i);
  }
  const auto tensor_of = [&](const std::vector<int64_t>& list) {
    return at::tensor(list, at::TensorOptions().dtype(at::kLong)).to(device);
  };
  state_->num_rows = num_rows;
  state_->rows = tensor_of({rows.begin(), rows.end()});
  state_->offsets = tensor_of(offsets);
  state_->positions = tensor_of(positions);
}

Tensor RowMap::gather(const Tensor& x) const {
  check_rows(x, state_->num_rows, "gather");
  return GatherRows::apply(x, state_);
}

Tensor RowMap::sum(const Tensor& x) const {
  check_rows(x, state_->rows.size(0), "sum");
  return SumRows::apply(x, state_);
}

Tensor RowMap::counts() const { return state_->offsets.diff(); }

}  // namespace meshrun
