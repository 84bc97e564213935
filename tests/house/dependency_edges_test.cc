#include "tests/house/dependency_edges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::house {

void PrintTo(const Violation& violation, std::ostream* out) {
  *out << violation.file << ":" << violation.line << ": " << violation.reason;
}

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

// The source tree that holds the file which this link of the test's runfiles leads to.
fs::path Workspace() { return fs::canonical("WORKSPACE").parent_path(); }

TEST(DependencyEdgesTest, TheTreeHasNoForbiddenEdge) {
  ASSERT_TRUE(fs::exists(Workspace() / "tests/house/dependency_edges_test.cc"))
      << Workspace() << " is not the source tree";
  EXPECT_THAT(FindForbiddenEdges(Workspace()), IsEmpty());
}

class DependencyEdgesInATempTreeTest : public testing::Test {
 protected:
  DependencyEdgesInATempTreeTest() {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  void Write(std::string_view path, std::string_view text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::vector<Violation> Find() const { return FindForbiddenEdges(root_); }

  static auto Edge(const std::string& file, int line, const std::string& reason) {
    return AllOf(Field(&Violation::file, file), Field(&Violation::line, line),
                 Field(&Violation::reason, HasSubstr(reason)));
  }

 private:
  const fs::path root_ = fs::path(testing::TempDir()) / "house" /
                         testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(DependencyEdgesInATempTreeTest, AllowedEdgesPass) {
  Write("proto/meshrun/v1/job.proto", "import \"google/protobuf/duration.proto\";\n");
  Write("core/rpc.h", "#include <grpcpp/grpcpp.h>\n#include \"meshrun/v1/job.pb.h\"\n");
  Write("core/ids.h", "#include <string>\n");
  Write("coordinator/server.cc", "#include \"core/rpc.h\"\n#include \"coordinator/server.h\"\n");
  Write("agent/agent.h", "#include \"core/ids.h\"\n");
  Write("agent/agent.cc", "#include \"meshrun/v1/job.grpc.pb.h\"\n");
  Write("parallel/comm/store.cc", "#include <torch/torch.h>\n#include \"agent/agent.h\"\n");
  Write("jobs/train.cc", "#include \"parallel/comm/store.h\"\n");
  Write("tests/worker/x_test.cc", "#include \"worker/x.h\"\n#include \"client/y.h\"\n");
  Write("core/BUILD.bazel",
        "package(default_visibility = [\"//worker:__subpackages__\"])\n"
        "deps = [\"//proto/meshrun/v1:job_proto\", \"//third_party/grpc:grpc++\"]\n");
  Write("parallel/BUILD.bazel", "deps = [\"//third_party/libtorch\", \"//agent\"]\n");
  EXPECT_THAT(Find(), IsEmpty());
}

TEST_F(DependencyEdgesInATempTreeTest, DaemonsAndClientDoNotKnowEachOther) {
  Write("worker/a.cc", "\n#include \"coordinator/a.h\"\n");
  Write("client/a.cc", "#include \"worker/a.h\"\n");
  Write("coordinator/a.h", "#  include \"client/a.h\"\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("client/a.cc", 1, "must not use worker/"),
                                  Edge("coordinator/a.h", 1, "must not use client/"),
                                  Edge("worker/a.cc", 2, "must not use coordinator/")));
}

TEST_F(DependencyEdgesInATempTreeTest, CoreDoesNotLookUp) {
  Write("core/a.cc", "#include \"agent/agent.h\"\n");
  Write("proto/a.proto", "import \"core/a.proto\";\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("core/a.cc", 1, "must not use agent/"),
                                  Edge("proto/a.proto", 1, "must not use core/a.proto")));
}

TEST_F(DependencyEdgesInATempTreeTest, ParallelDoesNotReachTheWireEvenThroughAHeader) {
  Write("core/proto_time.h", "#include <google/protobuf/duration.pb.h>\n");
  Write("agent/agent.h", "#include \"core/proto_time.h\"\n");
  Write("parallel/comm/store.cc", "#include \"agent/agent.h\"\n");
  Write("parallel/fft/plan.h", "#include \"meshrun/v1/job.pb.h\"\n");
  EXPECT_THAT(
      Find(),
      ElementsAre(
          Edge("parallel/comm/store.cc", 1,
               "agent/agent.h -> core/proto_time.h -> google/protobuf/duration.pb.h"),
          Edge("parallel/fft/plan.h", 1, "must not reach protobuf or gRPC: meshrun/v1/job.pb.h"),
          Edge("parallel/fft/plan.h", 1, "must not use proto/")));
}

TEST_F(DependencyEdgesInATempTreeTest, PythonBindsTheLibraryAlone) {
  Write("parallel/comm/store.h", "#include <torch/torch.h>\n");
  Write("python/torch/group.cc", "#include <torch/torch.h>\n#include \"parallel/comm/store.h\"\n");
  Write("python/torch/BUILD.bazel", "torch = True,\n");
  EXPECT_THAT(Find(), IsEmpty());
  Write("jobs/train.cc", "#include \"python/torch/group.h\"\n");
  Write("python/torch/client.cc",
        "#include \"client/client.h\"\n#include \"meshrun/v1/job.pb.h\"\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("jobs/train.cc", 1, "jobs/ must not use python/"),
                                  Edge("python/torch/client.cc", 1, "must not use client/"),
                                  Edge("python/torch/client.cc", 2, "must not reach protobuf"),
                                  Edge("python/torch/client.cc", 2, "must not use proto/")));
}

