// DistributedManager in real rank processes, over Gloo on the loopback interface.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/full.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/base/collective_errors.h"
#include "parallel/base/errors.h"
#include "parallel/manager/bootstrap.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/support/fake_agent.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

DistributedManager& manager() { return DistributedManager::get(); }

// The sum of `value` over the group.
float sum(const ProcessGroupPtr& group, float value) {
  std::vector<at::Tensor> tensors = {at::full({3}, value)};
  group->allreduce(tensors)->wait();
  return tensors[0][2].item<float>();
}

// The sum of the global ranks of a group's members: says who is in it.
float sum_of_ranks(const ProcessGroupPtr& group) {
  return sum(group, static_cast<float>(manager().rank()));
}

template <typename ErrorType, typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const ErrorType& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no exception";
  return "";
}

class CapturedWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

std::vector<Variables> with(std::vector<Variables> ranks, const std::string& name,
                            const std::string& value) {
  for (Variables& variables : ranks) variables[name] = value;
  return ranks;
}

// ---- one world

// What holds in every world of the ENV launch; the tests below start from it in worlds of 1 to 4.
void check_world() {
  const int n = manager().world_size();
  EXPECT_TRUE(DistributedManager::is_initialized());
  EXPECT_EQ(std::to_string(manager().rank()), std::getenv("RANK"));
  EXPECT_EQ(std::to_string(n), std::getenv("WORLD_SIZE"));
  EXPECT_EQ(manager().local_rank(), manager().rank());
  EXPECT_EQ(manager().local_world_size(), n);
  EXPECT_EQ(manager().node_rank(), 0);
  EXPECT_TRUE(manager().distributed());
  EXPECT_EQ(manager().backend(), "ucx");
  EXPECT_EQ(manager().initialization_method(), "ENV");
  EXPECT_EQ(manager().agent(), nullptr);
  EXPECT_EQ(manager().device(), c10::Device(c10::DeviceType::CPU));
  EXPECT_FLOAT_EQ(sum(manager().world(), 1), static_cast<float>(n));
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group()), static_cast<float>(n * (n - 1) / 2));
  EXPECT_EQ(manager().group("world"), manager().world());
  manager().world()->barrier()->wait();
}

const bool kWorld = register_rank_function("world", [] {
  EXPECT_FALSE(DistributedManager::is_initialized());
  DistributedManager::initialize();
  check_world();
  DistributedManager::cleanup();
  EXPECT_FALSE(DistributedManager::is_initialized());
});

TEST(ManagerTest, OneRankOfEnvIsAWorld) { expect_success(run_ranks("world", env_ranks(1))); }

const bool kAloneGroups = register_rank_function("alone_groups", [] {
  DistributedManager::initialize();
  // A program that asks for the axes of its mesh also runs alone.
  EXPECT_EQ(manager().group_size("dp"), 1);
  EXPECT_EQ(manager().group_rank("dp"), 0);
  EXPECT_THAT(manager().group_ranks("dp"), ElementsAre(0));
  EXPECT_FLOAT_EQ(sum(manager().group("dp"), 3), 3);
  EXPECT_EQ(manager().group("dp"), manager().group("dp"));
  EXPECT_EQ(manager().group_name(manager().group("dp")), "dp");
  EXPECT_THAT(manager().group_names(), IsEmpty());
  // Where there is a mesh its names count.
  manager().initialize_mesh({1, 1}, {"dp", "spatial"});
  EXPECT_EQ(manager().group_size("dp"), 1);
  EXPECT_THAT(message_of<UndefinedGroupError>([] { manager().group_size("tp"); }),
              HasSubstr("\"tp\""));
});
TEST(ManagerTest, ARankAloneHasEveryGroup) { expect_success(run_ranks("alone_groups", {{}})); }

const bool kFrames = register_rank_function("frames", [] {
  DistributedManager::initialize();
  const auto raised = [] {
    try {
      TORCH_CHECK(false, "a sentence");
    } catch (const c10::Error& error) {
      return std::string(error.what());
    }
  }();
  EXPECT_THAT(raised, AllOf(HasSubstr("a sentence"), Not(HasSubstr("frame #"))));
});
TEST(ManagerTest, ErrorsCarryNoFramesOfUnknownFunctions) {
  expect_success(run_ranks("frames", {{}}, RankStart::kExec));
}

