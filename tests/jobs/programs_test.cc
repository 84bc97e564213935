// The shipped jobs' programs, started as ranks by plain ENV variables. Sharper limits, real data
// and other launchers are the acceptance list's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/jobs/gtx_writer.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kArguments[] = "TEST_PROGRAM_ARGUMENTS";

[[noreturn]] void become_program() {
  std::vector<std::string> words;
  std::string word;
  for (const char* at = std::getenv(kArguments);; ++at) {
    if (*at != '\n' && *at != '\0') {
      word += *at;
      continue;
    }
    words.push_back(std::exchange(word, ""));
    if (*at == '\0') break;
  }
  std::vector<char*> arguments;
  for (std::string& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  std::perror(arguments[0]);
  _exit(127);
}

const bool kProgram = register_rank_function("program", become_program);
// The signal waits for the program to be ready for it.
const bool kSignalled = register_rank_function("signalled_on_rank_1", [] {
  if (std::string(std::getenv("RANK")) == "1") {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    raise(SIGTERM);
  }
  become_program();
});

class ProgramsTest : public testing::Test {
 protected:
  ProgramsTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    std::ofstream(data_, std::ios::binary) << geoid::gtx_bytes(
        {.latitude_step = 5, .longitude_step = 5, .rows = 37, .columns = 72},
        [](int row, int column) {
          return static_cast<float>(30 * std::sin(row * 0.3) * std::cos(column * 0.2));
        });
  }

  std::vector<RankResult> run(const std::string& program, std::vector<std::string> arguments,
                              std::vector<Variables> ranks,
                              const std::string& function = "program") {
    std::string words = (fs::path("jobs") / program / program).string();
    for (const std::string& argument : arguments) words += "\n" + argument;
    for (Variables& variables : ranks) {
      variables[kArguments] = words;
      variables["OMP_NUM_THREADS"] = "1";
      variables["TORCHELASTIC_ERROR_FILE"] = path("error.json");
    }
    return run_ranks(function, ranks, std::chrono::seconds(180));
  }

  std::vector<std::string> geoid_arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--data", data_, "--hidden", "32", "--features", "16", "--batch",
                               "257", "--report", path("report.json"), "--png", path("geoid.png")});
    return more;
  }

  std::vector<std::string> darcy_arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--cache",         path("cache"),
                               "--size",          "13",
                               "--train-samples", "12",
                               "--test-samples",  "3",
                               "--batch",         "5",
                               "--width",         "6",
                               "--modes",         "4",
                               "--layers",        "2",
                               "--padding",       "2",
                               "--steps",         "20",
                               "--report",        path("darcy.json"),
                               "--png",           path("darcy.png")});
    return more;
  }

  std::vector<std::string> mesh_gnn_arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--data", data_, "--level", "2", "--hidden", "8", "--blocks", "2",
                               "--steps", "20", "--smoothing", "1", "--evaluation-meshes", "2",
                               "--report", path("mesh_gnn.json"), "--png", path("mesh_gnn.png")});
    return more;
  }

  std::vector<std::string> swe_arguments(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--size",
                               "18",
                               "--intervals",
                               "3",
                               "--train-trajectories",
                               "4",
                               "--test-trajectories",
                               "2",
                               "--batch",
                               "5",
                               "--width",
                               "6",
                               "--modes",
                               "4",
                               "--layers",
                               "2",
                               "--steps",
                               "20",
                               "--report",
                               path("swe.json"),
                               "--png",
                               path("swe.png")});
    return more;
  }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_ = testing::TempDir() + "programs";
  const std::string data_ = directory_ + "/field.gtx";
};

// Bytes of each tensor.
using Tensors = std::map<std::string, std::string>;

