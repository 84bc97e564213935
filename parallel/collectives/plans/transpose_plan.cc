#include "parallel/collectives/plans/transpose_plan.h"

#include <utility>

#include "c10/util/Exception.h"
#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {
namespace {

CollectiveSpec spec_of(int64_t dim0, const std::vector<int64_t>& dim0_sizes, int64_t dim1,
                       const std::vector<int64_t>& dim1_sizes, const std::string& also_agreed) {
  TORCH_CHECK_VALUE(dim0 >= 0 && dim1 >= 0 && dim0 != dim1, "TransposePlan: dims ", dim0, " and ",
                    dim1, " should be two, counted from the front");
  CollectiveSpec spec =
      CollectiveSpec::all_to_all_v({dim0, {dim0_sizes.begin(), dim0_sizes.end()}},
                                   {dim1, {dim1_sizes.begin(), dim1_sizes.end()}});
  agree_on_transpose(spec, also_agreed);
  return spec;
}

}  // namespace

TransposePlan::TransposePlan(IntArgument dim0, const std::vector<int64_t>& dim0_sizes,
                             IntArgument dim1, const std::vector<int64_t>& dim1_sizes,
                             const GroupArgument& group, const std::string& also_agreed)
    : plan_(spec_of(dim0, dim0_sizes, dim1, dim1_sizes, also_agreed), group) {}

at::Tensor TransposePlan::to_dim0(const at::Tensor& tensor) const {
  return differentiable(tensor, plan_.fitted(tensor, Pass::kForward));
}

at::Tensor TransposePlan::to_dim1(const at::Tensor& tensor) const {
  return differentiable(tensor, plan_.fitted(tensor, Pass::kBackward), Pass::kBackward);
}

AsyncTensor TransposePlan::to_dim0_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable(tensor, plan_.fitted(tensor, Pass::kForward), Pass::kForward, work);
  });
}

AsyncTensor TransposePlan::to_dim1_async(const at::Tensor& tensor) const {
  return asynchronously([&](WorkPtr* work) {
    return differentiable(tensor, plan_.fitted(tensor, Pass::kBackward), Pass::kBackward, work);
  });
}

const GroupArgument::Handle& TransposePlan::group() const { return plan_.collective().group; }
int TransposePlan::rank() const { return plan_.collective().rank; }
int TransposePlan::world() const { return plan_.collective().world; }

int64_t TransposePlan::bytes_sent(IntArgument element_size) const {
  const Collective& collective = plan_.collective();
  const int64_t others = collective.spec.cut.total() - collective.own();
  return others * collective.spec.received.of(collective.rank) * element_size;
}

std::vector<int64_t> gather_extents(IntArgument extent, const std::string& problem,
                                    const GroupArgument& group, const at::Tensor& on_device_of) {
  const CollectivePtr collective = make_collective(group);
  collective->spec.problem = problem;
  const Extents extents = tell_extents(on_device_of, *collective, extent);
  return {extents.begin(), extents.end()};
}

}  // namespace meshrun
