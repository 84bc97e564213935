// Bagua's process groups, objects and the all-reduce in levels, in real rank processes that are
// told they run on several nodes.
#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/bagua/node_map.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "tests/parallel/bagua/support.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::bagua {
namespace {

using at::Tensor;
using Ranks = std::vector<int>;

// The sum of the members' world ranks: says who takes part.
int sum_of_ranks(const Communicator& comm) {
  const Tensor tensor = at::full({1}, DistributedManager::get().rank(), at::kInt);
  allreduce_inplace(tensor, ReduceOp::SUM, comm);
  return tensor.item<int>();
}

int sum(const Ranks& ranks) {
  int total = 0;
  for (const int rank : ranks) total += rank;
  return total;
}

// What the environment says of every rank's node: "0,0,1,1".
Ranks nodes_of_environment() {
  Ranks nodes;
  for (const char* at = std::getenv("TEST_NODES"); *at != '\0'; ++at) {
    if (*at != ',') nodes.push_back(*at - '0');
  }
  return nodes;
}

std::vector<Variables> ranks_on(const std::vector<int>& ranks_per_node) {
  std::string nodes;
  for (size_t node = 0; node < ranks_per_node.size(); ++node) {
    for (int i = 0; i < ranks_per_node[node]; ++i) nodes += std::to_string(node) + ",";
  }
  return with(ranks_on_nodes(ranks_per_node), "TEST_NODES", nodes);
}

void expect_communicator(const Communicator& comm, const Ranks& ranks, int world_rank) {
  EXPECT_EQ(comm.ranks(), ranks);
  EXPECT_EQ(comm.nranks(), static_cast<int>(ranks.size()));
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  if (found == ranks.end()) {
    EXPECT_EQ(comm.rank(), -1);
    EXPECT_FALSE(comm.is_member());
    text_of<NotAMemberError>([&] { sum_of_ranks(comm); });
    return;
  }
  EXPECT_TRUE(comm.is_member());
  EXPECT_EQ(comm.rank(), static_cast<int>(found - ranks.begin()));
  EXPECT_EQ(sum_of_ranks(comm), sum(ranks));
}

// ---- the map of nodes

TEST(NodeMapTest, MembersAreGroupedByNodeInTheOrderOfTheGroup) {
  const Ranks nodes = {0, 0, 1, 1, 1, 2};
  EXPECT_EQ(members_by_node({1, 2, 4}, nodes), (NodeMembers{{1}, {2, 4}}));
  EXPECT_EQ(members_by_node({4, 0, 3}, nodes), (NodeMembers{{4, 3}, {0}}));
  EXPECT_EQ(members_by_node({5}, nodes), (NodeMembers{{5}}));
}

TEST(NodeMapTest, EachNodesFirstMemberLeadsIt) {
  const NodeMembers nodes = {{0, 1, 2}, {3}, {4, 5}};
  EXPECT_EQ(leaders_of(nodes), (Ranks{0, 3, 4}));
  EXPECT_EQ(members_beside(nodes, 5), (Ranks{4, 5}));
  EXPECT_EQ(members_beside(nodes, 6), Ranks());
}

// ---- groups of every shape

MESHRUN_RANK_FUNCTION(every_subset) {
  const Job job;
  const Ranks nodes = nodes_of_environment();
  ASSERT_EQ(nodes.size(), static_cast<size_t>(job.size));
  for (int subset = 1; subset < 1 << job.size; ++subset) {
    Ranks ranks;
    for (int rank = job.size - 1; rank >= 0; --rank) {
      if (subset >> rank & 1) ranks.push_back(rank);
    }
    const BaguaProcessGroup group = new_group(ranks);
    std::sort(ranks.begin(), ranks.end());
    EXPECT_EQ(group.ranks(), ranks);
    expect_communicator(group.get_global_communicator(), ranks, job.rank);

    Ranks mine, leaders, seen;
    const bool is_member = std::find(ranks.begin(), ranks.end(), job.rank) != ranks.end();
    for (const int rank : ranks) {
      if (is_member && nodes[rank] == nodes[job.rank]) mine.push_back(rank);
      if (std::find(seen.begin(), seen.end(), nodes[rank]) == seen.end()) leaders.push_back(rank);
      seen.push_back(nodes[rank]);
    }
    EXPECT_EQ(group.intra_ranks(), mine);
    EXPECT_EQ(group.inter_ranks(), leaders);
    expect_communicator(group.get_intra_node_communicator(), mine, job.rank);
    expect_communicator(group.get_inter_node_communicator(), leaders, job.rank);
  }
}

class EveryShape : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Nodes, EveryShape,
                         ::testing::Values(std::vector<int>{1}, std::vector<int>{2},
                                           std::vector<int>{1, 1}, std::vector<int>{3},
                                           std::vector<int>{2, 2}, std::vector<int>{3, 1},
                                           std::vector<int>{1, 1, 2}, std::vector<int>{1, 1, 1, 1}),
                         [](const auto& info) {
                           std::string name;
                           for (const int count : info.param) name += std::to_string(count);
                           return name;
                         });

