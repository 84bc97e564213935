// Complete checkpoints: which there are, and their tensors.
#include "core/checkpoint/step_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "core/checkpoint/open_tensors.h"
#include "tests/core/checkpoint/step_files.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EncodeTensors;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TemporaryDirectory;
using testing::WriteStep;

std::string Tensor(const TensorSource& source, const std::string& name, size_t block = 1 << 20) {
  std::string bytes(*TensorBytes(name, source.Tensors().at(name)), '\0');
  for (size_t at = 0; at < bytes.size(); at += block) {
    const absl::Status read =
        source.Read(name, at, std::span(bytes).subspan(at, std::min(block, bytes.size() - at)));
    if (!read.ok()) return std::string(read.message());
  }
  return bytes;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

Manifest At(int64_t step, int64_t sequence) {
  Manifest manifest;
  manifest.step = step;
  manifest.sequence = sequence;
  return manifest;
}

const std::string kDigits = "0123456789012345678901234567890123456789";
const std::map<std::string, std::string> kFiles = {
    {"model.safetensors", EncodeTensors({{"w", {{"U8", {40}}, kDigits}}})},
    {"optimizer.safetensors", EncodeTensors({{"step.w", {{"U8", {2}}, "12"}}})},
    {"kept.safetensors", EncodeTensors({{"average", {{"U8", {1}}, "a"}}})},
};

TEST(StepNameTest, IsThePrefixAndDigits) {
  for (const char* name : {"step-0", "step-500"}) EXPECT_TRUE(IsStepName(name)) << name;
  for (const char* name : {"step-", "step-5a", ".step-5", "step5", "5", ""}) {
    EXPECT_FALSE(IsStepName(name)) << name;
  }
}

TEST(StepDirectoryTest, TheNewestIsTheOneWrittenLast) {
  const TemporaryDirectory directory;
  const auto steps = [&](bool tolerant) {
    std::vector<int64_t> steps;
    const auto found = ListStepDirectories(directory.path(), tolerant);
    EXPECT_TRUE(found.ok()) << found.status();
    for (const auto& each : *found) steps.push_back(each.manifest.step);
    return steps;
  };
  EXPECT_THAT(steps(false), ElementsAre());
  WriteStep(directory, At(1000, 2), kFiles);
  WriteStep(directory, At(50, 3), kFiles, 1);
  WriteStep(directory, At(900, 1), kFiles);
  directory.Write("step-8/model.safetensors", "no manifest: not complete");
  directory.Write(".step-9.a.3.unfinished/manifest.json", "{}");
  directory.Write("notes/manifest.json", "{}");
  EXPECT_THAT(steps(false), ElementsAre(900, 1000, 50));
  directory.Write("step-7/manifest.json", "{");
  EXPECT_THAT(steps(true), ElementsAre(900, 1000, 50));
  const auto found = ListStepDirectories(directory.path());
  EXPECT_EQ(found.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(found.status()), HasSubstr("step-7/manifest.json is damaged"));
  const auto none = ListStepDirectories(directory / "absent");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->empty());
}

TEST(StepDirectoryTest, NewerOnesWithoutAManifestAreSaid) {
  const TemporaryDirectory directory;
  WriteStep(directory, At(30, 1), kFiles);
  for (const char* name : {"step-100", "step-40", "step-20"}) {
    directory.Write(std::string(name) + "/model.safetensors", "x");
  }
  directory.Write("step-50", "a file");
  directory.Write(".step-60.a.3.unfinished/model.safetensors", "x");
  directory.Write("step-5.incomplete-1/model.safetensors", "x");
  EXPECT_THAT(IncompleteSteps(directory.path()), ElementsAre("step-20", "step-40", "step-100"));
  EXPECT_THAT(IncompleteSteps(directory / "absent"), ElementsAre());
  EXPECT_EQ(PassedOver("step-40", 30),
            "step-40 has no manifest.json, so it is not a whole checkpoint; step-30 is taken");
  EXPECT_EQ(PassedOver("step-40", std::nullopt),
            "step-40 has no manifest.json, so it is not a whole checkpoint; no other one is there");
  EXPECT_EQ(PassedOver("step-20", 30), "");
}