const bool kKept = register_rank_function("kept_handles", [] {
  DistributedManager::initialize();
  const ProcessGroupPtr world = manager().world();
  EXPECT_FLOAT_EQ(sum(world, 1), static_cast<float>(manager().world_size()));
  DistributedManager::cleanup(true);
  EXPECT_FALSE(message_of<c10::Error>([&] { sum(world, 1); }).empty());
  // The next world at the same address begins anew, whatever is kept of this one.
  DistributedManager::initialize();
  EXPECT_FLOAT_EQ(sum(manager().world(), 1), static_cast<float>(manager().world_size()));
  DistributedManager::cleanup(true);
});
TEST(ManagerTest, HandlesThatOutliveCleanupRaise) {
  for (const int size : {1, 2}) {
    SCOPED_TRACE(size);
    expect_success(run_ranks("kept_handles", env_ranks(size)));
  }
}

const bool kOtherLauncher = register_rank_function("other_launcher", [] {
  DistributedManager::initialize();
  EXPECT_EQ(manager().initialization_method(), std::getenv("TEST_EXPECTED_METHOD"));
  EXPECT_EQ(manager().local_rank(), manager().rank());
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().world()), 1);
});

TEST(ManagerTest, RanksMeetThroughSlurm) {
  const std::string port = std::to_string(free_port());
  std::vector<Variables> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back({{"SLURM_PROCID", rank},
                     {"SLURM_NPROCS", "2"},
                     {"SLURM_LOCALID", rank},
                     {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                     {"MASTER_PORT", port},
                     {"TEST_EXPECTED_METHOD", "SLURM"}});
  }
  expect_success(run_ranks("other_launcher", ranks));
}

TEST(ManagerTest, RanksMeetThroughOpenMpi) {
  std::vector<Variables> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back({{"OMPI_COMM_WORLD_RANK", rank},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMIX_NAMESPACE", std::to_string(getpid())},
                     {"TEST_EXPECTED_METHOD", "OPENMPI"}});
  }
  expect_success(run_ranks("other_launcher", ranks));
}

TEST(ManagerTest, RanksMeetThroughMpich) {
  const std::string port = std::to_string(free_port());
  std::vector<Variables> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back({{"PMI_RANK", rank},
                     {"PMI_SIZE", "2"},
                     {"MPI_LOCALRANKID", rank},
                     {"MPI_LOCALNRANKS", "2"},
                     {"MASTER_PORT", port},
                     {"TEST_EXPECTED_METHOD", "MPICH"}});
  }
  expect_success(run_ranks("other_launcher", ranks));
}

TEST(ManagerTest, RankZeroIsAClientOfTorchrunsStore) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free_port());
  options.isServer = true;
  options.waitWorkers = false;
  const auto launcher = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<Variables> ranks = with(env_ranks(2), "MASTER_PORT", std::to_string(options.port));
  ranks = with(with(ranks, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RUN_ID", "run");
  expect_success(run_ranks("world", ranks));
  expect_success(run_ranks("world", with(ranks, "TORCHELASTIC_RESTART_COUNT", "1")));
}

// ---- groups

void check_groups() {
  const int rank = manager().rank();
  EXPECT_THAT(message_of<GroupError>([] { DistributedManager::create_process_subgroup("tp", 3); }),
              AllOf(HasSubstr("\"world\" of 4 ranks"), HasSubstr("4 is not a multiple of 3")));
  EXPECT_THAT(message_of<GroupError>([] { DistributedManager::create_process_subgroup("tp", 0); }),
              HasSubstr("at least 1"));
  EXPECT_THAT(message_of<UndefinedGroupError>(
                  [] { DistributedManager::create_process_subgroup("tp", 2, "pp"); }),
              AllOf(HasSubstr("\"pp\""), HasSubstr("\"world\"")));
  EXPECT_THAT(message_of<UndefinedGroupError>(
                  [] { DistributedManager::create_orthogonal_process_group("dp", "tp"); }),
              HasSubstr("\"tp\""));
  EXPECT_THAT(manager().group_names(), IsEmpty());

  DistributedManager::create_process_subgroup("tp", 2, std::nullopt, true);
  DistributedManager::create_orthogonal_process_group("dp", "tp", true);
  EXPECT_THAT(manager().group_names(), ElementsAre("tp", "dp"));
  EXPECT_EQ(manager().group_size("tp"), 2);
  EXPECT_EQ(manager().group_rank("tp"), rank % 2);
  EXPECT_EQ(manager().group_rank("dp"), rank / 2);
  EXPECT_THAT(manager().group_ranks("dp"), ElementsAre(rank % 2, rank % 2 + 2));
  EXPECT_EQ(manager().group("tp")->getRank(), rank % 2);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("tp")), rank < 2 ? 1 : 5);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("dp")), rank % 2 == 0 ? 2 : 4);
  EXPECT_EQ(manager().group("tp"), manager().group("tp"));
  EXPECT_EQ(manager().group_name(manager().group("tp")), "tp");
  EXPECT_EQ(manager().group_name(manager().world()), "world");
  EXPECT_EQ(manager().group_name(), "world");

  DistributedManager::create_process_subgroup("alone", 1, "tp");
  EXPECT_EQ(manager().group_size("alone"), 1);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("alone")), static_cast<float>(rank));
  for (const char* name : {"tp", "world", "alone"}) {
    EXPECT_THAT(
        message_of<GroupError>([&] { DistributedManager::create_process_subgroup(name, 2); }),
        HasSubstr("exists already"));
  }
  EXPECT_THAT(message_of<UndefinedGroupError>([] { manager().group("nothing"); }),
              AllOf(HasSubstr("\"nothing\""), HasSubstr("\"world\", \"tp\", \"dp\", \"alone\"")));
  EXPECT_FLOAT_EQ(sum(manager().world(), 1), 4);
}