TEST_P(EveryShape, HasTheThreeCommunicatorsOfEveryGroup) {
  expect_success(run_ranks("every_subset", ranks_on(GetParam())));
}

MESHRUN_RANK_FUNCTION(not_members) {
  const Job job;
  const Communicator comm = new_group(Ranks{0}).get_global_communicator();
  if (job.rank == 1) {
    const auto refused = [&](const std::function<void()>& call) {
      expect_contains(text_of<NotAMemberError>(call), "ranks in the job are [0]");
    };
    const Tensor tensor = at::ones({2}), other = at::ones({2});
    const std::vector<int64_t> one = {1}, zero = {0};
    refused([&] { allreduce(tensor, other, ReduceOp::SUM, comm); });
    refused([&] { allreduce_inplace(tensor, ReduceOp::SUM, comm); });
    refused([&] { allreduce_coalesced_inplace({tensor}, ReduceOp::SUM, comm); });
    refused([&] { reduce(tensor, other, 0, ReduceOp::SUM, comm); });
    refused([&] { reduce_inplace(tensor, 0, ReduceOp::SUM, comm); });
    refused([&] { broadcast(tensor, 0, comm); });
    refused([&] { broadcast_coalesced({tensor}, 0, comm); });
    refused([&] { broadcast_object(1, 0, comm); });
    refused([&] { allgather(tensor, other, comm); });
    refused([&] { allgather_inplace(tensor, comm); });
    refused([&] { gather(tensor, other, 0, comm); });
    refused([&] { gather_inplace(tensor, 2, 0, comm); });
    refused([&] { scatter(tensor, other, 0, comm); });
    refused([&] { scatter_inplace(tensor, 2, 0, comm); });
    refused([&] { reduce_scatter(tensor, other, ReduceOp::SUM, comm); });
    refused([&] { reduce_scatter_inplace(tensor, ReduceOp::SUM, comm); });
    refused([&] { alltoall(tensor, other, comm); });
    refused([&] { alltoall_inplace(tensor, comm); });
    refused([&] { alltoall_v(tensor, one, zero, other, one, zero, comm); });
    refused([&] { alltoall_v_inplace(tensor, one, zero, one, zero, comm); });
    refused([&] { send(tensor, 0, comm); });
    refused([&] { recv(tensor, 0, comm); });
    refused([&] { barrier(comm); });
    refused([&] { comm.abort(); });
    refused([&] { comm.check_abort(); });
  } else {
    EXPECT_EQ(sum_of_ranks(comm), 0);
  }
}

