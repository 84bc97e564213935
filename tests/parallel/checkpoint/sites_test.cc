// Checkpoints of ranks that share no file system, in real rank processes: each host has a directory
// of its own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "core/checkpoint/open_tensors.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/tensor_file.h"
#include "parallel/manager/distributed_manager.h"
#include "tests/parallel/checkpoint/kinds_of_training.h"
#include "tests/parallel/support/fake_agent.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ::testing::HasSubstr;
using ::testing::Not;
using Tensors = std::map<std::string, Tensor>;

constexpr int64_t kSavedAt = 2;
constexpr int64_t kEnd = 4;

std::string kind() { return variable("TEST_KIND"); }
// That of this rank's host.
std::string directory() { return variable("TEST_DIRECTORY"); }
CheckpointOptions options() {
  return {.identity = {{"job", "test"}}, .keep = 1, .on_commit = variable("TEST_ON_COMMIT")};
}

template <typename Error>
void expect_error(const std::string& text, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr(text));
  }
}

const bool kSaves = register_rank_function("saves_sites", [] {
  const RankWorld world;
  Training training(kind());
  training.train(0, kSavedAt);
  if (variable("TEST_APART") == "1" && world.rank() > 1) training.spoil_pieces();
  CheckpointDirectory checkpoints(directory(), options());
  if (variable("TEST_EARLIER") == "1") {
    checkpoints.save_async(training.module(), training.optimizer(), {1, {}});
  }
  checkpoints.save_async(training.module(), training.optimizer(), {kSavedAt, {{"seed", "7"}}});
  checkpoints.wait();
});

const bool kLoads = register_rank_function("loads_sites", [] {
  const RankWorld world;
  Training expected(kind());
  expected.train(0, kEnd);
  Training training(kind());
  training.train(0, 1);  // forgotten
  const auto progress =
      CheckpointDirectory(directory(), options()).load(training.module(), training.optimizer());
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, kSavedAt);
  EXPECT_EQ(progress->sampler.at("seed"), "7");
  if (kind() != "fno" && kind() != "zero of pairs") {
    EXPECT_TRUE(at::equal(training.buffer(), at::full({3}, 1))) << "rank 0's";
  }
  training.train(kSavedAt, kEnd);
  training.expect_equal(expected);
});

const bool kLacks = register_rank_function("lacks_a_site", [] {
  const RankWorld world;
  Training training(kind());
  Training untouched(kind());
  expect_error<CheckpointFileError>("step-2 lacks the part of host worker-a (", [&] {
    CheckpointDirectory(directory(), options()).load(training.module(), training.optimizer());
  });
  training.expect_equal(untouched);
  EXPECT_TRUE(training.optimizer().state().empty());
});

const bool kIsDamaged = register_rank_function("is_damaged_at_a_site", [] {
  const RankWorld world;
  Training training(kind());
  Training untouched(kind());
  expect_error<CheckpointDamagedError>("-00002-of-00002.safetensors is damaged", [&] {
    CheckpointDirectory(directory(), options()).load(training.module(), training.optimizer());
  });
  training.expect_equal(untouched);
});