Tensors read_safetensors(const std::string& path) {
  const auto source = OpenSafetensors(path);
  EXPECT_TRUE(source.ok()) << source.status();
  Tensors tensors;
  for (const auto& [name, tensor] : (*source)->Tensors()) {
    std::string& bytes = tensors[name];
    bytes.resize(*TensorBytes(name, tensor));
    EXPECT_TRUE((*source)->Read(name, 0, bytes).ok());
  }
  return tensors;
}

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The largest over all tensors.
double relative_l2(const Tensors& actual, const Tensors& expected) {
  double worst = actual.size() == expected.size() ? 0 : INFINITY;
  for (const auto& [name, tensor] : expected) {
    const std::vector<float> a = floats(actual.at(name));
    const std::vector<float> b = floats(tensor);
    double difference = 0;
    double scale = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      difference += (a.at(i) - b[i]) * static_cast<double>(a[i] - b[i]);
      scale += b[i] * static_cast<double>(b[i]);
    }
    worst = std::max(worst, std::sqrt(difference / scale));
  }
  return worst;
}

TEST_F(ProgramsTest, GeoidIsExactWithOneToFourRanks) {
  std::vector<Tensors> by_world;
  for (const int world_size : {1, 2, 3, 4}) {
    SCOPED_TRACE(world_size);
    const std::string prefix = path("world" + std::to_string(world_size));
    expect_success(run(
        "geoid", geoid_arguments({"--steps", "50", "--no-evaluation", "--dump-parameters", prefix}),
        env_ranks(world_size)));
    by_world.push_back(read_safetensors(prefix + "-rank-0.safetensors"));
    for (int rank = 1; rank < world_size; ++rank) {
      const Tensors other =
          read_safetensors(prefix + "-rank-" + std::to_string(rank) + ".safetensors");
      for (const auto& [name, tensor] : by_world.back()) {
        EXPECT_EQ(other.at(name), tensor) << name << ", rank " << rank;
      }
    }
    EXPECT_LT(relative_l2(by_world.back(), by_world.front()), 1e-5);
  }
}

TEST_F(ProgramsTest, GeoidLeavesAReportAndAPicture) {
  expect_success(run("geoid", geoid_arguments({"--steps", "30"}), env_ranks(2)));
  const auto report = nlohmann::json::parse(std::ifstream(path("report.json")));
  EXPECT_EQ(report.at("steps"), 30);
  EXPECT_EQ(report.at("world_size"), 2);
  EXPECT_GT(report.at("rmse_m").get<double>(), 0);
  EXPECT_GT(report.at("train_seconds").get<double>(), 0);
  std::string magic(8, '\0');
  std::ifstream(path("geoid.png"), std::ios::binary).read(magic.data(), 8);
  EXPECT_EQ(magic, "\x89PNG\r\n\x1a\n");
}

TEST_F(ProgramsTest, GeoidShowsItsMapAndLearnsTheSame) {
  const auto learnt = [&](const std::string& name, const std::string& pictures) {
    std::vector<Variables> ranks = env_ranks(2);
    for (Variables& rank : ranks) rank["MESHRUN_PICTURES"] = pictures;
    expect_success(
        run("geoid",
            geoid_arguments({"--steps", "25", "--no-evaluation", "--dump-parameters", path(name)}),
            ranks));
    return read_safetensors(path(name) + "-rank-0.safetensors");
  };
  fs::create_directories(path("pictures"));
  const Tensors with_map = learnt("with", path("pictures"));
  EXPECT_FALSE(with_map.empty());
  EXPECT_TRUE(with_map == learnt("without", "")) << "a map changes what is learnt";
  std::string magic(8, '\0');
  std::ifstream(path("pictures/geoid.png"), std::ios::binary).read(magic.data(), 8);
  EXPECT_EQ(magic, "\x89PNG\r\n\x1a\n");
  // Rank 1 has drawn none, and nothing is left half-written.
  EXPECT_EQ(std::distance(fs::directory_iterator(path("pictures")), {}), 1);
  // A directory that takes no picture ends no training.
  EXPECT_TRUE(with_map == learnt("nowhere", path("absent")));
}

