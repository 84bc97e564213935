// manifest.json: both versions, and damaged ones.
#include "core/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/core/checkpoint/mutations.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Mutated;
using ::testing::Not;
using ::testing::StartsWith;

std::string Problem(const std::string& content) {
  const auto manifest = DecodeManifest("m", content);
  if (manifest.ok()) return "it is read";
  EXPECT_EQ(manifest.status().code(), absl::StatusCode::kDataLoss);
  return std::string(manifest.status().message());
}

Manifest Full() {
  Manifest manifest;
  manifest.sequence = 3;
  manifest.step = 500;
  manifest.save = "4be1c2";
  manifest.written = 1795938345;
  manifest.identity = {{"job", "geoid"}, {"--lr", "0.1"}};
  manifest.sampler = {{"seed", "7"}};
  manifest.random_generators = {{"cpu", std::string("\0\xff\x10", 3)}};
  manifest.random_generators_by_rank = {{{"cpu", "a"}}, {{"cpu", "b"}}};
  manifest.optimizer = "Adam";
  manifest.optimizer_options = {{{"lr", 0.1}, {"eps", 1e-300}}, {{"lr", 1.0 / 3}}};
  manifest.kept_values = {{"sampler", std::string("\0\xff", 2)}};
  manifest.hosts = {"node-a", "node-b"};
  Manifest::File& file = manifest.files["model.node-a.safetensors"];
  file.bytes = 3000;
  file.chunks = {{1024, {1, 2}}, {3000, {~uint64_t{0}, 0}}};
  file.pieces = {{"w.0", {"w", {8, 4}, {4, 0}}}};
  return manifest;
}

TEST(ManifestTest, ComesBackAsItWasWritten) {
  const Manifest manifest = Full();
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, HasSubstr(R"("version": 2)"));
  EXPECT_THAT(text, HasSubstr(R"("chunks":[[1024,"00000000000000010000000000000002"])"));
  const auto read = DecodeManifest("m", text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->sequence, 3);
  EXPECT_EQ(read->step, 500);
  EXPECT_EQ(read->save, "4be1c2");
  EXPECT_EQ(read->written, 1795938345);
  EXPECT_EQ(read->identity, manifest.identity);
  EXPECT_EQ(read->sampler, manifest.sampler);
  EXPECT_EQ(read->random_generators, manifest.random_generators);
  EXPECT_EQ(read->random_generators_by_rank, manifest.random_generators_by_rank);
  EXPECT_EQ(read->optimizer, "Adam");
  // The same bits.
  EXPECT_EQ(read->optimizer_options, manifest.optimizer_options);
  EXPECT_EQ(read->kept_values, manifest.kept_values);
  EXPECT_EQ(read->hosts, manifest.hosts);
  const Manifest::File& file = read->files.at("model.node-a.safetensors");
  EXPECT_EQ(file.bytes, 3000u);
  EXPECT_EQ(file.sha256, "");
  EXPECT_EQ(file.chunks, manifest.files.at("model.node-a.safetensors").chunks);
  EXPECT_EQ(file.pieces, manifest.files.at("model.node-a.safetensors").pieces);
}

TEST(ManifestTest, WhatIsEmptyIsLeftOut) {
  Manifest manifest;
  manifest.files["model.safetensors"] = {.bytes = 1, .chunks = {{1, {}}}};
  EXPECT_THAT(EncodeManifest(manifest), AllOf(Not(HasSubstr("pieces")), Not(HasSubstr("hosts"))));
}

TEST(ManifestTest, AFileWithASha256MakesItVersion1) {
  Manifest manifest;
  manifest.files["model.safetensors"] = {.bytes = 7, .sha256 = "ab"};
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, AllOf(HasSubstr(R"("version": 1)"), Not(HasSubstr("written"))));
  const auto read = DecodeManifest("m", text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->files.at("model.safetensors").sha256, "ab");
  EXPECT_TRUE(read->files.at("model.safetensors").chunks.empty());
}

TEST(ManifestTest, TextsOfAnyBytesComeBackAsTheyWere) {
  Manifest manifest;
  manifest.identity = {{"--data", "/caf\xe9"}, {"--name", "caf\xc3\xa9"}, {"\xff", "plain"}};
  manifest.sampler = {{"seed", "meshrun-bytes:00"}};
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, AllOf(HasSubstr("meshrun-bytes:2f636166e9"), HasSubstr("caf\xc3\xa9")));
  const auto read = DecodeManifest("m", text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->identity, manifest.identity);
  EXPECT_EQ(read->sampler, manifest.sampler);
}