void check_config() {
  ProcessGroupConfig config(ProcessGroupNode("world"));
  config.add_node(ProcessGroupNode("model"), "world");
  config.add_node(ProcessGroupNode("data"), "world");
  EXPECT_THAT(message_of<GroupError>([&] { config.add_node(ProcessGroupNode("x"), "nowhere"); }),
              HasSubstr("\"nowhere\""));
  EXPECT_THAT(
      message_of<GroupError>([&] { DistributedManager::create_groups_from_config(config); }),
      HasSubstr("\"world\" of the configuration has no size"));
  config.set_leaf_group_sizes({{"model", 2}, {"data", 4}});
  EXPECT_THAT(
      message_of<GroupError>([&] { DistributedManager::create_groups_from_config(config); }),
      AllOf(HasSubstr("has 8 ranks"), HasSubstr("has 4")));
  EXPECT_THAT(manager().group_names(), IsEmpty());
  config.set_leaf_group_sizes({{"model", 2}, {"data", 2}});
  DistributedManager::create_groups_from_config(config);
  const int rank = manager().rank();
  EXPECT_THAT(manager().group_ranks("model"), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
  EXPECT_THAT(manager().group_ranks("data"), ElementsAre(rank % 2, rank % 2 + 2));
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("model")), rank < 2 ? 1 : 5);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("data")), rank % 2 == 0 ? 2 : 4);
}

// ---- meshes

void check_mesh() {
  const int rank = manager().rank();
  EXPECT_THAT(message_of<UndefinedGroupError>([] { manager().mesh("dp"); }),
              HasSubstr("no mesh was initialized"));
  EXPECT_THAT(message_of<MeshError>([] {
                manager().initialize_mesh({3, 2}, {"dp", "tp"});
              }),
              AllOf(HasSubstr("dp=3,tp=2"), HasSubstr("has 4")));
  EXPECT_THAT(manager().global_mesh().mesh_dim_names(), ElementsAre("world"));
  EXPECT_EQ(manager().get_mesh_group(manager().global_mesh()), manager().world());

  const DeviceMesh& mesh = manager().initialize_mesh({-1, 2}, {"dp", "tp"});
  EXPECT_EQ(mesh, manager().global_mesh());
  EXPECT_THAT(mesh.shape(), ElementsAre(2, 2));
  EXPECT_THAT(mesh.get_coordinate(), ElementsAre(rank / 2, rank % 2));
  EXPECT_EQ(mesh.size("dp"), 2);
  EXPECT_EQ(mesh.get_local_rank("tp"), rank % 2);
  EXPECT_THAT(manager().mesh_names(), ElementsAre("dp", "tp"));
  EXPECT_EQ(manager().mesh_dims(), (std::map<std::string, int64_t>{{"dp", 2}, {"tp", 2}}));
  EXPECT_THAT(manager().mesh("dp").ranks(), ElementsAre(rank % 2, rank % 2 + 2));
  EXPECT_EQ(manager().mesh(), mesh);
  EXPECT_EQ(&manager().initialize_mesh({2, 2}, {"dp", "tp"}), &mesh);
  EXPECT_THAT(message_of<MeshError>([] { manager().initialize_mesh({4}, {"dp"}); }),
              AllOf(HasSubstr("dp=2,tp=2"), HasSubstr("dp=4")));
  EXPECT_THAT(message_of<UndefinedGroupError>([] { manager().mesh("pp"); }),
              HasSubstr("\"dp\", \"tp\""));
  EXPECT_THAT(message_of<MeshError>([&] { mesh["pp"]; }), HasSubstr("\"pp\""));

  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("dp")), rank % 2 == 0 ? 2 : 4);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().get_mesh_group(mesh["tp"])), rank < 2 ? 1 : 5);
  EXPECT_EQ(manager().get_mesh_group(mesh["tp"]), manager().group("tp"));
  const ProcessGroupPtr whole = manager().get_mesh_group(mesh);
  EXPECT_FLOAT_EQ(sum_of_ranks(whole), 6);
  EXPECT_EQ(manager().get_mesh_group(mesh.submesh({"tp", "dp"})), whole);
  EXPECT_THAT(message_of<GroupError>([] { DistributedManager::create_process_subgroup("dp", 2); }),
              HasSubstr("exists"));
}