TEST(StepDirectoryTest, OneWithoutAManifestIsNotComplete) {
  const TemporaryDirectory directory;
  directory.Write("step-8/model.safetensors", "x");
  EXPECT_THAT(MessageOf(ReadStepDirectory(directory / "step-8").status()),
              AllOf(StartsWith(directory / "step-8"), HasSubstr("not a complete checkpoint")));
  EXPECT_EQ(ReadStepDirectory(directory / "step-9").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenTensors(directory / "step-8").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(OpenTensors(directory / "step-8/").status()),
              EndsWith("step-8 is not a complete checkpoint: it has no manifest.json"));
}

TEST(StepDirectoryTest, BesideADamagedOneAnotherIsNamed) {
  const TemporaryDirectory directory;
  const auto problem = [&](const std::string& path) {
    return MessageOf(OpenTensors(directory / path).status());
  };
  WriteStep(directory, At(30, 1), kFiles);
  WriteStep(directory, At(40, 2), kFiles);
  const std::string end = "; another checkpoint to use: " + directory / "step-30";
  const std::string text = directory.Read("step-40/manifest.json");
  directory.Write("step-40/kept.safetensors", "");
  for (const char* path : {"", "step-40", "step-40/"}) EXPECT_THAT(problem(path), EndsWith(end));
  directory.Write("step-40/manifest.json", text.substr(0, 100));
  for (const char* path : {"", "step-40", "step-40/"}) {
    EXPECT_THAT(problem(path), AllOf(StartsWith(directory / "step-40/manifest.json is damaged: it"),
                                     EndsWith(end)));
  }
  std::filesystem::remove(directory / "step-40/manifest.json");
  EXPECT_THAT(problem("step-40"), EndsWith("it has no manifest.json" + end));
  std::filesystem::remove_all(directory / "step-30");
  EXPECT_THAT(problem("step-40"), EndsWith("it has no manifest.json"));
}

