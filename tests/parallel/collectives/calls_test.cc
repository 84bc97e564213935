// Calls that cannot be misread: what the parameters of public functions take, asked of the
// compiler. Those of modules, transforms, sharded tensors, checkpoints and elastic training are
// asked beside their own tests.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/bagua/communication.h"
#include "parallel/collectives/collectives.h"
#include "parallel/collectives/plans/halo_geometry.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/shared_module.h"
#include "tests/parallel/support/parameters.h"

namespace meshrun {

// Declared to be named in calls that are never made.
namespace given {
extern const at::Tensor x;
extern const Sizes sizes;
extern const std::vector<int64_t> extents;
extern const std::vector<at::Tensor> indices;
extern const std::vector<std::vector<int64_t>> table;
extern const IndexedAllToAllPlan plan;
extern const TransposePlan transpose_plan;
extern const std::vector<SplitRange> ranges;
extern const WindowedDim windows;
extern const WindowedDim::Reads reads;
extern const GroupArgument group;
extern const std::string name;
extern const bagua::Communicator comm;
extern const c10::IValue object;
extern const MeshLayout layout;
extern const ProcessGroupConfig config;
extern ProcessGroupConfig changing_config;
extern DistributedManager& manager;
extern torch::nn::Module& module;
}  // namespace given

namespace {

using namespace given;
using Handle = GroupArgument::Handle;

// The calls that were tried, and meant something else.
template <typename X>
constexpr bool kWithANameForUseFp32 = requires(const X& piece) {
  all_gather_v(piece, {}, 0, "spatial");
};
template <typename X>
constexpr bool kWithAHandleForUseFp32 = requires(const X& piece, Handle handle) {
  all_gather_v(piece, {}, 0, handle);
};
template <typename Loss>
constexpr bool kWithANameForMean = requires(Loss loss) {
  reduce_loss(loss, 0, "spatial");
};
template <typename X>
constexpr bool kWithNothingForUseFp32 = requires(const X& piece) {
  all_gather_v(piece, {}, 0, {}, "spatial");
};
template <typename X>
constexpr bool kWithANullGroup = requires(const X& piece) {
  all_gather_v(piece, {}, 0, true, nullptr);
};
template <typename X>
constexpr bool kWithZeroForTheGroup = requires(const X& piece) {
  all_gather_v(piece, {}, 0, true, 0);
};
template <typename X>
constexpr bool kAsMeant = requires(const X& piece, Handle handle) {
  all_gather_v(piece, {}, 0, true, "spatial");
  all_gather_v(piece, {}, 0, true, handle);
  all_gather_v(piece, {}, 0, true, {});
};

TEST(CallsTest, AGroupInThePlaceOfABoolDoesNotCompile) {
  EXPECT_FALSE(kWithANameForUseFp32<at::Tensor>);
  EXPECT_FALSE(kWithAHandleForUseFp32<at::Tensor>);
  EXPECT_FALSE(kWithANameForMean<double>);
  EXPECT_FALSE(kWithNothingForUseFp32<at::Tensor>);
  EXPECT_FALSE(kWithANullGroup<at::Tensor>);
  EXPECT_FALSE(kWithZeroForTheGroup<at::Tensor>);
  EXPECT_TRUE(kAsMeant<at::Tensor>);
}

TEST(CallsTest, CollectivesTakeBoolsForBools) {
  EXPECT_TAKES_BOOL_ONLY(all_gather_v(x, sizes, 0, value));
  EXPECT_TAKES_BOOL_ONLY(all_gather_v(x, sizes, 0, value, group));
  EXPECT_TAKES_BOOL_ONLY(all_gather_v_async(x, sizes, 0, value));
  EXPECT_TAKES_BOOL_ONLY(reduce_scatter_v(x, sizes, 0, value));
  EXPECT_TAKES_BOOL_ONLY(reduce_scatter_v_async(x, sizes, 0, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v(x, indices, table, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v(x, plan, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v_async(x, indices, table, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v_async(x, plan, value));
  EXPECT_TAKES_BOOL_ONLY(all_gather_v_bwd_wrapper(x, sizes, 0, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v_wrapper_bwd(x, indices, table, 3, value));
  EXPECT_TAKES_BOOL_ONLY(indexed_all_to_all_v_wrapper_bwd(x, plan, value));
  EXPECT_TAKES_BOOL_ONLY(distributed_transpose(x, 0, 1, group, value));
  EXPECT_TAKES_BOOL_ONLY(reduce_loss(1.0, 0, value));
  EXPECT_TAKES_BOOL_ONLY(AllGatherVAutograd::apply(x, sizes, 0, value, group));
  EXPECT_TAKES_BOOL_ONLY(ReduceScatterVAutograd::apply(x, sizes, 0, value, group));
  EXPECT_TAKES_BOOL_ONLY(IndexedAllToAllVAutograd::apply(x, plan, value, 0));
  EXPECT_TAKES_BOOL_ONLY(IndexedAllToAllVReverseAutograd::apply(x, plan, value, 0));
}

TEST(CallsTest, CollectivesTakeIntegersForIntegers) {
  EXPECT_TAKES_INTEGERS_ONLY(all_gather_v(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_gather_v_async(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(reduce_scatter_v(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(reduce_scatter_v_async(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v_async(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v_async(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v_async(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v_async(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_to_all_v(x, extents, extents, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_to_all_v(x, extents, extents, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_to_all_v_async(x, extents, extents, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_to_all_v_async(x, extents, extents, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v(x, indices, table, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v(x, plan, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_async(x, indices, table, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_async(x, plan, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(IndexedAllToAllPlan(indices, table, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_gather_v_wrapper(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(all_gather_v_bwd_wrapper(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v_wrapper(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_v_wrapper(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v_wrapper(x, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_v_wrapper(x, sizes, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_wrapper(x, indices, table, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_wrapper_bwd(x, indices, table, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_wrapper_bwd(x, indices, table, 3, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(indexed_all_to_all_v_wrapper_bwd(x, plan, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(distributed_transpose(x, value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(distributed_transpose(x, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(scatter_to_parallel_region(x, value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_from_parallel_region(x, value));
  EXPECT_TAKES_INTEGERS_ONLY(reduce_loss(1.0, value));
  EXPECT_TAKES_INTEGERS_ONLY(pad_helper(x, value, 5));
  EXPECT_TAKES_INTEGERS_ONLY(pad_helper(x, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(truncate_helper(x, value, 5));
  EXPECT_TAKES_INTEGERS_ONLY(truncate_helper(x, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(split_tensor_along_dim(x, value, 2));
  EXPECT_TAKES_INTEGERS_ONLY(split_tensor_along_dim(x, 0, value));
  EXPECT_TAKES_INTEGERS_ONLY(compute_split_shapes(value, 2));
  EXPECT_TAKES_INTEGERS_ONLY(compute_split_shapes(9, value));
  EXPECT_TAKES_INTEGERS_ONLY(split_range(value, 2, 0));
  EXPECT_TAKES_INTEGERS_ONLY(split_range(9, value, 0));
  EXPECT_TAKES_INTEGERS_ONLY(split_range(9, 2, value));
  EXPECT_TAKES_INTEGERS_ONLY(GatherVAutograd::apply(x, sizes, value, 0, group));
  EXPECT_TAKES_INTEGERS_ONLY(GatherVAutograd::apply(x, sizes, 0, value, group));
  EXPECT_TAKES_INTEGERS_ONLY(ScatterVAutograd::apply(x, sizes, value, 0, group));
  EXPECT_TAKES_INTEGERS_ONLY(ScatterVAutograd::apply(x, sizes, 0, value, group));
  EXPECT_TAKES_INTEGERS_ONLY(AllGatherVAutograd::apply(x, sizes, value, true, group));
  EXPECT_TAKES_INTEGERS_ONLY(ReduceScatterVAutograd::apply(x, sizes, value, true, group));
  EXPECT_TAKES_INTEGERS_ONLY(IndexedAllToAllVAutograd::apply(x, plan, true, value));
  EXPECT_TAKES_INTEGERS_ONLY(IndexedAllToAllVReverseAutograd::apply(x, plan, true, value));
}

TEST(CallsTest, HaloExchangesTakeEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(halo_exchange(x, value, HaloWidth{1, 1}));
  EXPECT_TAKES_BOOL_ONLY(halo_exchange(x, 0, HaloWidth{1, 1}, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(halo_exchange_async(x, value, HaloWidth{1, 1}));
  EXPECT_TAKES_BOOL_ONLY(halo_exchange_async(x, 0, HaloWidth{1, 1}, sizes, value));
  EXPECT_TAKES_INTEGERS_ONLY(HaloWidth{.low = value});
  EXPECT_TAKES_INTEGERS_ONLY(HaloWidth{.high = value});
  EXPECT_TAKES_INTEGERS_ONLY(RangeExchange(value, extents, ranges));
  EXPECT_TAKES_BOOL_ONLY(RangeExchange::Options{.periodic = value});
  EXPECT_TAKES_BOOL_ONLY(RangeExchange::Options{.compares = value});
}

TEST(CallsTest, WindowsTakeEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim(value, reads));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::picking(extents, value));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::sliding(value, 3, 1, 1, 1));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::sliding(8, value, 1, 1, 1));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::sliding(8, 3, value, 1, 1));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::sliding(8, 3, 1, value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::sliding(8, 3, 1, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::transposed(8, value, 1, 1, 1));
  EXPECT_TAKES_INTEGERS_ONLY(WindowedDim::transposed(8, 3, 1, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(windows.reads(value));
  EXPECT_TAKES_INTEGERS_ONLY(sliding_outputs(8, 3, 1, 1, 1, value));
  EXPECT_TAKES_BOOL_ONLY(sliding_outputs(8, 3, 1, 1, 1, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(transposed_outputs(8, 3, 1, 1, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(plan_ranges(extents, ranges, value));
  EXPECT_TAKES_BOOL_ONLY(plan_ranges(extents, ranges, 0, value));
  EXPECT_TAKES_BOOL_ONLY(anything_travels(extents, ranges, value));
}

TEST(CallsTest, PlansTakeIntegersForIntegers) {
  EXPECT_TAKES_INTEGERS_ONLY(TransposePlan(value, extents, 1, extents));
  EXPECT_TAKES_INTEGERS_ONLY(TransposePlan(0, extents, value, extents));
  EXPECT_TAKES_INTEGERS_ONLY(transpose_plan.bytes_sent(value));
  EXPECT_TAKES_INTEGERS_ONLY(gather_extents(value, name, group, x));
}

template <typename T>
constexpr bool kIsALocalRank = requires(T value) {
  DistributedManager::setup(0, 1, value);
};
template <typename T>
constexpr bool kIsAGroupSize = requires(T value) {
  ProcessGroupNode("model", value);
};

TEST(CallsTest, TheManagerTakesEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(DistributedManager::setup(value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedManager::setup(0, value));
  EXPECT_TRUE(kIsALocalRank<int> && kIsALocalRank<std::optional<int>>);
  EXPECT_TRUE(kIsALocalRank<std::nullopt_t>);
  EXPECT_FALSE(kIsALocalRank<bool> || kIsALocalRank<char> || kIsALocalRank<double>);
  EXPECT_FALSE(kIsALocalRank<const char*> || kIsALocalRank<parameters::Plain>);
  EXPECT_FALSE(kIsALocalRank<std::optional<bool>> || kIsALocalRank<std::optional<double>>);
  EXPECT_TRUE(kIsAGroupSize<int64_t> && kIsAGroupSize<std::optional<int>>);
  EXPECT_FALSE(kIsAGroupSize<bool> || kIsAGroupSize<double> || kIsAGroupSize<std::optional<bool>>);
  EXPECT_TAKES_INTEGERS_ONLY(DeviceMesh(layout, value));
  EXPECT_TAKES_INTEGERS_ONLY(DistributedManager::create_process_subgroup(name, value));
  EXPECT_TAKES_BOOL_ONLY(DistributedManager::create_process_subgroup(name, 2, name, value));
  EXPECT_TAKES_BOOL_ONLY(DistributedManager::create_orthogonal_process_group(name, name, value));
  EXPECT_TAKES_BOOL_ONLY(DistributedManager::create_groups_from_config(config, value));
  EXPECT_TAKES_BOOL_ONLY(changing_config.set_leaf_group_sizes({}, value));
  EXPECT_TAKES_BOOL_ONLY(DistributedManager::cleanup(value));
  EXPECT_TAKES_BOOL_ONLY(manager.set_broadcast_buffers(value));
  EXPECT_TAKES_BOOL_ONLY(manager.set_find_unused_parameters(value));
}

TEST(CallsTest, SharedModulesTakeBoolsForBools) {
  EXPECT_TAKES_BOOL_ONLY(mark_module_as_shared(module, name, value));
  EXPECT_TAKES_BOOL_ONLY(mark_module_as_shared(module, name, true, value));
  EXPECT_TAKES_BOOL_ONLY(unmark_module_as_shared(module, value));
  EXPECT_TAKES_BOOL_ONLY(SharedModuleOptions{.recurse = value});
  EXPECT_TAKES_BOOL_ONLY(SharedModuleOptions{.use_fp32_reduction = value});
  EXPECT_TAKES_BOOL_ONLY(SharedModuleOptions{.mean = value});
}

TEST(CallsTest, BaguasNamesTakeIntegersForIntegers) {
  using bagua::ReduceOp;
  EXPECT_TAKES_INTEGERS_ONLY(bagua::reduce(x, x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::reduce_inplace(x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::broadcast(x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::broadcast_coalesced(indices, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::broadcast_object(object, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::gather(x, x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::gather_inplace(x, value, 0));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::gather_inplace(x, 2, value, comm));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::scatter(x, x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::scatter_inplace(x, value, 0));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::scatter_inplace(x, 2, value, comm));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::send(x, value));
  EXPECT_TAKES_INTEGERS_ONLY(bagua::recv(x, value));
}

TEST(ArgumentsTest, WhatDoesNotFitBecomesTheNearest) {
  EXPECT_EQ(IntArgument(~uint64_t{0}), INT64_MAX);
  EXPECT_EQ(IntArgument(INT64_MIN), INT64_MIN);
  EXPECT_EQ(IntArgument(int8_t{-3}), -3);
  EXPECT_EQ(IntArgument(int64_t{1} << 32).to_int(), INT32_MAX);
  EXPECT_EQ(IntArgument(-(int64_t{1} << 32)).to_int(), INT32_MIN);
  EXPECT_EQ(IntArgument(-7).to_int(), -7);
}

}  // namespace
}  // namespace meshrun
