// The calls that PhysicsNeMo's and Bagua's API pages print, with their arguments in the printed
// order, in a world of one rank: they compile and do what the pages say. Their names and orders are
// what a program that comes from there relies on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "parallel/bagua/communication.h"
#include "parallel/collectives/collectives.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;

class PrintedCallsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    DistributedManager::setup(/*rank=*/0, /*world_size=*/1, /*local_rank=*/std::nullopt,
                              /*addr=*/"localhost", /*port=*/"12355", /*backend=*/"ucx",
                              /*method=*/"env");
  }
  static void TearDownTestSuite() { DistributedManager::cleanup(); }

  DistributedManager& manager = DistributedManager::get();
  const Tensor tensor = at::arange(6, at::kFloat).view({3, 2});
  const std::vector<int64_t> sizes = {3};
  const int dim = 0;
  const bool use_fp32 = true;
  const c10::intrusive_ptr<c10d::ProcessGroup> group = manager.world();
};

TEST_F(PrintedCallsTest, OfDistributedManager) {
  EXPECT_EQ(manager.rank(), 0);
  EXPECT_EQ(manager.world_size(), 1);
  DistributedManager::create_process_subgroup("model_parallel", 1);
  DistributedManager::create_process_subgroup("spatial", 1, "model_parallel", /*verbose=*/false);
  DistributedManager::create_orthogonal_process_group("data_parallel", "model_parallel", false);
  EXPECT_EQ(manager.group_size("model_parallel"), 1);
  EXPECT_EQ(manager.group_names(),
            (std::vector<std::string>{"model_parallel", "spatial", "data_parallel"}));
  EXPECT_TRUE(manager.group("model_parallel"));
  const DeviceMesh& mesh = manager.initialize_mesh({-1, 1}, {"domain", "spatial_domain"});
  EXPECT_EQ(mesh.shape(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(manager.mesh("domain").size(), 1);
  EXPECT_EQ(manager.global_mesh().ndim(), 2);
  EXPECT_EQ(manager.mesh_dims().at("domain"), 1);
  EXPECT_TRUE(manager.get_mesh_group(mesh));
  EXPECT_THROW(all_gather_v(tensor, {}, 0, true, "nobody"), UndefinedGroupError);
  EXPECT_TRUE(at::equal(all_gather_v(tensor, sizes, 0, true, "model_parallel"), tensor));
  EXPECT_TRUE(at::equal(all_gather_v(tensor, sizes, 0, true, manager.group("spatial")), tensor));
}

TEST_F(PrintedCallsTest, OfThePrimitives) {
  const std::vector<Tensor> indices = {at::tensor({2, 0}, at::kLong)};
  const std::vector<std::vector<int64_t>> table = {{2}};
  const Tensor sent = tensor.index_select(0, indices[0]);
  EXPECT_TRUE(at::equal(all_gather_v_wrapper(tensor, sizes, dim, group), tensor));
  EXPECT_TRUE(at::equal(all_gather_v_wrapper(tensor, std::nullopt), tensor));
  EXPECT_TRUE(at::equal(all_gather_v_bwd_wrapper(tensor, sizes, dim, use_fp32, group), tensor));
  EXPECT_TRUE(at::equal(gather_v_wrapper(tensor, sizes, dim, /*dst=*/0, group), tensor));
  EXPECT_TRUE(at::equal(scatter_v_wrapper(tensor, sizes, dim, /*src=*/0, group), tensor));
  EXPECT_TRUE(at::equal(indexed_all_to_all_v_wrapper(tensor, indices, table, dim, group), sent));
  const Tensor back = indexed_all_to_all_v_wrapper_bwd(sent, indices, table, tensor.size(dim),
                                                       use_fp32, dim, group);
  EXPECT_TRUE(at::equal(back, tensor * at::tensor({1.f, 0.f, 1.f}).view({3, 1})));
  const auto [transposed, work] = distributed_transpose(tensor, 0, 1, group, /*async_op=*/false);
  EXPECT_TRUE(at::equal(transposed, tensor) && !work);
  EXPECT_EQ(pad_helper(tensor, dim, 5, "zero").size(0), 5);
  EXPECT_EQ(reduce_loss(2.5, /*dst_rank=*/0, /*mean=*/true), std::optional(2.5));
}

TEST_F(PrintedCallsTest, OfTheDifferentiableOnes) {
  const std::vector<Tensor> indices = {at::tensor({2, 0}, at::kLong)};
  const std::vector<std::vector<int64_t>> table = {{2}};
  const Tensor sent = tensor.index_select(0, indices[0]);
  EXPECT_TRUE(at::equal(all_gather_v(tensor, sizes, dim, use_fp32, group), tensor));
  EXPECT_TRUE(at::equal(gather_v(tensor, sizes, dim, 0, group), tensor));
  EXPECT_TRUE(at::equal(scatter_v(tensor, sizes, dim, 0, group), tensor));
  EXPECT_TRUE(at::equal(indexed_all_to_all_v(tensor, indices, table, use_fp32, dim, group), sent));
  EXPECT_TRUE(at::equal(AllGatherVAutograd::apply(tensor, sizes, dim, use_fp32, group), tensor));
  EXPECT_TRUE(at::equal(GatherVAutograd::apply(tensor, sizes, dim, 0, group), tensor));
  EXPECT_TRUE(at::equal(ScatterVAutograd::apply(tensor, sizes, dim, 0, group), tensor));
  EXPECT_TRUE(at::equal(
      IndexedAllToAllVAutograd::apply(tensor, indices, table, use_fp32, dim, group), sent));
  // With the defaults.
  const Tensor leaf = tensor.clone().requires_grad_();
  EXPECT_TRUE(at::equal(AllGatherVAutograd::apply(leaf, sizes), tensor));
  EXPECT_TRUE(at::equal(GatherVAutograd::apply(leaf, sizes), tensor));
  EXPECT_TRUE(at::equal(ScatterVAutograd::apply(leaf, sizes), tensor));
  IndexedAllToAllVAutograd::apply(leaf, indices, table).sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), at::tensor({1.f, 0.f, 1.f}).view({3, 1}).expand_as(leaf)));
  EXPECT_TRUE(at::equal(gather_from_parallel_region(tensor, dim, sizes, group), tensor));
  EXPECT_TRUE(at::equal(scatter_to_parallel_region(tensor, dim, group), tensor));
  EXPECT_TRUE(at::equal(copy_to_parallel_region(tensor, group), tensor));
  EXPECT_TRUE(at::equal(reduce_from_parallel_region(tensor, group), tensor));
}