TEST(ManifestTest, InfiniteOptionsComeBack) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Manifest manifest;
  manifest.optimizer_options = {
      {{"lr", kInfinity}, {"eps", -kInfinity}, {"momentum", std::nan("")}}};
  const std::string text = EncodeManifest(manifest);
  const auto read = DecodeManifest("m", text);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto& options = read->optimizer_options.at(0);
  EXPECT_EQ(options.at("lr"), kInfinity);
  EXPECT_EQ(options.at("eps"), -kInfinity);
  EXPECT_TRUE(std::isnan(options.at("momentum")));
  std::string other = text;
  other.replace(other.find("\"-inf\""), 6, "\"few\"");
  EXPECT_EQ(Problem(other), "m is damaged: eps of optimizer_options is \"few\", not a number");
}

TEST(ManifestTest, ReadsWhatEarlierVersionsWrote) {
  const auto manifest = DecodeManifest("m", R"({
    "format": "meshrun-checkpoint", "version": 1, "sequence": 3, "step": 500,
    "identity": {}, "sampler": {}, "random_generators": {"cpu": "00ff"},
    "optimizer": "Adam", "files": {"model.safetensors": {"bytes": 5, "sha256": "00"}}})");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->step, 500);
  EXPECT_EQ(manifest->save, "");
  EXPECT_EQ(manifest->written, 0);
  EXPECT_EQ(manifest->random_generators.at("cpu"), std::string("\0\xff", 2));
  EXPECT_TRUE(manifest->random_generators_by_rank.empty());
  EXPECT_TRUE(manifest->optimizer_options.empty());
  EXPECT_TRUE(manifest->kept_values.empty());
  EXPECT_EQ(manifest->files.at("model.safetensors").sha256, "00");
}

TEST(ManifestTest, ALaterVersionAndAnotherFormatAreNamed) {
  std::string text = EncodeManifest(Full());
  std::string later = text;
  later.replace(later.find("\"version\": 2"), 12, "\"version\": 9");
  EXPECT_EQ(Problem(later),
            "m has format \"meshrun-checkpoint\" version 9; this program reads "
            "\"meshrun-checkpoint\" versions 1 and 2");
  text.replace(text.find("meshrun-checkpoint"), 18, "others-checkpoint!");
  EXPECT_THAT(Problem(text), HasSubstr("others-checkpoint!"));
}

TEST(ManifestTest, EveryNumberAndNameIsChecked) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = EncodeManifest(Full());
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::tuple<std::string, std::string, std::string> wrong[] = {
      {"\"step\": 500", "\"step\": -1", "step is -1, not a whole number"},
      {"\"step\": 500", "\"step\": 1.5", "step is 1.5"},
      {"\"step\": 500", "\"step\": true", "step is true"},
      {"\"step\": 500", "\"step\": 9223372036854775808", "step is 9223372036854775808"},
      {"\"sequence\": 3", "\"sequence\": 9223372036854775807", "sequence is"},
      {"\"bytes\":3000", "\"bytes\":-1", "bytes is -1"},
      {"\"bytes\":3000", "\"bytes\":3001", "its chunks cover 3000 of 3001 bytes"},
      {"\"bytes\":3000", "\"bytes\":2999", "a chunk goes from byte 1024 to 3000 of 2999"},
      {"[1024,", "[0,", "a chunk goes from byte 0 to 0"},
      {"[1024,", "[3000,", "a chunk goes from byte 3000 to 3000"},
      {"[1024,", "[", "a chunk is not [end, hash]"},
      {"00000000000000010000", "0000000000000001", "32 digits"},
      {"0000000000000001", "000000000000000g", "not hexadecimal"},
      {"\"begin\":[4,0]", "\"begin\":[4]", "a piece of w is not in its tensor"},
      {"\"begin\":[4,0]", "\"begin\":[9,0]", "a piece of w is not in its tensor"},
      {"\"global_shape\":[8,4]", "\"global_shape\":[-8,4]", "global_shape is -8"},
      {"\"model.node-a", "\"../model", "its name is not that of a file in the checkpoint"},
      {"\"model.node-a", "\"/model", "its name is not that of a file in the checkpoint"},
      {"\"hosts\": [", "\"hosts\": [1,", "an entry of hosts is 1, not a text"},
      {"\"written\"", "\"wrote\"", "it has no written"},
      {"\"files\"", "\"file\"", "it has no files"},
      {"\"save\": \"4be1c2\"", "\"save\": 5", "save is 5, not a text"},
      {"\"sampler\": {", "\"sampler\": [], \"x\": {", "sampler is a list, not an object"},
      {"\"seed\":\"7\"", "\"seed\":7", "seed of sampler is 7, not a text"},
      {"\"cpu\":\"00ff10\"", "\"cpu\":\"00ff1\"",
       "cpu of random_generators: hexadecimal bytes are cut short"},
      {"\"cpu\":\"00ff10\"", "\"cpu\":null", "cpu of random_generators is null, not a text"},
      {"\"tensor\":\"w\"", "\"tensor\":{}", "tensor is an object, not a text"},
      {"\"lr\":0.1", "\"lr\":1e999", "it has a number that is too large"},
  };
  for (const auto& [from, to, problem] : wrong) {
    EXPECT_THAT(Problem(with(from, to)), AllOf(StartsWith("m is damaged"), HasSubstr(problem)))
        << to;
  }
  std::string huge = EncodeManifest(Full());
  huge.replace(huge.find("\"bytes\":3000"), 12, "\"bytes\":99000000000");
  huge.replace(huge.find("[3000,"), 6, "[99000000000,");
  EXPECT_THAT(Problem(huge), HasSubstr("a chunk has 98999998976 bytes, and the format allows"));
}