// The last rank's disk refuses.
const bool kRefuses = register_rank_function("refuses_at_a_site", [] {
  const RankWorld world;
  Training training(kind());
  CheckpointDirectory checkpoints(directory(), options());
  checkpoints.check_writable();
  const std::string elsewhere = directory() + ".elsewhere";
  if (world.rank() == 2) std::ofstream(elsewhere) << "not a directory";
  expect_error<CheckpointFileError>(
      "rank 2 on ", [&] { CheckpointDirectory(elsewhere, options()).check_writable(); });
  const auto save = [&](int64_t step) {
    checkpoints.save(training.module(), training.optimizer(), {step, {}});
  };
  save(1);
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {0, before.rlim_max};
  if (world.rank() == world.size() - 1) ::setrlimit(RLIMIT_FSIZE, &none);
  expect_error<CheckpointFileError>("rank 3 on worker-b: ", [&] { save(2); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  world.group()->barrier()->wait();
  for (const fs::directory_entry& entry : fs::directory_iterator(directory())) {
    EXPECT_EQ(entry.path().filename(), "step-1");
  }
  world.group()->barrier()->wait();
  save(3);
  EXPECT_EQ(checkpoints.load(training.module(), training.optimizer())->step, 3);
});

// Ranks 0 and 1, each a host. The coordinator has kept a commit, and no rank has heard of it.
const bool kLosesAnAnswer = register_rank_function("loses_an_answer_of_sites", [] {
  const int rank = std::stoi(variable("RANK"));
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(std::stoi(variable("TEST_PORT")));
  const auto agent =
      std::make_shared<FakeAgent>(agent::Assignment{.job_id = "job",
                                                    .generation = 1,
                                                    .rank = rank,
                                                    .world_size = 2,
                                                    .local_rank = rank,
                                                    .local_world_size = 2,
                                                    .master_addr = "127.0.0.1"},
                                  c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store));
  DistributedManager::initialize({.agent = agent});
  Training training(kind());
  CheckpointOptions kept = options();
  kept.keep = 5;
  CheckpointDirectory checkpoints(directory(), kept);
  const auto save = [&](int64_t step) {
    checkpoints.save(training.module(), training.optimizer(), {step, {}});
  };
  const auto lose = [&](int64_t step) {
    agent->lose_answers_of_commits(true);
    expect_error<CheckpointRefusedError>("is not committed", [&] { save(step); });
    agent->lose_answers_of_commits(false);
    EXPECT_FALSE(fs::exists(directory() + "/step-" + std::to_string(step)));
  };
  save(1);
  lose(2);
  EXPECT_EQ(checkpoints.load(training.module(), training.optimizer())->step, 2);
  lose(3);
  save(4);
  for (const char* const step : {"step-1", "step-2", "step-3", "step-4"}) {
    EXPECT_TRUE(fs::exists(directory() + "/" + step)) << step;
  }
  DistributedManager::cleanup(true);
});

class SitesTest : public testing::Test {
 protected:
  SitesTest() {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  // Runs a rank for each letter: its host, "joined" where that is '*'.
  std::vector<RankResult> run(const std::string& function, const std::string& kind,
                              const std::string& hosts, Variables more = {}) {
    SCOPED_TRACE(function + " " + kind + " on " + hosts);
    std::vector<Variables> ranks = env_ranks(static_cast<int>(hosts.size()));
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      ranks[rank]["TEST_KIND"] = kind;
      ranks[rank]["MESHRUN_NODE_NAME"] = std::string("worker-") + hosts[rank];
      ranks[rank]["TEST_DIRECTORY"] = hosts[rank] == '*' ? root_ + "/joined" : host(hosts[rank]);
      ranks[rank].insert(more.begin(), more.end());
    }
    std::vector<RankResult> results = run_ranks(function, ranks);
    expect_success(results);
    return results;
  }
  std::string host(char letter) const { return root_ + "/" + letter; }
  std::string step(char letter, int64_t number = kSavedAt) const {
    return host(letter) + "/step-" + std::to_string(number);
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // As a user copies the files of all hosts into one directory.
  std::string join() const {
    constexpr auto kMerge = fs::copy_options::recursive | fs::copy_options::overwrite_existing;
    const std::string joined = root_ + "/joined/step-2";
    fs::remove_all(joined);
    fs::create_directories(joined);
    for (const char letter : {'a', 'b'}) {
      fs::copy(step(letter), joined, kMerge);
    }
    return joined;
  }
  void start_anew() {
    for (const char letter : {'a', 'b', 'c'}) fs::remove_all(host(letter));
  }
  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
  }
  const std::string root_ = testing::TempDir() + "checkpoints/sites";
  const std::vector<std::string> kinds_ = {"plain", "zero", "columns", "fno", "zero of pairs"};
};

TEST_F(SitesTest, RanksThatSeeOneDirectoryAreASite) {
  for (const auto& [world, sites] :
       std::map<std::string, size_t>{{"aaa", 0}, {"abab", 2}, {"cba", 3}}) {
    start_anew();
    run("saves_sites", "zero", world);
    const auto manifest = nlohmann::json::parse(content(step('a') + "/manifest.json"));
    EXPECT_EQ(manifest.value("hosts", std::vector<std::string>{}).size(), sites) << world;
    run("loads_sites", "zero", world);
  }
}

TEST_F(SitesTest, EachSiteHasItsFilesAndTheManifestOfAll) {
  run("saves_sites", "zero", "aabb", {{"TEST_EARLIER", "1"}});
  EXPECT_FALSE(fs::exists(step('a', 1))) << "one stays";
  EXPECT_FALSE(fs::exists(step('b', 1)));
  for (const char letter : {'a', 'b'}) {
    const std::string number = letter == 'a' ? "1" : "2";
    for (const char* const kind : {"model", "optimizer"}) {
      EXPECT_TRUE(
          fs::exists(step(letter) + "/" + kind + "-0000" + number + "-of-00002.safetensors"));
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(step(letter)), {}), 4);
  }
  const std::string manifest = content(step('a') + "/manifest.json");
  EXPECT_EQ(manifest, content(step('b') + "/manifest.json"));
  const nlohmann::json parsed = nlohmann::json::parse(manifest);
  EXPECT_EQ(parsed.at("hosts"), (nlohmann::json{"worker-a", "worker-b"}));
  EXPECT_EQ(parsed.at("files").size(), 4U);
  // An index leads to what the host has.
  const auto index = nlohmann::json::parse(content(step('b') + "/model.safetensors.index.json"));
  EXPECT_EQ(index.at("weight_map").at("matrix"), "model-00002-of-00002.safetensors");
  EXPECT_EQ(read_tensors(step('b') + "/model-00002-of-00002.safetensors").at("matrix").sizes(),
            (at::IntArrayRef{9, 7}));
}

