// Operators that compute each element from those at the same place.
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/pointwise.h"

namespace meshrun {
namespace {

const Movement kAny = {"any Shard, equal on all operands; Replicate beside it is cut in place",
                       "a Partial is reduced; operands sharded otherwise move to the largest one's "
                       "layout",
                       "the same operators; what was broadcast is summed: Partial"};
const Movement kLinear = {"any, Partial(sum) and Partial(avg) too",
                          "operands sharded otherwise move to the largest one's layout",
                          "the same operators; what was broadcast is summed: Partial"};

const bool kRegistered =
    OperatorFamily("pointwise")
        .boxed({"aten::add.Tensor", "aten::add_.Tensor", "aten::add.out", "aten::sub.Tensor",
                "aten::sub_.Tensor", "aten::sub.out"},
               pointwise(Linearity::kSum), kLinear)
        .boxed({"aten::mul.Tensor", "aten::mul_.Tensor", "aten::mul.out"},
               pointwise(Linearity::kProduct), kLinear)
        .boxed({"aten::neg", "aten::neg_", "aten::neg.out", "aten::mul.Scalar", "aten::mul_.Scalar",
                "aten::div.Tensor", "aten::div_.Tensor", "aten::div.out", "aten::div.Scalar",
                "aten::div_.Scalar", "aten::clone", "aten::detach", "aten::alias",
                "aten::positive"},
               pointwise(Linearity::kFirst), kLinear)
        .boxed({"aten::relu", "aten::relu_", "aten::sigmoid", "aten::tanh", "aten::exp"},
               pointwise(Linearity::kNone), kAny)
        .registered();

}  // namespace
}  // namespace meshrun
