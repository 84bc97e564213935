// Conversions to another dtype or device. Summands stay summands where every value of the old dtype
// is one of the new dtype: so the gradient of what autocast made bfloat16 is added in float32.
// Otherwise they are reduced first, as LibTorch rounds the sum.
#include <memory>
#include <string>

#include "c10/core/ScalarType.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/pointwise.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

// Whether values of `from` and their sums lose nothing in `to`.
bool widens(at::ScalarType from, at::ScalarType to) {
  if (from == to) return true;
  if (!at::isFloatingType(from) || !at::isFloatingType(to)) return false;
  return to == at::kDouble || (to == at::kFloat && at::isReducedFloatingType(from));
}

class CastKernel : public c10::OperatorKernel {
 public:
  explicit CastKernel(const std::string& name)
      : exact_(name, Linearity::kFirst), rounded_(name, Linearity::kNone) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    (is_exact(op.schema(), *stack) ? exact_ : rounded_)(op, keys, stack);
  }

 private:
  // The first argument is the tensor; the form with out= is left to the other kernel.
  static bool is_exact(const c10::FunctionSchema& schema, const Stack& stack) {
    const auto& arguments = schema.arguments();
    const c10::IValue* values = stack.data() + (stack.size() - arguments.size());
    const at::ScalarType from = values[0].toTensor().scalar_type();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].is_out()) return false;
      if (arguments[i].name() != "dtype") continue;
      return values[i].isNone() || widens(from, values[i].toScalarType());
    }
    return false;
  }

  PointwiseKernel exact_;
  PointwiseKernel rounded_;
};

const Movement kCast = {"any; Partial(sum) and Partial(avg) too where the dtype becomes wider",
                        "where the dtype becomes narrower, a Partial is reduced",
                        "the conversion back"};

const bool kRegistered =
    OperatorFamily("pointwise")
        .boxed(
            {"aten::_to_copy"},
            [](const std::string& name) { return std::make_unique<CastKernel>(name); }, kCast)
        .registered();

}  // namespace
}  // namespace meshrun