TEST_F(ProgramsTest, GeoidStopsOnOneRanksSignalAndResumesToTheSameParameters) {
  const auto arguments = [&](const std::string& prefix, std::vector<std::string> more) {
    more.insert(more.end(), {"--steps", "40", "--no-evaluation", "--dump-parameters", prefix});
    return geoid_arguments(more);
  };
  expect_success(run("geoid", arguments(path("whole"), {}), env_ranks(2)));
  const std::vector<std::string> checkpoints = {"--checkpoint-dir", path("checkpoints")};
  const auto stopped =
      run("geoid", arguments(path("stopped"), checkpoints), env_ranks(2), "signalled_on_rank_1");
  for (const RankResult& rank : stopped) {
    EXPECT_EQ(rank.exit_code, 128 + SIGTERM) << rank.output;
    EXPECT_THAT(rank.output, HasSubstr("stopped by Terminated"));
  }
  const auto manifest =
      nlohmann::json::parse(std::ifstream(path("checkpoints/step-10/manifest.json")));
  EXPECT_EQ(manifest.at("step"), 10);
  EXPECT_EQ(manifest.at("sampler").at("next_step"), "10");

  std::vector<std::string> resume = checkpoints;
  resume.push_back("--resume");
  // On another number of ranks.
  expect_success(run("geoid", arguments(path("resumed"), resume), env_ranks(3)));
  EXPECT_LT(relative_l2(read_safetensors(path("resumed-rank-1.safetensors")),
                        read_safetensors(path("whole-rank-0.safetensors"))),
            1e-5);

  resume.insert(resume.end(), {"--lr", "0.5"});
  for (const RankResult& rank : run("geoid", arguments(path("other"), resume), env_ranks(2))) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, HasSubstr("was written with --lr 0.002000, but this run has 0.5"));
  }
}

TEST_F(ProgramsTest, ADirectoryThatTakesNoCheckpointIsFoundBeforeTheFirstStep) {
  std::ofstream(path("file")) << "not a directory";
  const std::vector<std::string> arguments =
      geoid_arguments({"--steps", "40", "--checkpoint-every", "10", "--checkpoint-dir",
                       path("file/checkpoints"), "--dump-parameters", path("kept")});
  const auto ended = run("geoid", arguments, env_ranks(2));
  for (const RankResult& rank : ended) {
    EXPECT_EQ(rank.exit_code, 1) << rank.output;
    EXPECT_THAT(rank.output,
                AllOf(HasSubstr("cannot write checkpoints: " + path("file/checkpoints")),
                      HasSubstr("; give a directory"), Not(HasSubstr("step 10"))));
  }
  EXPECT_FALSE(fs::exists(path("kept-rank-0.safetensors")));
}

TEST_F(ProgramsTest, ACheckpointOfAnEarlierVersionIsNamedAndKept) {
  fs::create_directories(path("old"));
  std::ofstream(path("old/geoid.safetensors")) << "parameters";
  const std::vector<std::string> resume = {"--checkpoint-dir", path("old"), "--resume"};
  for (const RankResult& rank : run("geoid", geoid_arguments(resume), env_ranks(2))) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, HasSubstr("format of an earlier version"));
  }
  EXPECT_TRUE(fs::exists(path("old/geoid.safetensors")));
}

TEST_F(ProgramsTest, DarcyIsTheSameOnEveryMesh) {
  const auto dumped = [&](int world_size, const std::string& spatial) {
    const std::string prefix = path("darcy" + std::to_string(world_size) + "x" + spatial);
    expect_success(
        run("darcy",
            darcy_arguments({"--spatial", spatial, "--dump-parameters", prefix, "--no-evaluation"}),
            env_ranks(world_size)));
    const Tensors first = read_safetensors(prefix + "-rank-0.safetensors");
    for (int rank = 1; rank < world_size; ++rank) {
      const Tensors other =
          read_safetensors(prefix + "-rank-" + std::to_string(rank) + ".safetensors");
      EXPECT_LT(relative_l2(other, first), 1e-5) << "rank " << rank;
    }
    return first;
  };
  const Tensors alone = dumped(1, "1");
  const std::vector<std::pair<int, std::string>> meshes = {{2, "1"}, {2, "2"}, {3, "3"}, {4, "2"}};
  for (const auto& [world_size, spatial] : meshes) {
    SCOPED_TRACE(std::to_string(world_size) + " ranks, spatial " + spatial);
    EXPECT_LT(relative_l2(dumped(world_size, spatial), alone), 1e-4);
  }
}