TEST_F(DependencyEdgesInATempTreeTest, NothingBelowParallelReachesLibTorch) {
  Write("agent/agent.h", "#include <c10/util/Exception.h>\n");
  Write("worker/main.cc", "#include <torch/torch.h>\n");
  Write("client/main.cc", "#include \"parallel/manager/manager.h\"\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("agent/agent.h", 1, "must not reach LibTorch"),
                                  Edge("client/main.cc", 1, "must not use parallel/"),
                                  Edge("worker/main.cc", 1, "must not reach LibTorch")));
}

TEST_F(DependencyEdgesInATempTreeTest, TheEngineDoesNotIncludeTorch) {
  Write("parallel/comm/ucx/backend.h", "#include <ATen/core/Tensor.h>\n");
  Write("parallel/comm/ucx/BUILD.bazel", "torch = True,\n");
  Write("parallel/comm/ucx/engine/engine.cc", "#include \"parallel/comm/ucx/backend.h\"\n");
  Write("parallel/comm/ucx/engine/failure.cc", "#include <grpcpp/grpcpp.h>\n");
  Write("parallel/comm/ucx/engine/BUILD.bazel", "torch = True,\n\"//third_party/libtorch\",\n");
  const std::string engine = "parallel/comm/ucx/engine/";
  EXPECT_THAT(Find(),
              ElementsAre(Edge(engine + "BUILD.bazel", 1, "engine/ must not reach LibTorch"),
                          Edge(engine + "BUILD.bazel", 2, "engine/ must not reach LibTorch"),
                          Edge(engine + "engine.cc", 1, "engine/ must not reach LibTorch"),
                          Edge(engine + "failure.cc", 1, "must not reach protobuf or gRPC")));
}

// One planted edge of each kind that the layers of parallel/ forbid.
TEST_F(DependencyEdgesInATempTreeTest, AFolderOfParallelUsesOnlyWhatStandsLeftOfIt) {
  const std::vector<std::string> order = {"base", "kernels", "comm", "manager", "collectives",
                                          "fft",  "shard",   "nn",   "elastic"};
  std::vector<testing::Matcher<Violation>> expected;
  for (size_t user = 0; user < order.size(); ++user) {
    for (size_t used = 0; used < order.size(); ++used) {
      const std::string file = "parallel/" + order[user] + "/uses_" + order[used] + ".cc";
      Write(file, "#include \"parallel/" + order[used] + "/x.h\"\n");
      if (used <= user) continue;
      expected.push_back(Edge(
          file, 1, "parallel/" + order[user] + "/ must not use parallel/" + order[used] + "/"));
    }
  }
  EXPECT_THAT(Find(), testing::UnorderedElementsAreArray(expected));
}

TEST_F(DependencyEdgesInATempTreeTest, BaguaAndCheckpointsStandAboveCollectivesAndAside) {
  Write("parallel/bagua/a.cc", "#include \"parallel/collectives/x.h\"\n");
  Write("parallel/bagua/b.cc", "#include \"parallel/nn/x.h\"\n");
  Write("parallel/checkpoint/a.cc", "#include \"parallel/elastic/x.h\"\n");
  Write("parallel/elastic/a.cc", "#include \"parallel/checkpoint/x.h\"\n");
  Write("parallel/nn/a.cc", "#include \"parallel/bagua/x.h\"\n");
  Write("parallel/attic/a.cc", "#include \"parallel/base/x.h\"\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("parallel/attic/a.cc", 1, "no rule says"),
                                  Edge("parallel/bagua/b.cc", 1, "must not use parallel/nn/"),
                                  Edge("parallel/checkpoint/a.cc", 1, "parallel/elastic/"),
                                  Edge("parallel/nn/a.cc", 1, "must not use parallel/bagua/")));
}