// What rank 3 calls is another.
template <typename Error, typename Call>
void expect_refused(Call call, const char* ours, const char* theirs) {
  EXPECT_THAT(message_of<Error>(call),
              AllOf(HasSubstr(ours), HasSubstr(theirs), HasSubstr("rank 0"), HasSubstr("rank 3")));
}

// Without an error, groups of other arguments would wait for each other.
void check_differences() {
  const bool last = manager().rank() == 3;
  const auto create = &DistributedManager::create_process_subgroup;
  expect_refused<GroupError>([&] { create("tp", last ? 4 : 2, std::nullopt, false); },
                             "create_process_subgroup(\"tp\", 2)",
                             "create_process_subgroup(\"tp\", 4)");
  expect_refused<GroupError>([&] { create(last ? "dp" : "tp", 2, std::nullopt, false); }, "\"tp\"",
                             "\"dp\"");
  expect_refused<GroupError>([&] { create("tp", last ? 3 : 2, std::nullopt, false); }, "2)", "3)");
  expect_refused<GroupError>(
      [&] { create("tp", last ? int64_t{1} << 40 : 2, std::nullopt, false); }, "2)",
      "1099511627776)");
  const std::optional<std::string> nothing = "nothing";
  expect_refused<GroupError>([&] { create("tp", 2, last ? nothing : std::nullopt, false); }, "2)",
                             "2, \"nothing\")");
  expect_refused<MeshError>(
      [&] {
        manager().initialize_mesh({last ? 4 : 2, -1}, {"dp", "tp"});
      },
      "initialize_mesh({2, -1}, {dp, tp})", "initialize_mesh({4, -1}, {dp, tp})");
  ProcessGroupConfig config(ProcessGroupNode("world"));
  config.add_node(ProcessGroupNode("model"), "world");
  config.add_node(ProcessGroupNode("data"), "world");
  config.set_leaf_group_sizes({{"model", last ? 4 : 2}, {"data", last ? 1 : 2}});
  expect_refused<GroupError>([&] { DistributedManager::create_groups_from_config(config); },
                             "world=4 (model=2 data=2)", "world=4 (model=4 data=1)");
  create("tp", 2, std::nullopt, false);
  expect_refused<GroupError>(
      [&] {
        last ? DistributedManager::create_orthogonal_process_group("dp", "tp")
             : DistributedManager::create_orthogonal_process_group("data", "tp");
      },
      "(\"data\", \"tp\")", "(\"dp\", \"tp\")");
  EXPECT_THAT(manager().group_names(), ElementsAre("tp"));
  EXPECT_FLOAT_EQ(sum(manager().group("tp"), 1), 2);
}

// One launch for all.
const bool kGroups = register_rank_function("groups", [] {
  for (void (*check)() : {check_groups, check_config, check_mesh, check_differences}) {
    DistributedManager::initialize();
    check_world();
    check();
    DistributedManager::cleanup();
  }
});

TEST(ManagerTest, GroupsConfigurationsAndMeshesCommunicate) {
  const std::vector<RankResult> results = run_ranks("groups", env_ranks(4));
  expect_success(results);
  EXPECT_THAT(results[0].output, AllOf(HasSubstr("process group \"tp\": [0, 1] [2, 3]"),
                                       HasSubstr("process group \"dp\": [0, 2] [1, 3]")));
  EXPECT_THAT(results[1].output, ::testing::Not(HasSubstr("process group")));
}

// ---- life

// Ends without cleanup(), which is left to the exit.
const bool kTwice = register_rank_function("twice", [] {
  DistributedManager::initialize();
  check_world();
  CapturedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const DistributedManager* before = &manager();
  DistributedManager::initialize();
  DistributedManager::setup(7, 8);
  EXPECT_EQ(&manager(), before);
  EXPECT_EQ(manager().world_size(), 2);
  EXPECT_THAT(warnings.text, HasSubstr("initialized already"));
});

TEST(ManagerTest, ASecondInitializeWarnsAndExitWithoutCleanupIsClean) {
  expect_success(run_ranks("twice", env_ranks(2), RankStart::kExec));
}

const bool kAgain = register_rank_function("again", [] {
  for (int round = 1; round <= 3; ++round) {
    DistributedManager::initialize();
    check_world();
    DistributedManager::create_process_subgroup("all", 3);
    EXPECT_FLOAT_EQ(sum(manager().group("all"), static_cast<float>(round)),
                    static_cast<float>(3 * round));
    DistributedManager::cleanup();
    message_of<UninitializedError>([] { DistributedManager::get(); });
  }
});