TEST_F(SitesTest, AProgramIsCalledAtEachSite) {
  const std::string program = root_ + "/copy";
  std::ofstream(program) << "#!/bin/sh\ntest -e $1/manifest.json && echo $1 >> " << root_
                         << "/called\n";
  fs::permissions(program, fs::perms::owner_all);
  run("saves_sites", "plain", "aabb", {{"TEST_ON_COMMIT", program}});
  const std::string called = content(root_ + "/called");
  for (const char letter : {'a', 'b'}) EXPECT_THAT(called, HasSubstr(step(letter) + "\n"));
  EXPECT_EQ(std::ranges::count(called, '\n'), 2);
}

TEST_F(SitesTest, AnyWorldReadsTheFilesOfAllSitesInOneDirectory) {
  for (const std::string& kind : kinds_) {
    SCOPED_TRACE(kind);
    start_anew();
    run("saves_sites", kind, "aabb");
    const Tensors joined = read_tensors(join());
    run("saves_sites", kind, "c");
    const Tensors expected = read_tensors(step('c'));
    EXPECT_EQ(joined.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(joined.contains(name)) << name;
      EXPECT_EQ(joined.at(name).sizes(), tensor.sizes()) << name;
      EXPECT_TRUE(at::allclose(joined.at(name), tensor, 1e-6, 1e-12)) << name;
    }
    for (const char* const world : {"*", "**", "***"}) run("loads_sites", kind, world);
  }
}

TEST_F(SitesTest, SitesReadTheirFilesWithoutCopying) {
  for (const std::string& kind : kinds_) {
    start_anew();
    run("saves_sites", kind, "aabb");
    for (const char* const world : {"aabb", "ab", "bba", "cab"}) run("loads_sites", kind, world);
  }
}

TEST_F(SitesTest, OneSiteHasAllThatIsNotInPieces) {
  run("saves_sites", "plain", "aabb");
  fs::remove_all(host('a'));
  EXPECT_EQ(read_tensors(step('b')).at("cube").sizes(), (at::IntArrayRef{3, 4, 5}));
  for (const char* const world : {"b", "bb", "ab", "ccb"}) run("loads_sites", "plain", world);
}

TEST_F(SitesTest, PiecesOfASiteThatIsNotThereAreNamed) {
  for (const char* const kind : {"zero", "columns", "fno"}) {
    start_anew();
    run("saves_sites", kind, "aabb");
    fs::remove_all(host('a'));
    for (const char* const world : {"bb", "ab"}) run("lacks_a_site", kind, world);
    EXPECT_FALSE(OpenTensors(step('b')).ok());
  }
}