TEST_F(DependencyEdgesInATempTreeTest, OnlyCommNamesABackend) {
  const std::string include = "#include \"parallel/comm/ucx/backend.h\"\n";
  Write("parallel/collectives/a.cc", include);
  Write("parallel/comm/interface/a.h", include);
  Write("parallel/comm/point_to_point/a.h", include);
  Write("parallel/comm/factory.cc", include);
  Write("parallel/manager/BUILD.bazel", "deps = [\"//parallel/comm/ucx:backend\"]\n");
  EXPECT_THAT(Find(),
              testing::UnorderedElementsAre(
                  Edge("parallel/collectives/a.cc", 1, "must not name a backend"),
                  Edge("parallel/comm/interface/a.h", 1, "must not name a backend"),
                  Edge("parallel/comm/interface/a.h", 1, "must not use parallel/comm/ucx/"),
                  Edge("parallel/comm/point_to_point/a.h", 1, "must not name a backend"),
                  Edge("parallel/comm/point_to_point/a.h", 1, "must not use parallel/comm/ucx/"),
                  Edge("parallel/manager/BUILD.bazel", 1, "must not name a backend")));
}

TEST_F(DependencyEdgesInATempTreeTest, TheEnginesFoldersHaveOneOrder) {
  const std::string engine = "parallel/comm/ucx/engine/";
  for (const std::string folder : {"planning", "transport", "liveness", "protocol", "execution"}) {
    Write(engine + folder + "/a.cc", "#include \"" + engine + "values/x.h\"\n");
  }
  Write(engine + "values/b.h", "#include \"" + engine + "planning/x.h\"\n");
  Write(engine + "planning/b.h", "#include \"" + engine + "protocol/x.h\"\n");
  Write(engine + "transport/b.h", "#include \"" + engine + "execution/x.h\"\n");
  Write(engine + "liveness/BUILD.bazel", "deps = [\"//" + engine + "execution:engine\"]\n");
  EXPECT_THAT(Find(), ElementsAre(Edge(engine + "liveness/BUILD.bazel", 1, "/execution/"),
                                  Edge(engine + "planning/b.h", 1, "/protocol/"),
                                  Edge(engine + "transport/b.h", 1, "/execution/"),
                                  Edge(engine + "values/b.h", 1, "/planning/")));
}

TEST_F(DependencyEdgesInATempTreeTest, FoldersThatUseEachOtherAreACircle) {
  Write("worker/a.h", "#include \"worker/logs/a.h\"\n");
  Write("worker/logs/a.h", "#include \"worker/launch/a.h\"\n");
  Write("worker/launch/a.h", "#include \"worker/b.h\"\n");
  Write("worker/b.h", "");
  Write("worker/inventory/a.h", "#include \"worker/b.h\"\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("worker/a.h", 1, "a circle of folders: worker/ uses"),
                                  Edge("worker/launch/a.h", 1, "a circle of folders"),
                                  Edge("worker/logs/a.h", 1, "a circle of folders")));
}

TEST_F(DependencyEdgesInATempTreeTest, LabelsCountAsIncludesDo) {
  Write("worker/BUILD.bazel",
        "# \"//coordinator:commented\"\n"
        "deps = [\"//core\", \"//coordinator:state\"],\n"
        "torch = True,\n");
  Write("parallel/BUILD.bazel", "deps = [\"//third_party/grpc:grpc++\"]\n");
  Write("client/BUILD.bazel", "deps = [\"//third_party/libtorch\"]\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("client/BUILD.bazel", 1, "//third_party/libtorch"),
                                  Edge("parallel/BUILD.bazel", 1, "//third_party/grpc:grpc++"),
                                  Edge("worker/BUILD.bazel", 2, "must not use coordinator/"),
                                  Edge("worker/BUILD.bazel", 3, "torch = True")));
}

TEST_F(DependencyEdgesInATempTreeTest, AnUnknownFolderIsAProjectThatUsesTheLibrariesAlone) {
  Write("reactor/a.cc",
        "#include <torch/torch.h>\n#include \"parallel/nn/x.h\"\n#include \"core/a.h\"\n"
        "#include \"worker/a.h\"\n#include \"client/job_client.h\"\n");
  Write("reactor/BUILD.bazel",
        "deps = [\"//parallel\", \"//parallel:nn\", \"//third_party/libtorch\"]\ntorch = True\n"
        "deps = [\"//coordinator:server\"]\n");
  EXPECT_THAT(Find(), ElementsAre(Edge("reactor/BUILD.bazel", 3, "must not use coordinator/"),
                                  Edge("reactor/a.cc", 4, "reactor/ must not use worker/")));
}

TEST_F(DependencyEdgesInATempTreeTest, AnIncludeCycleEnds) {
  Write("agent/a.h", "#include \"agent/b.h\"\n");
  Write("agent/b.h", "#include \"agent/a.h\"\n");
  EXPECT_THAT(Find(), IsEmpty());
}

}  // namespace
}  // namespace meshrun::house
