// What `meshrun checkpoint` does with files, without the command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "client/checkpoint/conversion.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/verification.h"
#include "client/render/checkpoint_report.h"
#include "client/render/progress_line.h"
#include "tests/core/checkpoint/step_files.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EncodeTensors;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using testing::WriteStep;

Manifest At(int64_t step, int64_t sequence) {
  Manifest manifest;
  manifest.step = step;
  manifest.sequence = sequence;
  manifest.written = 1795938345;
  manifest.optimizer = "Adam";
  manifest.identity = {{"job", "geoid"}};
  return manifest;
}

std::map<std::string, std::string> Files(char w = 'w') {
  return {
      {"model.safetensors", EncodeTensors({{"w", {{"U8", {64}}, std::string(64, w)}},
                                           {"b", {{"F32", {1}}, std::string("\0\0\x80\x3f", 4)}}})},
      {"optimizer.safetensors", EncodeTensors({{"step.w", {{"I64", {}}, std::string(8, '\5')}}})}};
}

TEST(CheckpointListingTest, SaysWhatIsCompleteUnfinishedAndDamaged) {
  const TemporaryDirectory directory;
  WriteStep(directory, At(900, 2), Files());
  WriteStep(directory, At(50, 3), Files());
  WriteStep(directory, At(60, 1), Files());
  directory.Write("step-60/model.safetensors", "short");
  directory.Write("step-70/manifest.json", "{");
  directory.Write("step-80/model.safetensors", "x");
  directory.Write(".step-90.node-a.3.unfinished/model.safetensors", "xy");
  ASSERT_TRUE(HoldsCheckpoints(directory.path()));
  EXPECT_FALSE(HoldsCheckpoints(directory / "step-900"));
  EXPECT_FALSE(HoldsCheckpoints(directory / "absent"));
  const auto listed = ListCheckpoints(directory.path());
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::vector<std::string> names;
  for (const auto& each : *listed) names.push_back(each.name);
  EXPECT_THAT(names, ElementsAre("step-70", "step-60", "step-900", "step-50", "step-80",
                                 ".step-90.node-a.3.unfinished"));
  const auto parsed = json::parse(CheckpointsJson("d", *listed)).at("checkpoints");
  EXPECT_EQ(parsed.at(0).at("state"), "damaged");
  EXPECT_THAT(parsed.at(1).at("problem"), HasSubstr("model.safetensors is truncated: 5 bytes"));
  EXPECT_EQ(parsed.at(2).at("state"), "complete");
  EXPECT_EQ(parsed.at(2).at("written"), "2026-11-29T07:45:45Z");
  EXPECT_EQ(parsed.at(2).at("files"), 2);
  EXPECT_EQ(parsed.at(4).at("state"), "unfinished");
  EXPECT_EQ(parsed.at(5).at("bytes"), 2);
  const std::string table = CheckpointTable(*listed, 0);
  EXPECT_THAT(table, HasSubstr("complete, the newest\n"));
  EXPECT_THAT(table, HasSubstr("not complete: it has no manifest.json"));
}

// A checkpoint of two hosts; the files of one are here.
std::string WritePart(const TemporaryDirectory& directory) {
  Manifest manifest = At(900, 2);
  manifest.hosts = {"node-a", "node-b"};
  const std::string here = "model-00001-of-00002.safetensors";
  const std::string there = "model-00002-of-00002.safetensors";
  manifest.files[here].pieces = {{"w@0", {"w", {2}, {0}}}};
  manifest.files[there].pieces = {{"w@1", {"w", {2}, {1}}}};
  const auto half = [](const char* name) { return EncodeTensors({{name, {{"U8", {1}}, "w"}}}); };
  const std::string path =
      WriteStep(directory, manifest, {{here, half("w@0")}, {there, half("w@1")}});
  std::filesystem::remove(path + "/" + there);
  return path;
}

TEST(CheckpointListingTest, FilesOfOtherHostsAreNotDamage) {
  const TemporaryDirectory directory;
  const std::string path = WritePart(directory);
  const auto listed = ListCheckpoints(directory.path());
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(json::parse(CheckpointsJson("d", *listed)).at("checkpoints").at(0).at("filesElsewhere"),
            1);
  EXPECT_THAT(CheckpointTable(*listed, 0),
              HasSubstr("complete, the newest; 1 file on other hosts"));
  const auto verified = Verify(directory.path(), {});
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_TRUE(verified->damages.empty());
  EXPECT_EQ(verified->files.size(), 1u);
  EXPECT_THAT(verified->parts, ElementsAre(path));
  EXPECT_THAT(VerificationReport("d", *verified),
              HasSubstr("step-900 has files on other hosts, which were not read"));
}