TEST_F(SitesTest, PiecesThatSeveralSitesHoldAreAtEachIfTheyAreAlike) {
  run("saves_sites", "pairs", "aabb");
  fs::remove_all(host('a'));
  for (const char* const world : {"b", "bb", "aab"}) run("loads_sites", "fno", world);
  // Each site has one half.
  start_anew();
  run("saves_sites", "pairs", "abab");
  run("loads_sites", "fno", "ba");
  fs::remove_all(host('a'));
  run("lacks_a_site", "fno", "bb");
  // Those of rank 0's group count.
  start_anew();
  run("saves_sites", "pairs", "aabb", {{"TEST_APART", "1"}});
  run("loads_sites", "fno", "ba");
  fs::remove_all(host('a'));
  run("lacks_a_site", "fno", "bb");
}

TEST_F(SitesTest, DamageAtASiteIsFoundBeforeAnythingChanges) {
  for (const char* const kind : {"plain", "zero"}) {
    start_anew();
    run("saves_sites", kind, "aabb");
    damage(step('b') + "/model-00002-of-00002.safetensors");
    run("is_damaged_at_a_site", kind, "aabb");
  }
}

TEST_F(SitesTest, ACrashBeforeASiteGaveTheNameIsFinishedByTheNextLoadAndTheNextSave) {
  for (const std::string function : {"loads_sites", "saves_sites"}) {
    start_anew();
    run("saves_sites", "zero", "aabb");
    fs::rename(step('b'), host('b') + "/.step-2.h.1.1.unfinished");
    if (function == "loads_sites") {
      run(function, "zero", "aabb");
      EXPECT_TRUE(fs::exists(step('b'))) << function;
    } else {
      run(function, "zero", "aabb", {{"TEST_EARLIER", "1"}});
      run("loads_sites", "zero", "aabb");
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(host('b')), {}), 1);
  }
}

TEST_F(SitesTest, WhatIsNotCommittedAnywhereIsNotRead) {
  run("saves_sites", "plain", "aabb");
  // What a later save has left, to which no site has given a name.
  for (const char letter : {'a', 'b'}) {
    const std::string later = host(letter) + "/.step-3.h.1.1.unfinished";
    fs::copy(step(letter), later);
    nlohmann::json manifest = nlohmann::json::parse(content(later + "/manifest.json"));
    manifest["step"] = 3;
    manifest["sequence"] = 1000;
    std::ofstream(later + "/manifest.json") << manifest;
  }
  run("loads_sites", "plain", "aabb");
}

TEST_F(SitesTest, ANewerStepWithoutAManifestIsSaidByRank0) {
  run("saves_sites", "zero", "aabb");
  fs::create_directories(step('a', 1));
  fs::create_directories(step('b', 9));
  const std::string line =
      "step-9 has no manifest.json, so it is not a whole checkpoint; step-2 is taken";
  const auto at_b = run("loads_sites", "zero", "aabb");
  EXPECT_THAT(at_b[0].output, HasSubstr(line + " (on worker-b)\n"));
  EXPECT_THAT(at_b[0].output, Not(HasSubstr("step-1 has")));
  EXPECT_THAT(at_b[2].output, Not(HasSubstr("has no manifest.json")));
  fs::create_directories(step('a', 9));
  EXPECT_THAT(run("loads_sites", "zero", "aabb")[0].output, HasSubstr(line + "\n"));
}

TEST_F(SitesTest, ADiskThatRefusesAtOneSiteEndsTheSaveAtAll) {
  run("refuses_at_a_site", "zero", "aabb");
}

TEST_F(SitesTest, ACommitOfWhichNoRankHasHeardIsFinishedAtEverySite) {
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(free_port());
  store.isServer = true;
  store.waitWorkers = false;
  const auto coordinator = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store);
  run("loses_an_answer_of_sites", "zero", "ab", {{"TEST_PORT", std::to_string(store.port)}});
}

}  // namespace
}  // namespace meshrun