TEST(StepDirectoryTest, ItsTensorsHaveTheirFilesNames) {
  for (const int version : {1, 2}) {
    const TemporaryDirectory directory;
    const std::string path = WriteStep(directory, At(5, 1), kFiles, version);
    const auto source = OpenStepDirectory(path);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->Format(), "meshrun checkpoint");
    EXPECT_EQ((*source)->Notes().at("step"), "5");
    std::vector<std::string> names;
    for (const auto& [name, tensor] : (*source)->Tensors()) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("kept/average", "optimizer/step.w", "w"));
    for (const size_t block : {1, 3, 7, 16, 40}) {
      EXPECT_EQ(Tensor(**source, "w", block), kDigits) << block;
    }
    EXPECT_EQ(Tensor(**source, "optimizer/step.w"), "12");
    char byte;
    EXPECT_EQ((*source)->Read("v", 0, std::span(&byte, 1)).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ((*source)->Read("w", 40, std::span(&byte, 1)).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(StepDirectoryTest, NothingIsGivenThatHasNotItsHash) {
  for (const int version : {1, 2}) {
    const TemporaryDirectory directory;
    const std::string path = WriteStep(directory, At(5, 1), kFiles, version);
    std::string content = kFiles.at("model.safetensors");
    content[content.size() - 1] ^= 1;
    directory.Write("step-5/model.safetensors", content);
    const auto source = OpenStepDirectory(path);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT(Tensor(**source, "w"), HasSubstr("is damaged"));
    EXPECT_EQ(Tensor(**source, "kept/average"), "a");
    char byte = 0;
    // Version 1 has no hash of a part.
    EXPECT_EQ((*source)->Read("w", 0, std::span(&byte, 1)).ok(), version == 2);
    std::filesystem::remove(path + "/kept.safetensors");
    EXPECT_THAT(MessageOf(OpenStepDirectory(path).status()),
                HasSubstr("kept.safetensors is missing"));
  }
}

TEST(StepDirectoryTest, SeveralThreadsReadAtATime) {
  const TemporaryDirectory directory;
  const auto source = OpenStepDirectory(WriteStep(directory, At(5, 1), kFiles));
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::thread> threads;
  for (size_t block = 1; block < 9; ++block) {
    threads.emplace_back([&, block] { EXPECT_EQ(Tensor(**source, "w", block), kDigits); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StepDirectoryTest, PiecesAreReadAsTheirTensor) {
  const TemporaryDirectory directory;
  Manifest manifest = At(5, 1);
  // 0 1 2 3 4 / 5 6 7 8 9, split into columns 0 to 1 and 2 to 4.
  manifest.files["model.0.safetensors"].pieces = {{"w", {"w", {2, 5}, {0, 0}}}};
  manifest.files["model.1.safetensors"].pieces = {{"w", {"w", {2, 5}, {0, 2}}}};
  const std::string left = EncodeTensors({{"w", {{"U8", {2, 2}}, "0156"}}});
  const std::string right = EncodeTensors({{"w", {{"U8", {2, 3}}, "234789"}}});
  const std::string path = WriteStep(
      directory, manifest, {{"model.0.safetensors", left}, {"model.1.safetensors", right}}, 2, 2);
  const auto source = OpenStepDirectory(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Tensors().at("w"), (TensorInfo{"U8", {2, 5}}));
  for (const size_t block : {1, 2, 3, 4, 10}) {
    EXPECT_EQ(Tensor(**source, "w", block), "0123456789") << block;
  }
  // One of them is on another host.
  manifest.hosts = {"node-a", "node-b"};
  WriteStep(directory, manifest, {{"model.0.safetensors", left}, {"model.1.safetensors", right}});
  std::filesystem::remove(path + "/model.1.safetensors");
  EXPECT_THAT(MessageOf(OpenStepDirectory(path).status()),
              HasSubstr("model.1.safetensors is missing; the hosts node-a, node-b wrote"));
  // And one is not in the manifest.
  const TemporaryDirectory half;
  Manifest alone = At(5, 1);
  alone.files["model.0.safetensors"].pieces = {{"w", {"w", {2, 5}, {0, 0}}}};
  EXPECT_THAT(
      MessageOf(
          OpenStepDirectory(WriteStep(half, alone, {{"model.0.safetensors", left}})).status()),
      HasSubstr("w is damaged: no chunk has "));
}

// Two hosts: w in pieces, v whole at both.
TEST(StepDirectoryTest, HostsMayStoreTheSameAndOneOfThemIsEnoughForIt) {
  const TemporaryDirectory directory;
  Manifest manifest = At(5, 1);
  manifest.hosts = {"node-a", "node-b"};
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  manifest.files[first].pieces = {{"w@0", {"w", {4}, {0}}}, {"x", {"x", {2}, {0}}}};
  manifest.files[second].pieces = {{"w@2", {"w", {4}, {2}}}, {"x", {"x", {2}, {0}}}};
  const auto part = [](const std::string& name, const std::string& bytes) {
    return EncodeTensors(
        {{name, {{"U8", {2}}, bytes}}, {"v", {{"U8", {3}}, "789"}}, {"x", {{"U8", {2}}, "ab"}}});
  };
  const std::string path = WriteStep(
      directory, manifest, {{first, part("w@0", "01")}, {second, part("w@2", "23")}}, 2, 2);
  const auto source = OpenStepDirectory(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Tensor(**source, "w"), "0123");
  EXPECT_EQ(Tensor(**source, "v"), "789");
  EXPECT_EQ(Tensor(**source, "x"), "ab");
  const auto elsewhere = [&] { return FilesOfOtherHosts(*ReadStepDirectory(path)); };
  EXPECT_THAT(elsewhere(), ElementsAre());

  std::filesystem::remove(path + "/" + first);
  EXPECT_THAT(elsewhere(), ElementsAre(first));
  EXPECT_THAT(MessageOf(OpenStepDirectory(path).status()), HasSubstr(first + " is missing; the"));
  // Without w.
  Manifest whole = At(6, 2);
  whole.hosts = manifest.hosts;
  whole.files[first].pieces = {{"x", {"x", {2}, {0}}}};
  whole.files[second].pieces = {{"x", {"x", {2}, {0}}}};
  const std::string alone =
      EncodeTensors({{"v", {{"U8", {3}}, "789"}}, {"x", {{"U8", {2}}, "ab"}}});
  const std::string other = WriteStep(directory, whole, {{first, alone}, {second, alone}}, 2, 2);
  std::filesystem::remove(other + "/" + first);
  const auto rest = OpenStepDirectory(other);
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(Tensor(**rest, "v"), "789");
  EXPECT_EQ(Tensor(**rest, "x"), "ab");
  // Without any file here, none is called one of another host.
  std::filesystem::remove(other + "/" + second);
  EXPECT_FALSE(OpenStepDirectory(other).ok());
  whole.hosts.clear();
  EXPECT_THAT(MessageOf(OpenStepDirectory(
                            WriteStep(directory, whole, {{first, alone}, {second, alone}}, 2, 2))
                            .status()),
              HasSubstr("v is stored twice"));
}

TEST(StepDirectoryTest, APieceOfNoFileThatIsHereIsMissing) {
  const TemporaryDirectory directory;
  Manifest manifest = At(5, 1);
  manifest.hosts = {"node-a", "node-b"};
  manifest.files["model-1.safetensors"].pieces = {{"w", {"w", {2}, {0}}}};
  const std::string path =
      WriteStep(directory, manifest,
                {{"model-1.safetensors", EncodeTensors({{"w", {{"U8", {2}}, "ab"}}})},
                 {"model-2.safetensors", EncodeTensors({{"v", {{"U8", {1}}, "v"}}})}});
  std::filesystem::remove(path + "/model-1.safetensors");
  EXPECT_THAT(MessageOf(OpenStepDirectory(path).status()),
              HasSubstr("model-1.safetensors is missing; the hosts node-a, node-b wrote"));
}

TEST(OpenTensorsTest, TellsTheFormatByTheContent) {
  const TemporaryDirectory directory;
  const auto format = [&](const std::string& path) {
    const auto source = OpenTensors(directory / path);
    return source.ok() ? (*source)->Format() : MessageOf(source.status());
  };
  const std::string tensors = EncodeTensors({{"w", {{"U8", {1}}, "w"}}});
  directory.Write("file", tensors);
  EXPECT_EQ(format("file"), "safetensors");
  directory.Write("single/model.safetensors", tensors);
  EXPECT_EQ(format("single"), "safetensors");
  directory.Write("split/a", tensors);
  directory.Write("split/model.safetensors.index.json", R"({"weight_map": {"w": "a"}})");
  EXPECT_EQ(format("split"), "safetensors");
  EXPECT_THAT(format("absent"), HasSubstr("No such file"));
  std::filesystem::create_directory(directory / "empty");
  EXPECT_THAT(format("empty"), HasSubstr("has no tensors"));
  WriteStep(directory, At(5, 1), kFiles);
  EXPECT_EQ(format("step-5"), "meshrun checkpoint");
  EXPECT_EQ(format(""), "meshrun checkpoint");
  directory.Write("part.distcp", "PK\x03\x04");
  EXPECT_THAT(format("part.distcp"), HasSubstr("name its directory"));
  // A header of 640 bytes begins as a pickle of protocol 2 does.
  std::string long_header = R"({"__metadata__":{"k":")" + std::string(640 - 25, 'v') + "\"}}";
  ASSERT_EQ(long_header.size(), 640u);
  directory.Write("pickle_like", std::string("\x80\x02\0\0\0\0\0\0", 8) + long_header);
  EXPECT_EQ(format("pickle_like"), "safetensors");
}

}  // namespace
}  // namespace meshrun