TEST(ManagerTest, InitializeWorksAgainAndLocalityFollowsFromTheHosts) {
  std::vector<Variables> ranks = env_ranks(3);
  for (Variables& variables : ranks) variables.erase("LOCAL_RANK");
  expect_success(run_ranks("again", ranks));
}

TEST(ManagerTest, AProcessLogsOnceWhatItsWorldsUse) {
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const auto named = run_ranks("again", with(env_ranks(3), "MESHRUN_NET_DEVICES", "lo"));
  expect_success(named);
  for (const RankResult& result : named) {
    EXPECT_EQ(count(result.output, "ucx uses"), 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("interfaces=lo left_out=none cores="));
  }
  const auto by_ucx = run_ranks("again", with(env_ranks(3), "UCX_NET_DEVICES", "lo"));
  expect_success(by_ucx);
  EXPECT_EQ(count(by_ucx[0].output, "ucx uses"), 1) << by_ucx[0].output;
  EXPECT_THAT(by_ucx[0].output, HasSubstr("rank=0 interfaces=\"those of UCX\" left_out=none"));
}

const bool kPeerGone = register_rank_function("peer_gone", [] {
  DistributedManager::initialize();
  sum(manager().world(), 1);
  // Rank 1 leaves only when the others are through with it.
  const auto store = manager().store();
  store->set("through/" + std::to_string(manager().rank()), "");
  store->wait({"through/0", "through/1", "through/2"});
  if (manager().rank() == 1) _exit(0);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, CleanupReturnsWhenAPeerIsGone) {
  const std::vector<RankResult> results = run_ranks("peer_gone", env_ranks(3));
  expect_success(results);
  EXPECT_THAT(results[0].output, HasSubstr("a peer is gone"));
}

const bool kOtherCall = register_rank_function("other_call", [] {
  DistributedManager::initialize();
  if (manager().rank() == 1) {
    EXPECT_THROW(sum(manager().world(), 1), CollectiveMismatchError);
  }
  DistributedManager::cleanup(manager().rank() != 1);
});

TEST(ManagerTest, CleanupSaysThatRanksCalledDifferentThings) {
  const std::vector<RankResult> results = run_ranks("other_call", env_ranks(2));
  expect_success(results);
  EXPECT_THAT(results[0].output, HasSubstr("cleanup(): the barrier failed: Ranks disagree"));
  EXPECT_THAT(results[0].output, Not(HasSubstr("a peer is gone")));
}

// For tests/acceptance, which starts it on two hosts.
const bool kPlaces = register_rank_function("places", [] {
  DistributedManager::initialize();
  const float total = sum_of_ranks(manager().world());
  std::string nodes;
  for (const int node : manager().node_ranks()) nodes += " " + std::to_string(node);
  std::printf("rank %d: nodes%s, local rank %d of %d, on node %d, sum %g\n", manager().rank(),
              nodes.c_str(), manager().local_rank(), manager().local_world_size(),
              manager().node_rank(), total);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, RanksOfOneHostAreOneNode) {
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& variables : ranks) variables.erase("LOCAL_RANK");
  const std::vector<RankResult> results = run_ranks("places", ranks);
  expect_success(results);
  EXPECT_THAT(results[1].output,
              HasSubstr("rank 1: nodes 0 0, local rank 1 of 2, on node 0, sum 1"));
}

// A child may exit, come back from the rank's main(), or become another program: the job goes on,
// and neither the store nor the other ranks hear that its parent has left.
const bool kForks = register_rank_function("forks", [] {
  DistributedManager::initialize();
  const ProcessGroupPtr world = manager().world();
  const auto n = static_cast<float>(manager().world_size());
  const std::vector<int> pair = {0, 1};
  const ProcessGroupPtr unnamed = manager().make_group("pair", pair);
  EXPECT_FLOAT_EQ(sum(world, 1), n);
  EXPECT_FLOAT_EQ(sum(unnamed, 1), n);
  for (const char* end : {"exit", "return", "exec", "cleanup"}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      if (std::string(end) == "exit") std::exit(0);
      if (std::string(end) == "return") return;
      if (std::string(end) == "exec") execl("/bin/true", "true", nullptr);
      DistributedManager::cleanup(true);
      _exit(DistributedManager::is_initialized() ? 1 : 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << end;
    manager().world()->barrier()->wait();
    EXPECT_FLOAT_EQ(sum(world, 1), n) << end;
    EXPECT_FLOAT_EQ(sum(unnamed, 1), n) << end;
    EXPECT_EQ(manager().store()->add("left", 0), 0) << end;
  }
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, AForkedChildDoesNotLeaveTheJobOfItsParent) {
  expect_success(run_ranks("forks", env_ranks(2), RankStart::kExec));
}

TEST(ManagerTest, TheTimeOfADeadlockIsCheckedByEveryRank) {
  const auto results = run_ranks("world", with(env_ranks(2), "MESHRUN_DEADLOCK_SECONDS", "1"));
  for (const RankResult& result : results) {
    EXPECT_THAT(result.output, HasSubstr("MESHRUN_DEADLOCK_SECONDS=\"1\" is not"));
  }
}

const bool kModelParallelGroup = register_rank_function("model_parallel_group", [] {
  DistributedManager::initialize();
  const int size = std::atoi(std::getenv("MODEL_PARALLEL_SIZE"));
  const int first = manager().rank() / size * size;
  EXPECT_THAT(manager().group_names(), ElementsAre("model_parallel"));
  EXPECT_EQ(manager().group_size("model_parallel"), size);
  EXPECT_EQ(manager().group_ranks("model_parallel").front(), first);
  EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("model_parallel")),
                  static_cast<float>(size * first + size * (size - 1) / 2));
  DistributedManager::create_orthogonal_process_group("data_parallel", "model_parallel");
  EXPECT_EQ(manager().group_size("data_parallel"), manager().world_size() / size);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, ModelParallelSizeMakesAGroupOfConsecutiveRanks) {
  for (const auto& [world, size] : {std::pair(1, 1), std::pair(2, 2), std::pair(4, 2)}) {
    expect_success(run_ranks("model_parallel_group",
                             with(env_ranks(world), "MODEL_PARALLEL_SIZE", std::to_string(size))));
  }
}

const bool kModelParallelSize = register_rank_function("model_parallel_size", [] {
  EXPECT_THAT(message_of<EnvironmentError>([] { DistributedManager::initialize(); }),
              AllOf(HasSubstr("MODEL_PARALLEL_SIZE=2"), HasSubstr("world size 3")));
});

TEST(ManagerTest, AModelParallelSizeThatDoesNotDivideIsRefusedByEveryRank) {
  expect_success(run_ranks("model_parallel_size", with(env_ranks(3), "MODEL_PARALLEL_SIZE", "2")));
}

const bool kSetup = register_rank_function("setup", [] {
  const int rank = std::atoi(std::getenv("TEST_RANK"));
  const std::string port = std::getenv("TEST_PORT");
  EXPECT_THAT(message_of<BackendError>(
                  [&] { DistributedManager::setup(rank, 2, rank, "localhost", port); }),
              AllOf(HasSubstr("\"nccl\""), HasSubstr("GPU"), HasSubstr("pass backend \"ucx\"")));
  EXPECT_FALSE(DistributedManager::is_initialized());
  message_of<BackendError>(
      [&] { DistributedManager::setup(rank, 2, rank, "localhost", port, "carrier-pigeon"); });
  message_of<EnvironmentError>(
      [&] { DistributedManager::setup(2, 2, rank, "localhost", port, "gloo"); });
  message_of<EnvironmentError>(
      [&] { DistributedManager::setup(rank, 2, rank, "localhost", "http", "gloo"); });
  DistributedManager::setup(rank, 2, std::nullopt, "localhost", port, "gloo");
  EXPECT_EQ(manager().local_rank(), rank);
  EXPECT_EQ(manager().initialization_method(), "env");
  EXPECT_FLOAT_EQ(sum(manager().world(), 2), 4);
});

TEST(ManagerTest, SetupJoinsAsTold) {
  const std::string port = std::to_string(free_port());
  expect_success(run_ranks("setup", {{{"TEST_RANK", "0"}, {"TEST_PORT", port}},
                                     {{"TEST_RANK", "1"}, {"TEST_PORT", port}}}));
}

const bool kSetupTimeout = register_rank_function("setup_timeout", [] {
  EXPECT_THAT(message_of<RendezvousError>([] {
                DistributedManager::setup(1, 2, 1, "localhost", std::getenv("TEST_PORT"), "gloo");
              }),
              HasSubstr("0.3 s"));
});

TEST(ManagerTest, SetupReadsTheTimeoutToo) {
  expect_success(run_ranks("setup_timeout", {{{"TEST_PORT", std::to_string(free_port())},
                                              {"MESHRUN_TIMEOUT_SECONDS", "0.3"}}}));
}

// Rank 1 comes as a rank of another job first: same size, same port, another directory.
const bool kStranger = register_rank_function("stranger", [] {
  if (std::string(std::getenv("RANK")) == "1") {
    const std::filesystem::path home = std::filesystem::current_path();
    std::filesystem::current_path("/");
    EXPECT_THAT(message_of<RendezvousError>([] { DistributedManager::initialize(); }),
                AllOf(HasSubstr("two jobs use one port"), HasSubstr("MESHRUN_JOB_ID")));
    std::filesystem::current_path(home);
  }
  DistributedManager::initialize();
  check_world();
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, TwoJobsOfEqualSizeOnOnePortDoNotMix) {
  expect_success(run_ranks("stranger", env_ranks(2)));
}

const bool kHalfSet = register_rank_function("half_set", [] {
  std::printf("message: %s\n",
              message_of<EnvironmentError>([] { DistributedManager::initialize(); }).c_str());
  EXPECT_FALSE(DistributedManager::is_initialized());
});

TEST(ManagerTest, AHalfSetEnvironmentIsReportedByEveryRank) {
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& variables : ranks) variables.erase("MASTER_ADDR");
  const std::vector<RankResult> results = run_ranks("half_set", ranks);
  expect_success(results);
  for (const RankResult& result : results)
    EXPECT_THAT(result.output, HasSubstr("message: MASTER_ADDR is not set"));
}

const bool kSingle = register_rank_function("single", [] {
  DistributedManager::initialize();
  EXPECT_EQ(manager().initialization_method(), "SINGLE");
  EXPECT_FALSE(manager().distributed());
  EXPECT_EQ(manager().rank(), 0);
  EXPECT_EQ(manager().world_size(), 1);
  EXPECT_FALSE(manager().broadcast_buffers());
  manager().set_broadcast_buffers(true);
  manager().set_find_unused_parameters(true);
  EXPECT_TRUE(manager().broadcast_buffers());
  EXPECT_TRUE(manager().find_unused_parameters());
  DistributedManager::create_process_subgroup("tp", 1);
  DistributedManager::create_orthogonal_process_group("dp", "tp");
  EXPECT_FLOAT_EQ(sum(manager().group("dp"), 5), 5);
  EXPECT_FLOAT_EQ(sum(manager().world(), 6), 6);
  EXPECT_THAT(manager().initialize_mesh({1, -1}, {"a", "b"}).shape(), ElementsAre(1, 1));
  EXPECT_FLOAT_EQ(sum(manager().get_mesh_group(manager().mesh("a")), 7), 7);
  manager().world()->barrier()->wait();
});

TEST(ManagerTest, ASingleProcessHasGroupsAndMeshesToo) {
  expect_success(run_ranks("single", {Variables{}}));
}

const bool kTimeout = register_rank_function("timeout", [] {
  EXPECT_THAT(message_of<RendezvousError>([] { DistributedManager::initialize(); }),
              HasSubstr("0.5 s"));
});

TEST(ManagerTest, TheTimeoutIsSettable) {
  const std::vector<Variables> ranks = with(env_ranks(2), "MESHRUN_TIMEOUT_SECONDS", "0.5");
  expect_success(run_ranks("timeout", {ranks[1]}));
}

// ---- under a coordinator

std::shared_ptr<FakeAgent> fake_agent(int world_size, std::vector<Axis> mesh) {
  const int rank = std::atoi(std::getenv("TEST_RANK"));
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("TEST_PORT")));
  return std::make_shared<FakeAgent>(agent::Assignment{.job_id = "job",
                                                       .generation = 1,
                                                       .rank = rank,
                                                       .world_size = world_size,
                                                       .local_rank = rank,
                                                       .local_world_size = world_size,
                                                       .master_addr = "127.0.0.1",
                                                       .mesh = std::move(mesh)},
                                     c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
}

// Runs a rank function once per rank, over the store that fake_agent() connects to.
void run_under_coordinator(const std::string& function, int world_size) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(free_port());
  options.isServer = true;
  options.waitWorkers = false;
  const auto coordinator = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<Variables> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(
        {{"TEST_RANK", std::to_string(rank)}, {"TEST_PORT", std::to_string(options.port)}});
  }
  expect_success(run_ranks(function, ranks));
}