TEST_F(ProgramsTest, DarcyResumesOnAnotherMeshAndLeavesAReportAndAPicture) {
  const std::vector<std::string> checkpoints = {"--checkpoint-dir", path("checkpoints")};
  const auto arguments = [&](const std::string& prefix, std::vector<std::string> more) {
    more.insert(more.end(), {"--dump-parameters", path(prefix)});
    more.insert(more.end(), checkpoints.begin(), checkpoints.end());
    return darcy_arguments(more);
  };
  expect_success(run("darcy", arguments("whole", {"--checkpoint-every", "10"}), env_ranks(1)));
  const Tensors whole = read_safetensors(path("whole-rank-0.safetensors"));
  const std::vector<std::pair<int, std::string>> meshes = {{2, "1"}, {3, "3"}, {4, "2"}};
  for (const auto& [world_size, spatial] : meshes) {
    SCOPED_TRACE(std::to_string(world_size) + " ranks, spatial " + spatial);
    // The next one goes on from what the last one has left of step 10.
    fs::remove_all(path("checkpoints/step-20"));
    expect_success(run("darcy", arguments("resumed", {"--resume", "--spatial", spatial}),
                       env_ranks(world_size)));
    const std::string last = "resumed-rank-" + std::to_string(world_size - 1) + ".safetensors";
    EXPECT_LT(relative_l2(read_safetensors(path(last)), whole), 1e-5);
  }
  const auto report = nlohmann::json::parse(std::ifstream(path("darcy.json")));
  EXPECT_EQ(report.at("first_step"), 10);
  EXPECT_EQ(report.at("mesh").at("spatial"), 2);
  EXPECT_EQ(report.at("data_solved"), false) << "the first run has kept the samples";
  EXPECT_GT(report.at("relative_l2_test").get<double>(), 0);
  EXPECT_TRUE(fs::exists(path("darcy.png")));

  fs::resize_file(path("checkpoints/step-20/model.safetensors"), 1000);
  for (const RankResult& rank : run("darcy", arguments("none", {"--resume"}), env_ranks(3))) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, HasSubstr("is truncated: 1000 bytes"));
  }
}

TEST_F(ProgramsTest, DarcySaysOnEveryRankWhatIsWrongWithData) {
  for (const RankResult& rank : run("darcy", darcy_arguments({"--data", data_}), env_ranks(2))) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, HasSubstr("is not an HDF5 file"));
  }
  for (const RankResult& rank : run("darcy", darcy_arguments({"--spatial", "2"}), env_ranks(3))) {
    EXPECT_EQ(rank.exit_code, 2);
    EXPECT_THAT(rank.output, HasSubstr("--spatial 2 does not divide the 3 ranks"));
  }
}

// vit and unet: activations cut over `domain`, with no operator that falls back on gathering.
class PressureProgramsTest : public ProgramsTest, public testing::WithParamInterface<const char*> {
 protected:
  std::vector<RankResult> run_on(int world_size, const std::string& domain,
                                 std::vector<std::string> more) {
    const std::string job = GetParam();
    const std::vector<std::string> network =
        job == "vit"
            ? std::vector<std::string>{"--patch", "4", "--embed-dim", "16",
                                       "--depth", "2", "--heads",     "2"}
            : std::vector<std::string>{"--base-channels", "4", "--depth", "2", "--groups", "2"};
    more.insert(more.end(), network.begin(), network.end());
    more.insert(more.end(),
                {"--cache", path("cache"), "--size", "16", "--train-samples", "12",
                 "--test-samples", "3", "--batch", "5", "--steps", "20", "--domain", domain,
                 "--report", path("report.json"), "--png", path("picture.png")});
    std::vector<Variables> ranks = env_ranks(world_size);
    for (Variables& rank : ranks) rank["MESHRUN_SHARD_STRICT"] = "1";
    return run(job, more, ranks);
  }
};