TEST(CheckpointListingTest, SaysWhatTheManifestDoes) {
  const TemporaryDirectory directory;
  const std::string path = WriteStep(directory, At(900, 2), Files());
  const auto listed = ListTensors(path);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->total_bytes, 76u);
  EXPECT_EQ(listed->total_elements, 66u);
  const json parsed = json::parse(TensorsJson("p", *listed));
  EXPECT_EQ(parsed.at("manifest").at("step"), 900);
  EXPECT_EQ(parsed.at("manifest").at("files").at("model.safetensors").at("hash"), "XXH3-128");
  EXPECT_EQ(parsed.at("tensors").at(1).at("name"), "optimizer/step.w");
  EXPECT_EQ(parsed.at("tensors").at(1).at("shape"), json::array());
  EXPECT_THAT(TensorReport("p", *listed, 0),
              AllOf(HasSubstr("step 900, optimizer Adam"), HasSubstr("identity job: geoid"),
                    HasSubstr("w                 U8     [64]")));
  EXPECT_EQ(ListTensors(directory / "absent").status().code(), absl::StatusCode::kNotFound);
}

Verification Verified(const std::string& path, size_t most = 100) {
  VerifyOptions options{.jobs = 3, .most_damages = most};
  auto verified = Verify(path, options);
  EXPECT_TRUE(verified.ok()) << verified.status();
  return verified.ok() ? *std::move(verified) : Verification{};
}

TEST(VerificationTest, EveryDamagedPlaceIsNamedAndTheRestIsRead) {
  const TemporaryDirectory directory;
  WriteStep(directory, At(5, 1), Files());
  WriteStep(directory, At(6, 2), Files(), 1);
  directory.Write(".step-7.node-a.3.unfinished/model.safetensors", "");
  EXPECT_TRUE(Verified(directory.path()).damages.empty());
  EXPECT_THAT(Verified(directory.path()).unfinished,
              ElementsAre(directory / ".step-7.node-a.3.unfinished"));
  // A byte of the header, two of tensors, one of the file of version 1.
  std::string model = Files().at("model.safetensors");
  model[10] ^= 1;
  model[model.size() - 1] ^= 1;
  model[model.size() - 40] ^= 1;
  directory.Write("step-5/model.safetensors", model);
  directory.Write("step-6/model.safetensors", model);
  directory.Write("step-5/optimizer.safetensors", "");
  const Verification found = Verified(directory.path());
  ASSERT_EQ(found.damages.size(), 5u);
  EXPECT_THAT(found.damages[0].message,
              HasSubstr("step-5/model.safetensors is damaged: its header"));
  EXPECT_EQ(found.damages[0].begin, 0u);
  EXPECT_LT(found.damages[1].begin, found.damages[2].begin);
  EXPECT_EQ(found.damages[2].end, model.size());
  EXPECT_THAT(found.damages[3].message, HasSubstr("optimizer.safetensors is truncated: 0 bytes"));
  EXPECT_THAT(found.damages[4].message, HasSubstr("SHA-256"));
  EXPECT_EQ(json::parse(VerificationJson("p", found)).at("sound"), false);
  const Verification few = Verified(directory.path(), 2);
  EXPECT_EQ(few.damages.size(), 2u);
  EXPECT_EQ(few.more_damages, 3u);
  EXPECT_THAT(VerificationReport("p", few),
              AllOf(HasSubstr("and 3 more damaged places"), HasSubstr(": 5 damaged places\n")));
}

TEST(VerificationTest, EveryDamagedByteIsFound) {
  const TemporaryDirectory directory;
  const std::string path = WriteStep(directory, At(5, 1), Files());
  const std::string model = Files().at("model.safetensors");
  for (size_t at = 0; at < model.size(); at += 7) {
    std::string damaged = model;
    damaged[at] ^= 0x10;
    directory.Write("step-5/model.safetensors", damaged);
    const Verification found = Verified(path);
    ASSERT_EQ(found.damages.size(), 1u) << at;
    EXPECT_LE(found.damages[0].begin, at);
    EXPECT_GT(found.damages[0].end, at);
  }
}

TEST(VerificationTest, AFormatWithoutHashesIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("f", Files().at("model.safetensors"));
  const Verification found = Verified(path);
  EXPECT_TRUE(found.damages.empty());
  EXPECT_EQ(found.bytes, 68u);
  EXPECT_THAT(VerificationReport("f", found), HasSubstr("no hashes to compare"));
  VerifyOptions options;
  EXPECT_EQ(Verify(directory / "absent", options).status().code(), absl::StatusCode::kNotFound);
  directory.Write("only/.step-7.node-a.3.unfinished/model.safetensors", "");
  EXPECT_EQ(Verify(directory / "only", options).status().code(), absl::StatusCode::kNotFound);
}