TEST_F(PrintedCallsTest, OfBagua) {
  using namespace bagua;
  init_process_group();
  const Communicator comm = new_group(std::vector<int>{0}).get_global_communicator();
  const Tensor received = at::zeros_like(tensor);
  allreduce(tensor, received);
  EXPECT_TRUE(at::equal(received, tensor));
  allreduce(tensor, received.zero_(), ReduceOp::SUM, comm);
  EXPECT_TRUE(at::equal(received, tensor));
  allreduce_inplace(received, ReduceOp::AVG, comm);
  allgather(tensor, received.zero_(), comm);
  EXPECT_TRUE(at::equal(received, tensor));
  allgather_inplace(received);
  gather(tensor, received.zero_(), 0, comm);
  EXPECT_TRUE(at::equal(received, tensor));
  scatter(tensor, received.zero_(), 0, comm);
  EXPECT_TRUE(at::equal(received, tensor));
  reduce(tensor, received.zero_(), 0, ReduceOp::SUM, comm);
  EXPECT_TRUE(at::equal(received, tensor));
  reduce_scatter(tensor, received.zero_(), ReduceOp::SUM, comm);
  EXPECT_TRUE(at::equal(received, tensor));
  alltoall(tensor, received.zero_(), comm);
  EXPECT_TRUE(at::equal(received, tensor));
  broadcast(received, 0, comm);
  broadcast(received);
  EXPECT_EQ(broadcast_object(c10::IValue(3), 0).toInt(), 3);
  EXPECT_TRUE(at::equal(received, tensor));
}

}  // namespace
}  // namespace meshrun