TEST_P(PressureProgramsTest, IsTheSameOnEveryMeshAndResumesOnAnother) {
  const auto dumped = [&](int world_size, const std::string& domain,
                          std::vector<std::string> more) {
    more.insert(more.end(), {"--dump-parameters", path("dump"), "--checkpoint-dir",
                             path("checkpoints"), "--checkpoint-every", "10"});
    expect_success(run_on(world_size, domain, more));
    const std::string last = "dump-rank-" + std::to_string(world_size - 1) + ".safetensors";
    return read_safetensors(path(last));
  };
  const Tensors alone = dumped(1, "1", {});
  const auto alone_report = nlohmann::json::parse(std::ifstream(path("report.json")));
  fs::remove_all(path("checkpoints"));
  EXPECT_LT(relative_l2(dumped(4, "2", {"--recompute"}), alone), 1e-4);
  const auto report = nlohmann::json::parse(std::ifstream(path("report.json")));
  EXPECT_EQ(report.at("mesh").at("domain"), 2);
  const auto error_of = [](const nlohmann::json& of) {
    return of.at("relative_l2_test").get<double>();
  };
  EXPECT_NEAR(error_of(report), error_of(alone_report), 1e-3 * error_of(alone_report));
  EXPECT_TRUE(fs::exists(path("picture.png")));
  fs::remove_all(path("checkpoints/step-20"));
  EXPECT_LT(relative_l2(dumped(2, "2", {"--resume", "--no-evaluation"}), alone), 1e-4);

  for (const RankResult& rank : run_on(3, "2", {})) {
    EXPECT_EQ(rank.exit_code, 2);
    EXPECT_THAT(rank.output, HasSubstr("--domain 2 does not divide the 3 ranks"));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, PressureProgramsTest, testing::Values("vit", "unet"),
                         [](const auto& test) { return std::string(test.param); });

TEST_F(ProgramsTest, SweIsTheSameOnEveryMeshAndResumesOnAnother) {
  const std::vector<std::string> checkpoints = {"--checkpoint-dir", path("checkpoints"),
                                                "--checkpoint-every", "10"};
  const auto dumped = [&](int world_size, const std::string& spatial,
                          const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--spatial", spatial, "--dump-parameters", path("swe")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_success(run("swe", swe_arguments(arguments), env_ranks(world_size)));
    return read_safetensors(path("swe-rank-" + std::to_string(world_size - 1) + ".safetensors"));
  };
  const Tensors alone = dumped(1, "1", checkpoints);
  EXPECT_LT(relative_l2(dumped(4, "2", {"--no-evaluation"}), alone), 1e-4);
  EXPECT_LT(relative_l2(dumped(3, "3", {"--no-evaluation"}), alone), 1e-4);

  fs::remove_all(path("checkpoints/step-20"));
  std::vector<std::string> resume = checkpoints;
  resume.push_back("--resume");
  EXPECT_LT(relative_l2(dumped(2, "2", resume), alone), 1e-4);
  const auto report = nlohmann::json::parse(std::ifstream(path("swe.json")));
  EXPECT_EQ(report.at("first_step"), 10);
  EXPECT_EQ(report.at("mesh").at("spatial"), 2);
  EXPECT_EQ(report.at("relative_l2_rollout").size(), 3);
  EXPECT_GT(report.at("relative_l2_one_step").get<double>(), 0);
  EXPECT_TRUE(fs::exists(path("swe.png")));
}

TEST_F(ProgramsTest, MeshGnnIsTheSameOnAnyNumberOfRanksAndWithAnyPartition) {
  std::vector<Tensors> runs;
  const std::vector<std::pair<int, std::string>> worlds = {
      {1, "metis"}, {2, "metis"}, {3, "boxes"}, {4, "nodewise"}};
  for (const auto& [world_size, partition] : worlds) {
    SCOPED_TRACE(partition + " on " + std::to_string(world_size));
    const std::string prefix = path("mesh_gnn" + std::to_string(world_size));
    expect_success(run("mesh_gnn",
                       mesh_gnn_arguments({"--partition", partition, "--dump-parameters", prefix,
                                           "--no-evaluation"}),
                       env_ranks(world_size)));
    runs.push_back(read_safetensors(prefix + "-rank-0.safetensors"));
    const Tensors last =
        read_safetensors(prefix + "-rank-" + std::to_string(world_size - 1) + ".safetensors");
    EXPECT_EQ(relative_l2(last, runs.back()), 0);
    EXPECT_LT(relative_l2(runs.back(), runs.front()), 1e-5);
  }
}

TEST_F(ProgramsTest, MeshGnnResumesOnAnotherNumberOfRanksAndLeavesAReportAndAPicture) {
  const auto arguments = [&](const std::string& prefix, std::vector<std::string> more) {
    more.insert(more.end(), {"--dump-parameters", path(prefix), "--checkpoint-dir",
                             path("checkpoints"), "--checkpoint-every", "10"});
    return mesh_gnn_arguments(more);
  };
  expect_success(run("mesh_gnn", arguments("whole", {}), env_ranks(3)));
  fs::remove_all(path("checkpoints/step-20"));
  expect_success(
      run("mesh_gnn", arguments("resumed", {"--resume", "--partition", "boxes"}), env_ranks(2)));
  EXPECT_LT(relative_l2(read_safetensors(path("resumed-rank-1.safetensors")),
                        read_safetensors(path("whole-rank-0.safetensors"))),
            1e-5);
  const auto report = nlohmann::json::parse(std::ifstream(path("mesh_gnn.json")));
  EXPECT_EQ(report.at("first_step"), 10);
  EXPECT_EQ(report.at("nodes"), 162);
  EXPECT_EQ(report.at("edges"), 960);
  EXPECT_EQ(report.at("nodes_of_ranks").size(), 2);
  EXPECT_GT(report.at("halo_nodes_of_ranks").at(0).get<int>(), 0);
  EXPECT_GT(report.at("rmse_arcsec").get<double>(), 0);
  EXPECT_TRUE(fs::exists(path("mesh_gnn.png")));

  const auto other = run("mesh_gnn", arguments("other", {"--resume", "--lr", "0.5"}), env_ranks(2));
  for (const RankResult& rank : other) {
    EXPECT_EQ(rank.exit_code, 1);
    EXPECT_THAT(rank.output, HasSubstr("--lr"));
  }
  const auto wrong = run("mesh_gnn", {"--partition", "by hand"}, {{}});
  EXPECT_EQ(wrong[0].exit_code, 2);
  EXPECT_THAT(wrong[0].output, HasSubstr("--partition"));
}

TEST_F(ProgramsTest, ATruncatedDataFileIsOneSentenceAnErrorFileAndExitCode1) {
  fs::resize_file(data_, 1000);
  const auto results = run("geoid", geoid_arguments({}), {{}});
  EXPECT_EQ(results[0].exit_code, 1);
  EXPECT_THAT(results[0].output, AllOf(HasSubstr(data_), HasSubstr("expected 10696 bytes"),
                                       HasSubstr("found 1000"), HasSubstr("proj-data")));
  const auto error = nlohmann::json::parse(std::ifstream(path("error.json")));
  EXPECT_THAT(error.at("message").at("message").get<std::string>(), HasSubstr("GtxError: "));
}

TEST_F(ProgramsTest, WrongFlagsAreUsageErrors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--steps", "0"}, {"--batch", "many"}, {"--held-out", "1.5"},
      {"--resume"},     {"--no-such-flag"},  {"--png", "/no/such/directory/x.png"},
      {"--lr", "-1"},   {"--seed", "-3"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    const auto results = run("geoid", arguments, {{}});
    EXPECT_EQ(results[0].exit_code, 2) << arguments[0] << ": " << results[0].output;
    EXPECT_THAT(results[0].output, HasSubstr(arguments[0]));
    EXPECT_THAT(results[0].output, Not(HasSubstr("terminate")));
  }
}

TEST_F(ProgramsTest, HelpTeachesAndSucceeds) {
  const auto results = run("geoid", {"--help"}, {{}});
  EXPECT_EQ(results[0].exit_code, 0);
  EXPECT_THAT(results[0].output, AllOf(HasSubstr("--checkpoint-every"), HasSubstr("meshrun run")));
}

TEST_F(ProgramsTest, AHalfSetEnvironmentIsAUsageErrorThatNamesWhatIsMissing) {
  const auto results = run("ddp_recipe", {}, {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}});
  EXPECT_EQ(results[0].exit_code, 2) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("MASTER_ADDR"));
}