const bool kCoordinator = register_rank_function("coordinator", [] {
  const std::shared_ptr<FakeAgent> agent = fake_agent(4, {{"dp", 2}, {"spatial", 2}});
  for (int round = 0; round < 2; ++round) {
    DistributedManager::initialize({.agent = agent});
    const int rank = manager().rank();
    EXPECT_EQ(manager().initialization_method(), "COORDINATOR");
    EXPECT_EQ(manager().agent(), agent.get());
    EXPECT_THAT(manager().group_names(), ElementsAre("dp", "spatial"));
    EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("spatial")), rank < 2 ? 1 : 5);
    EXPECT_FLOAT_EQ(sum_of_ranks(manager().group("dp")), rank % 2 == 0 ? 2 : 4);
    EXPECT_THAT(manager().global_mesh().shape(), ElementsAre(2, 2));
    if (round == 0 && rank == 0) {
      // It knows the groups of its mesh, and the number of the first attempt.
      EXPECT_FALSE(agent->Check({"instance/newest"}).value());
      EXPECT_THAT(agent->registered_groups(), ElementsAre("world ucx: 0,1,2,3"));
    }
    if (round == 0 && rank == 1) {
      EXPECT_THAT(agent->registered_groups(), ElementsAre());
      manager().group("spatial");
      EXPECT_THAT(agent->registered_groups(), ElementsAre());
    }
    DistributedManager::cleanup();
  }
});

