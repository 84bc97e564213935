#include "parallel/bagua/hierarchical.h"

#include <vector>

#include "fmt/format.h"
#include "parallel/bagua/collectives.h"
#include "parallel/bagua/communicator_call.h"

namespace meshrun::bagua {
namespace {

using Tensors = std::vector<at::Tensor>;

// Shard k of `flat` for each of the first `owners` of `members` ranks, nothing for the others.
Tensors shards_of(const at::Tensor& flat, int64_t owners, int members) {
  const int64_t count = flat.numel();
  Tensors shards;
  for (int64_t k = 0; k < members; ++k) {
    const int64_t begin = k < owners ? count * k / owners : count;
    const int64_t end = k < owners ? count * (k + 1) / owners : count;
    shards.push_back(flat.narrow(0, begin, end - begin));
  }
  return shards;
}

void reduce_scatter_inside(const Tensors& shards, ReduceOp op, const Communicator& intra) {
  detail::CommunicatorCall call(intra, "hierarchical_allreduce_inplace, inside the node");
  c10d::ReduceScatterOptions options;
  options.asyncOp = false;
  options.reduceOp = call.reduction(op);
  call.takes(shards[0], "tensor");
  call.run([&](c10d::Backend& backend) {
    Tensors outputs = {shards[static_cast<size_t>(call.rank())]};
    std::vector<Tensors> inputs = {shards};
    return backend.reduce_scatter(outputs, inputs, options);
  });
}

void all_gather_inside(const Tensors& shards, const Communicator& intra) {
  detail::CommunicatorCall call(intra, "hierarchical_allreduce_inplace, inside the node");
  call.takes(shards[0], "tensor");
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  call.run([&](c10d::Backend& backend) {
    std::vector<Tensors> outputs = {shards};
    Tensors inputs = {shards[static_cast<size_t>(call.rank())]};
    return backend.allgather(outputs, inputs, options);
  });
}

}  // namespace

void hierarchical_allreduce_inplace(const at::Tensor& tensor, ReduceOp op,
                                    const std::optional<BaguaProcessGroup>& given) {
  const BaguaProcessGroup group = given ? *given : default_process_group();
  const Communicator everybody = group.get_global_communicator();
  const size_t owners = fewest_members(group.nodes());
  if (group.nodes().size() == 1 || group.nodes().size() == group.ranks().size()) {
    return allreduce_inplace(tensor, op, everybody);
  }
  detail::CommunicatorCall call(everybody, "hierarchical_allreduce_inplace");
  call.reduction(op);
  if (call.takes_output(tensor, "tensor")) {
    const at::ScalarType type = tensor.scalar_type();
    call.require(op != ReduceOp::AVG || at::isFloatingType(type) || at::isComplexType(type),
                 [&] { return fmt::format("AVG of {} has no exact result", c10::toString(type)); });
    call.agrees_on([&] {
      return fmt::format("{} [{}], {}", c10::toString(type), tensor.numel(), to_string(op));
    });
  }
  call.compare();

  const Communicator intra = group.get_intra_node_communicator();
  const auto place = static_cast<size_t>(intra.rank());
  call.run([&](c10d::Backend&) {
    const at::Tensor flat = call.flat_to_update(tensor);
    const bool widens = flat.scalar_type() == at::kHalf || flat.scalar_type() == at::kBFloat16;
    const at::Tensor wide = widens ? flat.to(at::kFloat) : flat;
    const Tensors shards = shards_of(wide, static_cast<int64_t>(owners), intra.nranks());
    const ReduceOp sum_or_op = op == ReduceOp::AVG ? ReduceOp::SUM : op;
    reduce_scatter_inside(shards, sum_or_op, intra);
    if (place < owners) {
      at::Tensor own = shards[place];
      allreduce_inplace(own, sum_or_op, group.get_place_communicator(place));
      if (op == ReduceOp::AVG) own.div_(static_cast<int64_t>(group.ranks().size()));
    }
    all_gather_inside(shards, intra);
    if (widens) flat.copy_(wide);
    return detail::CommunicatorCall::WorkPtr();
  });
}

}  // namespace meshrun::bagua