TEST_F(ProgramsTest, VerifyFindsNothingWrongWhateverTheNumberOfRanks) {
  for (const int ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    const auto results = run("verify", {"--dir", directory_, "--report", path("verify.json")},
                             ranks == 1 ? std::vector<Variables>{{}} : env_ranks(ranks));
    expect_success(results);
    EXPECT_THAT(results[0].output, HasSubstr("0 wrong"));
    const auto report = nlohmann::json::parse(std::ifstream(path("verify.json")));
    EXPECT_EQ(report.at("ok"), true);
    EXPECT_EQ(report.at("topology").at("ranks"), ranks);
    EXPECT_EQ(report.at("rows").back().at("stage"), "recovery");
    EXPECT_EQ(report.at("rows").back().at("result"), "not_run");
  }
  // The checkpoint is gone.
  for (const auto& entry : fs::directory_iterator(directory_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("meshrun-verify-")));
  }
}

TEST_F(ProgramsTest, VerifyNamesADirectoryThatTakesNoCheckpointAndFails) {
  const auto results = run("verify", {"--dir", "/proc", "--report", path("verify.json")}, {{}});
  EXPECT_EQ(results[0].exit_code, 1) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("\nverify: files, saved and read back: "));
  const auto report = nlohmann::json::parse(std::ifstream(path("verify.json")));
  EXPECT_EQ(report.at("ok"), false);
  EXPECT_THAT(report.at("first_wrong").get<std::string>(), HasSubstr("<dir>/meshrun-verify-"));
  EXPECT_EQ(run("verify", {"--dir", "/proc", "--report", "/dev/null"}, {{}})[0].exit_code, 1);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  const auto usage = run("verify", {"--dir", "/no/such/directory"}, {{}});
  EXPECT_EQ(usage[0].exit_code, 2);
  EXPECT_THAT(usage[0].output, HasSubstr("/no/such/directory"));
}