TEST(ManagerTest, ACoordinatorsMeshIsThereFromTheStart) { run_under_coordinator("coordinator", 4); }

const bool kModelAxis = register_rank_function("coordinator_model_axis", [] {
  const std::shared_ptr<FakeAgent> agent = fake_agent(4, {{"dp", 2}, {"model_parallel", 2}});
  setenv("MODEL_PARALLEL_SIZE", "4", 1);
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { DistributedManager::initialize({.agent = agent}); }),
      HasSubstr("MODEL_PARALLEL_SIZE=4 contradicts the mesh"));
  setenv("MODEL_PARALLEL_SIZE", "2", 1);
  DistributedManager::initialize({.agent = agent});
  EXPECT_THAT(manager().group_names(), ElementsAre("dp", "model_parallel"));
  EXPECT_FLOAT_EQ(sum(manager().group("model_parallel"), 1), 2);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, AMeshMayNameTheModelParallelGroup) {
  run_under_coordinator("coordinator_model_axis", 4);
}

const bool kRefusedGroup = register_rank_function("refused_group", [] {
  const std::shared_ptr<FakeAgent> agent = fake_agent(2, {});
  agent->refuse_groups_with(absl::InvalidArgumentError("the name is taken"));
  CapturedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  DistributedManager::initialize({.agent = agent});
  EXPECT_FLOAT_EQ(sum(manager().world(), 1), 2);
  EXPECT_EQ(warnings.text.find("the name is taken") != std::string::npos, manager().rank() == 0);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, AGroupThatIsNotListedStillWorks) { run_under_coordinator("refused_group", 2); }

// A program of another MPI than mpirun's, or one that `meshrun run` has started.
const bool kAlone = register_rank_function("alone", [] {
  const Bootstrap alone{
      .broadcast = [](void*, size_t) {},
      .all_gather = [](const void* own, void* all, size_t bytes) { std::memcpy(all, own, bytes); }};
  CapturedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  DistributedManager::initialize(alone);
  EXPECT_EQ(manager().world_size(), 1);
  EXPECT_THAT(warnings.text, HasSubstr("MPI says that this process is alone"));
  EXPECT_THAT(warnings.text, HasSubstr("one of 2"));
  DistributedManager::cleanup();
});

TEST(ManagerTest, ProcessesThatTheOtherLibraryHasNotJoinedAreTold) {
  expect_success(run_ranks("alone", env_ranks(2)));
}

// Rank 0 fails alone, then rank 1 alone, then rank 1 tries again together with rank 0.
const bool kRetry = register_rank_function("coordinator_retry", [] {
  const std::shared_ptr<FakeAgent> agent = fake_agent(2, {});
  const bool first = agent->assignment().rank == 0;
  const auto minutes = std::chrono::minutes(2);
  if (!first) {
    EXPECT_TRUE(agent->Wait({"test/failed/0"}, minutes).ok());
  }
  message_of<RendezvousError>([&] {
    DistributedManager::initialize({.timeout = std::chrono::milliseconds(300), .agent = agent});
  });
  EXPECT_FALSE(DistributedManager::is_initialized());
  EXPECT_TRUE(agent->Set(first ? "test/failed/0" : "test/failed/1", "").ok());
  EXPECT_TRUE(agent->Wait({"test/failed/1"}, minutes).ok());
  DistributedManager::initialize({.agent = agent});
  EXPECT_FLOAT_EQ(sum(manager().world(), 1), 2);
  DistributedManager::cleanup(true);
});

TEST(ManagerTest, InitializeWorksAfterOneThatFailedAtDifferentPoints) {
  run_under_coordinator("coordinator_retry", 2);
}

TEST(ManagerTest, GetBeforeInitializeSaysWhatToCall) {
  EXPECT_THAT(message_of<UninitializedError>([] { DistributedManager::get(); }),
              HasSubstr("initialize()"));
  EXPECT_THAT(message_of<c10::Error>([] { DistributedManager::create_process_subgroup("a", 1); }),
              HasSubstr("initialize()"));
  DistributedManager::cleanup();
}

}  // namespace
}  // namespace meshrun