TEST(ProcessGroupTest, EveryOperationOfOneThatIsNoMemberIsATypedError) {
  expect_success(run_ranks("not_members", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(wrong_groups) {
  const Job job;
  expect_contains(text_of<GroupError>([] { init_process_group(); }), "called before");
  expect_contains(text_of<GroupError>([] { new_group(Ranks{0, 7}); }), "rank 7 of [0, 7]");
  expect_contains(text_of<GroupError>([] { new_group(Ranks{}); }), "at least one rank");
  expect_contains(text_of<GroupError>([] { new_group(Ranks{1, 1}); }), "named twice");
  // Wrong on one rank alone.
  expect_contains(text_of<GroupError>([&] {
                    new_group(job.rank == 2 ? Ranks{0, 7} : Ranks{0, 1});
                  }),
                  "wrong arguments on rank 2: rank 7 of [0, 7]");
  expect_contains(text_of<GroupError>([&] {
                    new_group(job.rank == 1 ? Ranks{0, 1} : Ranks{0, 2});
                  }),
                  "with ranks [0, 2] on rank 0 and with [0, 1] on rank 1");
  expect_contains(text_of<GroupError>([] { from_torch_group({}); }), "no process group");
  EXPECT_EQ(sum_of_ranks(new_group().get_global_communicator()), sum({0, 1, 2}));
}

TEST(ProcessGroupTest, AGroupThatCannotBeIsAnErrorOnEveryRank) {
  expect_success(run_ranks("wrong_groups", env_ranks(3)));
}

MESHRUN_RANK_FUNCTION(named_groups) {
  const Job job;
  const BaguaProcessGroup group({1, 0}, std::nullopt, "pair");
  EXPECT_EQ(group.group_name(), "pair");
  EXPECT_EQ(group.ranks(), (Ranks{0, 1}));
  EXPECT_EQ(sum_of_ranks(group.get_global_communicator()), 1);
  expect_contains(text_of<GroupError>([] {
                    BaguaProcessGroup({0, 1}, std::nullopt, "pair");
                  }),
                  "\"pair\" already");
  expect_contains(text_of<GroupError>([] { BaguaProcessGroup({2}, std::nullopt, "two"); }),
                  "rank 2");
}

TEST(ProcessGroupTest, CanBeMadeByNameByItsMembers) {
  expect_success(run_ranks("named_groups", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(torch_groups) {
  const Job job;
  DistributedManager::create_process_subgroup("pairs", 2);
  const ProcessGroupPtr pair = DistributedManager::get().group("pairs");
  const int first = job.rank / 2 * 2;
  // Twice: two groups over one handle.
  for (int i = 0; i < 2; ++i) {
    const BaguaProcessGroup group = from_torch_group(pair);
    EXPECT_EQ(group.get_global_communicator().group(), pair);
    expect_communicator(group.get_global_communicator(), {first, first + 1}, job.rank);
    // Nodes of 1, 2 and 1 ranks: the pairs are {0 | 1} and {2 | 3}.
    expect_communicator(group.get_intra_node_communicator(), {job.rank}, job.rank);
    expect_communicator(group.get_inter_node_communicator(), {first, first + 1}, job.rank);
  }
}

TEST(ProcessGroupTest, IsMadeOfAC10dGroupByItsMembersAlone) {
  expect_success(run_ranks("torch_groups", ranks_on({1, 2, 1})));
}

MESHRUN_RANK_FUNCTION(life) {
  at::set_num_threads(1);
  EXPECT_FALSE(is_initialized());
  text_of<GroupError>([] { default_process_group(); });
  text_of<GroupError>([] { barrier(); });
  init_process_group();  // joins the job
  EXPECT_TRUE(is_initialized());
  EXPECT_TRUE(DistributedManager::is_initialized());
  const BaguaProcessGroup first = default_process_group();
  EXPECT_EQ(first.ranks(), (Ranks{0, 1}));
  barrier();
  EXPECT_EQ(Communicator().nranks(), 2);
  const Communicator kept = new_group().get_global_communicator();
  barrier(kept);
  DistributedManager::cleanup(true);
  EXPECT_FALSE(is_initialized());
  // Handles that are kept keep nothing alive: the ranks can meet again.
  expect_contains(text_of<GroupAbortedError>([&] { barrier(kept); }), "has ended");
  expect_contains(text_of<GroupAbortedError>([&] { first.get_intra_node_communicator(); }),
                  "has ended");
  init_process_group();
  EXPECT_EQ(sum_of_ranks(new_group().get_global_communicator()), 1);
  DistributedManager::cleanup(true);
}

TEST(ProcessGroupTest, LivesFromInitToCleanupAndAgain) {
  expect_success(run_ranks("life", env_ranks(2)));
}

MESHRUN_RANK_FUNCTION(given_store) {
  at::set_num_threads(1);
  DistributedManager::initialize({.backend = "ucx"});
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>("mine", DistributedManager::get().store());
  init_process_group(store);
  EXPECT_EQ(sum_of_ranks(new_group(Ranks{0, 1}).get_global_communicator()), 1);
  EXPECT_GT(store->getNumKeys(), 0);
  EXPECT_TRUE(
      store->check({fmt::format("group/bagua/1/global/2-{:016x}/ucx/0", Fingerprint("0,1"))}))
      << "addresses are in the store";
  DistributedManager::cleanup(true);
}

TEST(ProcessGroupTest, ExchangesAddressesThroughTheGivenStore) {
  expect_success(run_ranks("given_store", env_ranks(2)));
}

// ---- objects

c10::Dict<std::string, Tensor> state_of(torch::optim::Adam& optimizer) {
  c10::Dict<std::string, Tensor> state;
  int number = 0;
  for (const Tensor& parameter : optimizer.param_groups()[0].params()) {
    const auto& of_parameter = static_cast<const torch::optim::AdamParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    const std::string prefix = std::to_string(number++) + ".";
    state.insert(prefix + "step", at::full({}, of_parameter.step(), at::kLong));
    state.insert(prefix + "exp_avg", of_parameter.exp_avg());
    state.insert(prefix + "exp_avg_sq", of_parameter.exp_avg_sq());
  }
  return state;
}

MESHRUN_RANK_FUNCTION(objects) {
  const Job job;
  for (int src = 0; src < job.size; ++src) {
    const auto sent = [&](c10::IValue value) {
      return broadcast_object(job.rank == src ? std::move(value) : c10::IValue(), src);
    };
    EXPECT_EQ(sent(42).toInt(), 42);
    EXPECT_EQ(sent(0.1).toDouble(), 0.1);
    EXPECT_EQ(sent(std::string(100000, 'x')).toStringRef(), std::string(100000, 'x'));
    EXPECT_TRUE(sent(c10::IValue()).isNone());
    const std::vector<int64_t> list = sent(std::vector<int64_t>{3, 1, 2}).toIntVector();
    EXPECT_EQ(list, (std::vector<int64_t>{3, 1, 2}));
    const Tensor tensor = at::arange(6, at::kBFloat16).view({2, 3}).t();
    EXPECT_TRUE(at::equal(sent(tensor).toTensor(), tensor));
    c10::Dict<std::string, c10::List<Tensor>> dict;
    dict.insert("a", c10::List<Tensor>({at::ones({2}), at::zeros({0, 3}, at::kBool)}));
    const auto received = sent(dict).toGenericDict();
    EXPECT_EQ(received.at("a").toTensorVector()[1].sizes(), at::IntArrayRef({0, 3}));
  }

  // Training has begun on rank 0 alone.
  at::manual_seed(7 + job.rank);
  torch::nn::Linear network(3, 2);
  torch::optim::Adam optimizer(network->parameters());
  network->forward(at::ones({4, 3})).square().sum().backward();
  optimizer.step();
  const c10::Dict<std::string, Tensor> own = state_of(optimizer);
  const c10::IValue state = broadcast_object(own);
  EXPECT_EQ(state.toGenericDict().size(), 6U);
  for (const auto& entry : state.toGenericDict()) {
    Tensor of_first = own.at(entry.key().toStringRef()).detach().clone();
    broadcast(of_first);
    EXPECT_TRUE(at::equal(entry.value().toTensor(), of_first)) << entry.key();
  }
}

TEST(BroadcastObjectTest, BringsNumbersTextsTensorsAndAnOptimizersState) {
  expect_success(run_ranks("objects", env_ranks(3)));
}

MESHRUN_RANK_FUNCTION(wrong_objects) {
  const Job job;
  struct Handle : torch::CustomClassHolder {};
  const c10::IValue capsule = c10::IValue::make_capsule(c10::make_intrusive<Handle>());
  const std::string text =
      text_of<ObjectError>([&] { broadcast_object(job.rank == 1 ? capsule : c10::IValue(1), 1); });
  expect_contains(text, "rank 1");
  expect_contains(text, "cannot write its object");
  expect_contains(text_of<CollectiveArgumentError>([] { broadcast_object(1, 5); }), "src is 5");
  EXPECT_EQ(broadcast_object(7).toInt(), 7);
}

TEST(BroadcastObjectTest, WhatCannotBeWrittenIsAnErrorOnEveryRank) {
  expect_success(run_ranks("wrong_objects", env_ranks(2)));
}

// ---- all-reduce in levels

// Sums that are exact in any order, in every dtype.
Tensor whole_numbers(int rank, int64_t count, at::ScalarType type) {
  return ((at::arange(count, at::kLong) * 5 + rank * 3).remainder(8) - 2).to(type);
}

MESHRUN_RANK_FUNCTION(in_levels) {
  const Job job;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kInt}) {
    for (const int64_t count : {0, 1, 2, 3, 7, 40000}) {
      Tensor total = at::zeros({count}, at::kDouble),
             largest = at::full({count}, -100, at::kDouble);
      for (int rank = 0; rank < job.size; ++rank) {
        total += whole_numbers(rank, count, type).to(at::kDouble);
        largest = at::maximum(largest, whole_numbers(rank, count, type).to(at::kDouble));
      }
      const auto expect = [&](ReduceOp op, const Tensor& expected) {
        const Tensor tensor = whole_numbers(job.rank, count, type);
        hierarchical_allreduce_inplace(tensor, op);
        EXPECT_TRUE(at::equal(tensor, expected)) << to_string(op) << " of " << c10::toString(type)
                                                 << " [" << count << "] on rank " << job.rank;
      };
      expect(ReduceOp::SUM, total.to(type));
      expect(ReduceOp::MAX, largest.to(type));
      if (type == at::kInt) continue;
      // Divided once: not the mean of the nodes' means.
      const Tensor wide = type == at::kBFloat16 ? total.to(at::kFloat) : total.to(type);
      expect(ReduceOp::AVG, wide.div(job.size).to(type));
    }
  }
  // Rows of a matrix, and a part of the ranks.
  const Tensor matrix = at::full({3, 8}, static_cast<float>(job.rank));
  hierarchical_allreduce_inplace(matrix.narrow(1, 2, 5), ReduceOp::SUM);
  EXPECT_EQ(matrix.select(1, 6).sum().item<float>(), 3.0F * (job.size * (job.size - 1) / 2));
  EXPECT_EQ(matrix.select(1, 7).sum().item<float>(), 3.0F * job.rank);
  Ranks ranks;
  for (int rank = 0; rank<job.size; rank += job.size> 3 ? 3 : 1) ranks.push_back(rank);
  const BaguaProcessGroup group = new_group(ranks);
  const Tensor tensor = at::full({5}, static_cast<double>(job.rank));
  if (group.get_global_communicator().is_member()) {
    hierarchical_allreduce_inplace(tensor, ReduceOp::SUM, group);
    EXPECT_EQ(tensor[4].item<double>(), sum(ranks));
  } else {
    text_of<NotAMemberError>([&] { hierarchical_allreduce_inplace(tensor, ReduceOp::SUM, group); });
  }
}

TEST_P(EveryShape, ReducesInLevelsToTheSumAndTheMeanOfAllRanks) {
  expect_success(run_ranks("in_levels", ranks_on(GetParam())));
}

// All ranks have the same bits, whatever the numbers.
MESHRUN_RANK_FUNCTION(same_bits_in_levels) {
  const Job job;
  at::manual_seed(job.rank);
  Tensor tensor = at::randn({9973});
  const Tensor flat = tensor.clone();
  hierarchical_allreduce_inplace(tensor, ReduceOp::AVG);
  const Tensor of_first = tensor.clone();
  broadcast(of_first);
  EXPECT_TRUE(at::equal(tensor, of_first));
  allreduce_inplace(flat, ReduceOp::AVG);
  EXPECT_TRUE(at::allclose(tensor, flat, 1e-5, 1e-6));
}

TEST(HierarchicalTest, GivesEveryRankTheSameBits) {
  expect_success(run_ranks("same_bits_in_levels", ranks_on({3, 1})));
}

MESHRUN_RANK_FUNCTION(wrong_in_levels) {
  const Job job;
  const bool is_wrong = job.rank == 3;
  expect_contains(text_of<CollectiveMismatchError>(
                      [&] { hierarchical_allreduce_inplace(at::ones({is_wrong ? 6 : 5})); }),
                  "float32 [6], sum");
  expect_contains(text_of<CollectiveMismatchError>([&] {
                    hierarchical_allreduce_inplace(at::ones({5}),
                                                   is_wrong ? ReduceOp::AVG : ReduceOp::SUM);
                  }),
                  "average");
  expect_contains(text_of<CollectiveArgumentError>(
                      [&] { hierarchical_allreduce_inplace(is_wrong ? Tensor() : at::ones({5})); }),
                  "undefined tensor");
  expect_contains(text_of<CollectiveArgumentError>([&] {
                    hierarchical_allreduce_inplace(at::ones({5}, at::kInt), ReduceOp::AVG);
                  }),
                  "average of int32");
  const Tensor tensor = at::ones({5});
  hierarchical_allreduce_inplace(tensor);
  EXPECT_EQ(tensor[0].item<float>(), 4.0F);
}

TEST(HierarchicalTest, AWrongCallOnOneNodeIsTheSameErrorOnAll) {
  expect_success(run_ranks("wrong_in_levels", ranks_on({2, 2})));
}

}  // namespace
}  // namespace meshrun::bagua