TEST_F(ProgramsTest, VerifyOfRanksThatDoNotMeetTakesThePlaceOfAGoodReport) {
  std::ofstream(path("verify.json")) << R"({"format": 1, "job": "", "ok": true, "rows": []})";
  const std::vector<std::string> arguments = {"--dir", directory_, "--report", path("verify.json")};
  std::vector<Variables> alone = {env_ranks(2).front()};
  alone[0]["MESHRUN_TIMEOUT_SECONDS"] = "3";
  const auto results = run("verify", arguments, alone);
  EXPECT_EQ(results[0].exit_code, 1) << results[0].output;
  EXPECT_THAT(results[0].output, HasSubstr("\nverify: meeting, "));
  const auto report = nlohmann::json::parse(std::ifstream(path("verify.json")));
  EXPECT_EQ(report.at("ok"), false);
  EXPECT_EQ(report.at("finished"), true);
  EXPECT_EQ(report.at("rows").back().at("stage"), "meeting");
}

TEST_F(ProgramsTest, TheDirectoryOfVerifysReportIsRank0sMatter) {
  const std::vector<std::string> arguments = {"--dir", directory_, "--report",
                                              "/no/such/file.json"};
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& rank : ranks) rank["MESHRUN_TIMEOUT_SECONDS"] = "3";
  const auto first = run("verify", arguments, {ranks[0]});
  EXPECT_EQ(first[0].exit_code, 2) << first[0].output;
  EXPECT_THAT(first[0].output, HasSubstr("the directory /no/such does not exist"));
  // It looks for rank 0, which is not there.
  const auto second = run("verify", arguments, {ranks[1]});
  EXPECT_EQ(second[0].exit_code, 1) << second[0].output;
  EXPECT_THAT(second[0].output, Not(HasSubstr("/no/such")));
}