TEST(VerificationTest, AStepThatIsNotCompleteIsDamage) {
  const TemporaryDirectory directory;
  WriteStep(directory, At(5, 1), Files());
  WriteStep(directory, At(6, 2), Files());
  std::filesystem::remove(directory / "step-6/optimizer.safetensors");
  directory.Write("step-7/model.safetensors", "");
  std::filesystem::create_directory(directory / "step-8");
  std::vector<std::string> messages;
  const Verification found = Verified(directory.path());
  for (const Damage& damage : found.damages) messages.push_back(damage.message);
  const std::string end = " is not a complete checkpoint: it has no manifest.json";
  EXPECT_THAT(messages, ElementsAre(directory / "step-6/optimizer.safetensors is missing",
                                    directory / "step-7" + end, directory / "step-8" + end));
  EXPECT_THAT(found.unfinished, ElementsAre());
  // The same where the directory has no whole checkpoint.
  for (const char* step : {"step-5", "step-6"}) std::filesystem::remove_all(directory / step);
  EXPECT_EQ(Verified(directory.path()).damages.size(), 2u);
}

TEST(ConversionTest, TakesTheModelAndWithAllTheRest) {
  const TemporaryDirectory directory;
  const std::string step = WriteStep(directory, At(5, 1), Files());
  const std::string to = directory / "out.safetensors";
  auto made = Convert(step, to, {});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tensors, 2u);
  EXPECT_THAT(made->left_out, ElementsAre("optimizer.safetensors"));
  EXPECT_THAT(ConversionReport("to", *made),
              HasSubstr("not read: optimizer.safetensors: --all takes"));
  EXPECT_EQ(made->bytes, directory.Read("out.safetensors").size());
  auto listed = ListTensors(to);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->notes.at("format"), "pt");
  EXPECT_EQ(listed->notes.at("step"), "5");
  EXPECT_EQ(listed->tensors.size(), 2u);
  // What is there stays, unless one says otherwise.
  const std::string before = directory.Read("out.safetensors");
  made = Convert(step, to, {.all = true});
  EXPECT_EQ(made.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(directory.Read("out.safetensors"), before);
  made = Convert(step, to, {.all = true, .force = true});
  ASSERT_TRUE(made.ok()) << made.status();
  listed = ListTensors(to);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_TRUE(listed->tensors.contains("optimizer/step.w"));
  EXPECT_EQ(Convert(step, directory.path(), {.force = true}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Convert(step, directory / "no/where", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(ConversionTest, OnlyFilesThatAreNeededAreRead) {
  const TemporaryDirectory directory;
  const std::string step = WriteStep(directory, At(5, 1), Files());
  const auto convert = [&](bool all) {
    return Convert(step, directory / "out", {.all = all, .force = true});
  };
  for (const char* damaged : {"short", ""}) {
    directory.Write("step-5/optimizer.safetensors", damaged);
    EXPECT_TRUE(convert(false).ok()) << damaged;
    EXPECT_THAT(std::string(convert(true).status().message()),
                HasSubstr("optimizer.safetensors is truncated"));
  }
  std::filesystem::remove(step + "/optimizer.safetensors");
  EXPECT_TRUE(convert(false).ok());
  EXPECT_THAT(std::string(convert(true).status().message()),
              HasSubstr("optimizer.safetensors is missing"));
}

TEST(ConversionTest, OfADamagedFileNothingIsLeft) {
  const TemporaryDirectory directory;
  const std::string step = WriteStep(directory, At(5, 1), Files());
  std::string model = Files().at("model.safetensors");
  model.back() ^= 1;
  directory.Write("step-5/model.safetensors", model);
  std::vector<std::string> unfinished;
  ConvertOptions options;
  options.unfinished = [&](const std::string& path) { unfinished.push_back(path); };
  const auto made = Convert(step, directory / "out", options);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(unfinished.size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(unfinished[0]));
  EXPECT_EQ(unfinished[1], "");
  EXPECT_FALSE(std::filesystem::exists(directory / "out"));
}

TEST(ProgressLineTest, ComesAfterTwoSecondsAndNotTooOften) {
  const ProgressLine::Time begin{};
  const auto at = [&](int ms) { return begin + std::chrono::milliseconds(ms); };
  ProgressLine line("verified", begin);
  EXPECT_FALSE(line.Next(1, 100, at(1999)));
  EXPECT_EQ(line.Next(uint64_t{1} << 30, uint64_t{4} << 30, at(2000)),
            "verified 1.0 GiB of 4.0 GiB (25%), 512.0 MiB/s, 6s left");
  EXPECT_FALSE(line.Next(50, 100, at(2100)));
  EXPECT_TRUE(line.Next(100, 100, at(2200)));
  EXPECT_EQ(ProgressLine("read", begin).Next(0, 0, at(3000)), "read 0 B of 0 B (100%)");
  EXPECT_THAT(*ProgressLine("read", begin).Next(999, 1000, at(2000)), HasSubstr("(99%)"));
}

}  // namespace
}  // namespace meshrun::client