TEST(ManifestTest, EveryTruncationIsFound) {
  const std::string text = EncodeManifest(Full());
  EXPECT_EQ(Problem(""), "m is damaged: it is empty");
  for (size_t size = 1; size + 2 < text.size(); ++size) {
    EXPECT_THAT(
        Problem(text.substr(0, size)),
        StartsWith("m is damaged: it ends in the middle, after byte " + std::to_string(size - 1)))
        << size;
  }
}

TEST(ManifestTest, WhatIsNotJsonIsNamedByByteAndLine) {
  const std::string text = EncodeManifest(Full());
  const size_t at = text.find("\"step\"");
  const auto with = [&](char byte) {
    std::string damaged = text;
    damaged[at] = byte;
    return damaged;
  };
  const std::string place = "m is damaged: it is not JSON at byte " + std::to_string(at);
  EXPECT_EQ(Problem(with('x')), place + ", line 5");
  EXPECT_EQ(Problem(with('\0')), place + ", line 5, which is 0");
  EXPECT_EQ(Problem("{]"), "m is damaged: it is not JSON at byte 1");
  EXPECT_EQ(Problem("[]"), "m is damaged: it is a list, not an object");
}

TEST(ManifestTest, DamagedOnesAreErrorsOrConsistent) {
  std::mt19937_64 random(11);
  Manifest old = Full();
  old.files["model.safetensors"] = {.bytes = 9, .sha256 = "ab"};
  const std::string texts[] = {EncodeManifest(Full()), EncodeManifest(old)};
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto manifest = DecodeManifest("m", Mutated(texts[i % 2], random));
    if (!manifest.ok()) {
      ASSERT_LT(manifest.status().message().size(), 1000u);
      continue;
    }
    ++read;
    ASSERT_GE(manifest->step, 0);
    for (const auto& [name, file] : manifest->files) {
      uint64_t end = 0;
      for (const Manifest::Chunk& chunk : file.chunks) {
        ASSERT_GT(chunk.end, end);
        end = chunk.end;
      }
      ASSERT_TRUE(file.chunks.empty() || end == file.bytes) << name;
    }
    // It can be written again.
    ASSERT_TRUE(DecodeManifest("m", EncodeManifest(*manifest)).ok());
  }
  EXPECT_GT(read, 0);
}

TEST(ManifestTest, NestingCostsNoStack) {
  EXPECT_THAT(Problem(std::string(1 << 20, '[')), StartsWith("m is damaged"));
  EXPECT_THAT(Problem(std::string(1 << 20, '[') + std::string(1 << 20, ']')),
              StartsWith("m is damaged"));
}

TEST(BytesFromHexTest, IsTheReverseOfHexEncode) {
  EXPECT_EQ(*BytesFromHex("00ff10"), std::string("\0\xff\x10", 3));
  for (const char* wrong : {"0", "0g", "FF", "0x"}) EXPECT_FALSE(BytesFromHex(wrong).ok());
}

}  // namespace
}  // namespace meshrun