TEST_F(ProgramsTest, VerifyStopsAfterTheStageOnAllRanksWithoutAVerdict) {
  const auto results = run("verify", {"--dir", directory_, "--report", path("verify.json")},
                           env_ranks(2), "signalled_on_rank_1");
  for (const RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
    EXPECT_THAT(result.output, HasSubstr("stopped by Terminated"));
  }
  const auto report = nlohmann::json::parse(std::ifstream(path("verify.json")));
  EXPECT_EQ(report.at("finished"), false);
  EXPECT_EQ(report.at("first_wrong"), nullptr);
  EXPECT_EQ(report.at("rows").back().at("stage"), "topology");
}

TEST_F(ProgramsTest, TheRecipesUsageIsOneSentence) {
  for (const char* const steps : {"many", "20x", "0", "99999999999999999999"}) {
    const auto results = run("ddp_recipe", {steps}, {{}});
    EXPECT_EQ(results[0].exit_code, 2) << results[0].output;
    EXPECT_EQ(results[0].output, "ddp_recipe: usage: ddp_recipe [STEPS]\n");
  }
}

std::string last_line(const std::vector<RankResult>& results) {
  expect_success(results);
  const std::string& text = results[0].output;
  return text.substr(text.rfind('\n', text.size() - 2) + 1);
}

// Else a world that changes meanwhile would train on other samples.
TEST_F(ProgramsTest, TheRecipeLearnsTheSameOnAnyNumberOfRanks) {
  const auto learned = [&](int world_size) {
    const std::string line = last_line(run("ddp_recipe", {"10"}, env_ranks(world_size)));
    double loss = NAN;
    double squares = NAN;
    std::sscanf(line.c_str(), "ddp_recipe: 10 steps on %*d rank(s), loss %lf, %*[^0-9]%lf", &loss,
                &squares);
    return std::pair(loss, squares);
  };
  const auto [loss, squares] = learned(1);
  EXPECT_LT(loss, 0.4) << "half is what a network that has learnt nothing has";
  // Shares of 86, 86 and 84 samples.
  const auto [other_loss, other_squares] = learned(3);
  EXPECT_NEAR(other_loss, loss, 2e-3 * loss);
  EXPECT_NEAR(other_squares, squares, 1e-4 * squares);
}

TEST_F(ProgramsTest, TheRecipeEndsWithTheSameLineUnderEveryLauncher) {
  const std::string line = last_line(run("ddp_recipe", {}, env_ranks(2)));
  EXPECT_THAT(line, HasSubstr("20 steps on 2 rank"));
  std::vector<Variables> slurm;
  std::vector<Variables> openmpi;
  const std::string port = std::to_string(free_port());
  const std::string other_port = std::to_string(free_port());
  for (const std::string rank : {"0", "1"}) {
    slurm.push_back({{"SLURM_PROCID", rank},
                     {"SLURM_NPROCS", "2"},
                     {"SLURM_LOCALID", rank},
                     {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"},
                     {"MASTER_PORT", port}});
    openmpi.push_back({{"OMPI_COMM_WORLD_RANK", rank},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                       {"MASTER_PORT", other_port}});
  }
  EXPECT_EQ(last_line(run("ddp_recipe", {}, slurm)), line);
  EXPECT_EQ(last_line(run("ddp_recipe", {}, openmpi)), line);
  EXPECT_THAT(last_line(run("ddp_recipe", {}, {{}})), HasSubstr("20 steps on 1 rank"));
}

}  // namespace
}  // namespace meshrun
