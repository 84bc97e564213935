#include "core/checkpoint/torch_files.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/os/files.h"
#include "tests/core/checkpoint/support/torch_file_builder.h"

namespace meshrun {
namespace {

using namespace meshrun::testing;  // NOLINT
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::filesystem::path Samples() {
  const char* directory = std::getenv("MESHRUN_TORCH_SAMPLES");
  return directory != nullptr ? directory : "tests/core/checkpoint/samples";
}

absl::StatusOr<TensorSourcePtr> Open(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return OpenTorchDistributedCheckpoint(path);
  return path.extension() == ".mdlus" ? OpenMdlus(path) : OpenTorchSave(path);
}

std::string BytesOf(const TensorSource& source, const std::string& name) {
  const auto size = TensorBytes(name, source.Tensors().at(name));
  EXPECT_TRUE(size.ok()) << size.status();
  std::string bytes(size.value_or(0), '\xEE');
  const absl::Status status = source.Read(name, 0, bytes);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t k = 0; k < text.size(); k += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(k, 2), nullptr, 16));
  }
  return bytes;
}

// A directory for each test that ends with it.
class TorchFilesTest : public ::testing::Test {
 protected:
  TorchFilesTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 fmt::format("{}.{}.{}", test->test_suite_name(), test->name(), ::getpid());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~TorchFilesTest() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = directory_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // The source of a torch.save() file with this pickle.
  absl::StatusOr<TensorSourcePtr> Save(const std::string& value,
                                       const std::vector<std::string>& storages = {}) const {
    return OpenTorchSave(Write("made.pt", TorchFile(value, storages)));
  }
  void ExpectRefused(const absl::StatusOr<TensorSourcePtr>& source, absl::StatusCode code,
                     const ::testing::Matcher<std::string>& text) const {
    ASSERT_FALSE(source.ok());
    EXPECT_EQ(source.status().code(), code) << source.status();
    EXPECT_THAT(std::string(source.status().message()),
                AllOf(StartsWith(directory_.string()), text));
  }
  void ExpectUnimplemented(const std::string& value, const std::string& text) const {
    ExpectRefused(Save(value), absl::StatusCode::kUnimplemented, HasSubstr(text));
  }
  void ExpectDamaged(const absl::StatusOr<TensorSourcePtr>& source, const std::string& text) const {
    ExpectRefused(source, absl::StatusCode::kDataLoss, HasSubstr(text));
  }

  std::filesystem::path directory_;
};

class TorchSampleTest : public ::testing::Test {
 protected:
  TorchSampleTest()
      : expected_(nlohmann::json::parse(std::ifstream(Samples() / "expected.json"))) {}

  nlohmann::json expected_;
};

TEST_F(TorchSampleTest, HoldBitForBitWhatTorchHeld) {
  ASSERT_GE(expected_.size(), 12u);
  for (const auto& [file, tensors] : expected_.items()) {
    SCOPED_TRACE(file);
    const auto source = Open(Samples() / file);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->Tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors.items()) {
      SCOPED_TRACE(name);
      ASSERT_TRUE((*source)->Tensors().contains(name));
      const TensorInfo& info = (*source)->Tensors().at(name);
      EXPECT_EQ(info.dtype, tensor["dtype"]);
      EXPECT_EQ(info.shape, tensor["shape"].get<std::vector<int64_t>>());
      EXPECT_EQ(BytesOf(**source, name), FromHex(tensor["bytes"]));
    }
  }
}

TEST_F(TorchSampleTest, AreReadRangeByRange) {
  std::mt19937_64 random(5);
  for (const auto& [file, tensors] : expected_.items()) {
    SCOPED_TRACE(file);
    const auto source = Open(Samples() / file);
    ASSERT_TRUE(source.ok()) << source.status();
    for (const auto& [name, tensor] : tensors.items()) {
      const std::string whole = FromHex(tensor["bytes"]);
      for (int round = 0; round < 20; ++round) {
        const uint64_t begin = random() % (whole.size() + 1);
        std::string part(random() % (whole.size() - begin + 1), '\xEE');
        ASSERT_TRUE((*source)->Read(name, begin, part).ok());
        EXPECT_EQ(part, whole.substr(begin, part.size())) << name << " from " << begin;
      }
    }
  }
}

TEST_F(TorchSampleTest, TellWhatIsBesideTensors) {
  const auto source = Open(Samples() / "plain.pt");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Format(), "torch.save");
  const std::map<std::string, std::string> notes = {
      {"step", "7"},
      {"rate", "0.5"},
      {"name", "großes Netz"},
      {"nothing", "None"},
      {"yes", "True"},
      {"large", "1180591620717411303424"},
      {"negative", "-1180591620717411303424"},
      {"bytes", "bytes"},
      {"path", "/data/set"},
      {"device", "cuda:1"},
      {"dtype", "torch.bfloat16"},
      {"shape", "[2, 3]"},
      {"pair.0", "0.9"},
      {"pair.1", "0.999"},
      {"set.0", "5"},
      {"numpy", "2.5"},
      {"numpy_int", "-3"},
      {"numpy_flag", "True"},
      {"(0, tuple)", "1"},
  };
  EXPECT_EQ((*source)->Notes(), notes);
}

TEST_F(TorchSampleTest, TellPlainValuesOfADistributedCheckpoint) {
  const auto whole = Open(Samples() / "dcp_whole");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)->Format(), "torch.distributed.checkpoint");
  const std::map<std::string, std::string> notes = {{"step", "3"}, {"list.1", "5"}};
  EXPECT_EQ((*whole)->Notes(), notes);
  const auto sharded = Open(Samples() / "dcp_sharded");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ((*sharded)->Notes().at("epoch"), "4");
  EXPECT_EQ((*sharded)->Notes().at("optimizer.param_groups.0.momentum"), "0.9");
}

TEST_F(TorchSampleTest, TellArgumentsOfAPhysicsNemoModule) {
  for (const char* file : {"zip.mdlus", "tar.mdlus"}) {
    const auto source = Open(Samples() / file);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->Format(), "PhysicsNeMo .mdlus");
    const auto notes = (*source)->Notes();
    EXPECT_EQ(nlohmann::json::parse(notes.at("args.json"))["__args__"]["width"], 3);
    EXPECT_EQ(nlohmann::json::parse(notes.at("metadata.json"))["mdlus_file_version"], "0.1.0");
  }
}

TEST_F(TorchSampleTest, OfOtherKindsAreRefusedByName) {
  const std::map<std::string, std::string> files = {
      {"module.pt", "save its state_dict()"},
      {"sparse.pt", "tensor 'w' is a sparse tensor"},
      {"quantized.pt", "tensor 'w' is a quantized tensor"},
      {"half_complex.pt", "tensor 'w' has the dtype torch.complex32"},
      {"legacy.pt", "load it in a current torch and save it again"},
      {"script.pt", "is TorchScript"},
  };
  for (const auto& [file, text] : files) {
    const auto source = Open(Samples() / file);
    ASSERT_FALSE(source.ok()) << file;
    EXPECT_EQ(source.status().code(), absl::StatusCode::kUnimplemented) << source.status();
    EXPECT_THAT(std::string(source.status().message()),
                AllOf(StartsWith((Samples() / file).string()), HasSubstr(text)));
  }
}

// Each round damages a sample in a few places. Whatever the file then says, opening it and reading
// what it lists ends soon, with a status.
TEST_F(TorchFilesTest, DamagedSamplesEndWithAStatus) {
  const char* rounds = std::getenv("MESHRUN_TORCH_FUZZ_ROUNDS");
  const char* first = std::getenv("MESHRUN_TORCH_FUZZ_SEED");
  std::mt19937_64 random(first != nullptr ? std::stoul(first) : 17);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(Samples())) {
    if (entry.path().extension() != ".json") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  int opened = 0;
  int refused = 0;
  for (int round = 0; round < (rounds != nullptr ? std::stoi(rounds) : 2000); ++round) {
    const std::filesystem::path& sample = files[random() % files.size()];
    const std::filesystem::path copy = directory_ / ("damaged" + sample.extension().string());
    std::filesystem::remove_all(copy);
    std::filesystem::copy(sample, copy, std::filesystem::copy_options::recursive);
    std::filesystem::path target = copy;
    if (std::filesystem::is_directory(copy)) {
      const bool metadata = random() % 3 != 0;
      target /= metadata ? ".metadata" : "__0_0.distcp";
    }
    std::string content = *os::ReadFile(target);
    for (uint64_t k = random() % 4 + 1; k > 0 && !content.empty(); --k) {
      const size_t at = random() % content.size();
      switch (random() % 6) {
        case 0:
          content[at] = static_cast<char>(random());
          break;
        case 1:
          content[at] = static_cast<char>(content[at] ^ (1 << random() % 8));
          break;
        case 2:
          content[at] = random() % 2 == 0 ? '\xFF' : '\x7F';
          break;
        case 3:
          content.insert(at, content, random() % content.size(), random() % 40);
          break;
        case 4:
          content.erase(at, random() % 20);
          break;
        default:
          content.replace(at, 1,
                          "(]}.R\x81"
                          "bQ0a2eu",
                          random() % 13, 1);
          break;
      }
    }
    if (random() % 16 == 0) content.resize(random() % (content.size() + 1));
    std::filesystem::remove(target);  // a copy of a file that may be read-only
    std::ofstream(target, std::ios::binary) << content;
    const auto started = std::chrono::steady_clock::now();
    const auto source = Open(copy);
    ++(source.ok() ? opened : refused);
    if (!source.ok()) {
      EXPECT_THAT(std::string(source.status().message()), StartsWith(directory_.string()));
      EXPECT_NE(source.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      for (const auto& [name, tensor] : (*source)->Tensors()) {
        const auto size = TensorBytes(name, tensor);
        ASSERT_TRUE(size.ok()) << size.status();
        std::string bytes(std::min<uint64_t>(*size, 1 << 16), '\0');
        const absl::Status status = (*source)->Read(name, *size - bytes.size(), bytes);
        if (!status.ok()) {
          EXPECT_THAT(std::string(status.message()), StartsWith(directory_.string()));
        }
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10));
  }
  EXPECT_GT(opened, 0);
  EXPECT_GT(refused, 0);
}

using TorchPickleTest = TorchFilesTest;

TEST_F(TorchPickleTest, CallsNothing) {
  const std::string system = "would call os.system";
  ExpectUnimplemented(Call(Name("os", "system"), {Text("true")}),
                      "opcode GLOBAL at byte 2 would call os.system");
  ExpectUnimplemented(Text("os") + Text("system") + "\x93" + Tuple({Text("true")}) + "R",
                      "opcode STACK_GLOBAL at byte 20 would call os.system");
  ExpectUnimplemented("(" + Text("true") + "ios\nsystem\n", "opcode INST at byte 12 " + system);
  ExpectUnimplemented("(" + Name("os", "system") + Text("true") + "o",
                      "opcode GLOBAL at byte 3 would call os.system");
  ExpectUnimplemented("(" + Name("collections", "OrderedDict") + "o",
                      "opcode OBJ at byte 28 would call collections.OrderedDict");
  ExpectUnimplemented(Call(Name("torch", "float32"), {}), "would call torch.float32");
  ExpectUnimplemented(Call(Name("builtins", "getattr"), {Name("torch", "Tensor"), Text("data")}),
                      "would call builtins.getattr");
  ExpectUnimplemented(Call(Name("builtins", "eval"), {Text("1")}), "would call builtins.eval");
  ExpectUnimplemented(Call(Text("os.system"), {Text("true")}), "opcode REDUCE");
  ExpectUnimplemented(Name("torch", "float32") + ")\x81", "opcode NEWOBJ");
  ExpectUnimplemented("]}b", "opcode BUILD at byte 4 sets the state of a list");
  ExpectUnimplemented("\x82\x01", "opcode EXT1 at byte 2");
  ExpectUnimplemented("Psomething\n", "opcode PERSID at byte 2");
}

TEST_F(TorchPickleTest, RefusesObjectsOfTheUsersClassesByName) {
  ExpectUnimplemented(
      Dict({Text("args"), Object(Name("argparse", "Namespace"), {Text("rate"), Int(1)})}),
      "would call argparse.Namespace");
  ExpectUnimplemented(Object(Name("__main__", "Settings"), {}), "__main__.Settings");
  ExpectUnimplemented(
      Object(Name("__main__", "Net"), {Text("_parameters"), "}", Text("_buffers"), "}"}),
      "save its state_dict()");
}

TEST_F(TorchPickleTest, BoundsWhatFewBytesStandFor) {
  // A list that contains itself.
  ExpectDamaged(Save("]q\x01h\x01"
                     "a"),
                "nested too deeply");
  // Lists in lists, without end.
  ExpectDamaged(Save(std::string(100000, ']') + std::string(99999, 'a')), "nested too deeply");
  // Each list has the one before twice: 2^40 values.
  std::string doubled = "]q" + Little(0, 1);
  for (int k = 1; k <= 40; ++k) {
    doubled += "]q" + Little(k, 1) + "(h" + Little(k - 1, 1) + "h" + Little(k - 1, 1) + "e";
  }
  ExpectDamaged(Save(doubled), "stand for more than the file has");
  ExpectDamaged(Save("Nr" + Little(0xFFFFFFFF, 4)), "impossible index");
  ExpectDamaged(Save("X" + Little(0xFFFFFFFF, 4)), "it ends at byte");
  ExpectDamaged(Save("\x8e" + Little(UINT64_MAX, 8)), "it ends at byte");
}

TEST_F(TorchPickleTest, OfWrongFormIsDamaged) {
  ExpectDamaged(Save("0"), "finds too little on the stack");
  ExpectDamaged(Save("t"), "finds no mark");
  ExpectDamaged(Save("}(NNNu"), "has a key without a value");
  ExpectDamaged(Save("h\x05"), "refers to a value that is not there");
  ExpectDamaged(Save("N(\x85"), "finds too little on the stack");
  ExpectDamaged(Save("cos"), "in the middle");
  ExpectUnimplemented("\x80\x06N", "has protocol 6");
}

using TorchSaveTest = TorchFilesTest;

TEST_F(TorchSaveTest, ReadsStridedTensorsThatShareAStorage) {
  const std::string storage =
      Little(0x11111111, 4) + Little(0x22222222, 4) + Little(0x33333333, 4) + Little(0x44444444, 4);
  const auto source = Save(Dict({Text("rows"), FloatTensor("0", 4, 0, {2, 2}, {2, 1}),  //
                                 Text("columns"), FloatTensor("0", 4, 0, {2, 2}, {1, 2}),
                                 Text("last"), FloatTensor("0", 4, 3, {}, {})}),
                           {storage});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(BytesOf(**source, "rows"), storage);
  EXPECT_EQ(BytesOf(**source, "columns"), Little(0x11111111, 4) + Little(0x33333333, 4) +
                                              Little(0x22222222, 4) + Little(0x44444444, 4));
  EXPECT_EQ(BytesOf(**source, "last"), Little(0x44444444, 4));
}

TEST_F(TorchSaveTest, ReadsPartsOfATensorThatIsMuchLargerThanItsStorage) {
  const auto source =
      Save(FloatTensor("0", 1, 0, {1 << 20, 1 << 20, 1 << 20}, {0, 0, 0}), {"abcd"});
  ASSERT_TRUE(source.ok()) << source.status();
  std::string part(6, '\0');
  ASSERT_TRUE((*source)->Read("tensor", (uint64_t{1} << 62) - 6, part).ok());
  EXPECT_EQ(part, "cdabcd");
}

TEST_F(TorchSaveTest, RefusesTensorsBeyondTheirStorage) {
  const auto save = [&](int64_t elements, int64_t offset, const std::vector<int64_t>& shape,
                        const std::vector<int64_t>& strides) {
    return Save(Dict({Text("w"), FloatTensor("0", elements, offset, shape, strides)}),
                {std::string(16, 'x')});
  };
  EXPECT_TRUE(save(4, 0, {2, 2}, {2, 1}).ok());
  ExpectDamaged(save(4, 1, {2, 2}, {2, 1}), "'w', F32 [2, 2], is not within its storage");
  ExpectDamaged(save(4, -1, {2}, {1}), "is not within its storage");
  ExpectDamaged(save(4, 0, {2}, {-1}), "negative stride");
  ExpectDamaged(save(4, 0, {-2}, {1}), "negative extent");
  ExpectDamaged(save(4, 0, {2}, {1, 1}), "has 2 strides");
  ExpectDamaged(save(5, 0, {2}, {1}), "5 elements of 4 were saved");
  ExpectDamaged(save(4, INT64_MAX, {2}, {INT64_MAX}), "is not within its storage");
  ExpectDamaged(save(4, 0, {INT64_MAX}, {INT64_MAX}), "does not fit into 63 bits");
  ExpectDamaged(Save(FloatTensor("7", 4, 0, {2}, {1})), "it has no member 'archive/data/7'");
}

TEST_F(TorchSaveTest, RefusesFilesOfBigEndianMachines) {
  const std::string zip =
      ZipBuilder().Add("a/data.pkl", PickleOf("}")).Add("a/byteorder", "big").Finish();
  ExpectRefused(OpenTorchSave(Write("big.pt", zip)), absl::StatusCode::kUnimplemented,
                HasSubstr("has the byte order 'big'"));
}

TEST_F(TorchSaveTest, RefusesTwoTensorsOfOneName) {
  const std::string tensor = FloatTensor("0", 1, 0, {1}, {1});
  ExpectRefused(Save(Dict({Text("a.b"), tensor, Text("a"), Dict({Text("b"), tensor})}), {"abcd"}),
                absl::StatusCode::kUnimplemented, HasSubstr("two tensors have the name 'a.b'"));
}

TEST_F(TorchSaveTest, NamesTheFileThatIsNotThere) {
  ExpectRefused(OpenTorchSave(directory_ / "none.pt"), absl::StatusCode::kNotFound,
                HasSubstr("No such file"));
  ExpectDamaged(OpenTorchSave(directory_), "is not a regular file");
  ExpectDamaged(OpenTorchSave(Write("empty.pt", "")), "is not a file of torch.save()");
  ExpectDamaged(OpenTorchSave(Write("text.pt", "hello")), "is not a file of torch.save()");
}

using ZipFileTest = TorchFilesTest;

TEST_F(ZipFileTest, OfZip64IsRead) {
  const std::string zip =
      ZipBuilder()
          .Add("a/data.pkl", PickleOf(FloatTensor("0", 1, 0, {1}, {1})), 0, true)
          .Add("a/data/0", "abcd", 0, true)
          .Finish(/*zip64=*/true);
  const auto source = OpenTorchSave(Write("wide.pt", zip));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(BytesOf(**source, "tensor"), "abcd");
}

TEST_F(ZipFileTest, RefusesCompressedMembersByName) {
  const std::string zip = ZipBuilder().Add("a/data.pkl", "whatever", /*method=*/8).Finish();
  ExpectRefused(OpenTorchSave(Write("a.pt", zip)), absl::StatusCode::kUnimplemented,
                HasSubstr("member 'a/data.pkl' is compressed (method 8)"));
}

TEST_F(ZipFileTest, ComparesEachPlaceWithTheFile) {
  const std::string zip = ZipBuilder().Add("a/data.pkl", PickleOf("}")).Finish();
  EXPECT_TRUE(OpenTorchSave(Write("a.pt", zip)).ok());
  for (size_t size = 0; size < zip.size(); ++size) {
    EXPECT_EQ(OpenTorchSave(Write("a.pt", zip.substr(0, size))).status().code(),
              absl::StatusCode::kDataLoss);
  }
  // Each field of 4 bytes, set to all ones, is an error or changes nothing.
  for (size_t at = 0; at + 4 <= zip.size(); ++at) {
    std::string changed = zip;
    changed.replace(at, 4, 4, '\xFF');
    (void)OpenTorchSave(Write("a.pt", changed));
  }
  ExpectDamaged(
      OpenTorchSave(Write(
          "a.pt",
          ZipBuilder().Add("a/data.pkl", PickleOf("}")).Add("a/data.pkl", PickleOf("}")).Finish())),
      "two members are 'a/data.pkl'");
}

// A directory of torch.distributed.checkpoint with a tensor 'w' of float32.
class TorchDistributedCheckpointTest : public TorchFilesTest {
 protected:
  // `change` adds fields to the storage info of each chunk.
  absl::StatusOr<TensorSourcePtr> Make(const std::vector<int64_t>& shape,
                                       const std::vector<TorchChunk>& chunks,
                                       const std::vector<std::string>& change = {}) const {
    const TorchDistributedFiles files = MakeTorchDistributedFiles(shape, chunks, change);
    Write("__0_0.distcp", files.data);
    Write(".metadata", files.metadata);
    return OpenTorchDistributedCheckpoint(directory_);
  }
};

TEST_F(TorchDistributedCheckpointTest, PutsAnyBoxesTogether) {
  const auto source = Make({5, 6, 2}, {{{0, 0, 0}, {2, 6, 2}},
                                       {{2, 0, 0}, {3, 2, 2}},
                                       {{2, 2, 0}, {1, 4, 2}},
                                       {{3, 2, 0}, {2, 4, 1}},
                                       {{3, 2, 1}, {2, 4, 1}}});
  ASSERT_TRUE(source.ok()) << source.status();
  std::string expected;
  for (uint64_t k = 0; k < 60; ++k) expected += Little(k, 4);
  EXPECT_EQ(BytesOf(**source, "w"), expected);
  for (uint64_t begin = 0; begin < expected.size(); ++begin) {
    for (const uint64_t size : {1, 3, 17, 100}) {
      std::string part(std::min(size, expected.size() - begin), '\xEE');
      ASSERT_TRUE((*source)->Read("w", begin, part).ok());
      ASSERT_EQ(part, expected.substr(begin, size));
    }
  }
}

TEST_F(TorchDistributedCheckpointTest, NamesMissingAndOverlappingChunks) {
  ExpectDamaged(Make({4}, {{{0}, {2}}}), "'w' is damaged: no chunk has [2] to [4]");
  ExpectDamaged(Make({4}, {{{0}, {1}}, {{2}, {2}}}), "no chunk has [1] to [2]");
  ExpectDamaged(Make({4}, {}), "no chunk has [0] to [4]");
  ExpectDamaged(Make({4}, {{{0}, {3}}, {{1}, {3}}}), "2 chunks overlap");
  ExpectDamaged(Make({2, 2}, {{{0, 0}, {2, 1}}, {{0, 1}, {1, 1}}}),
                "no chunk has [1, 1] to [2, 2]");
  ExpectDamaged(Make({4}, {{{2}, {3}}}), "is not within [4]");
  ExpectDamaged(Make({4}, {{{0}, {4}}, {{0}, {4}}}), "no file has the chunk of 'w' at [0]");
  // A pinwheel.
  ExpectRefused(Make({3, 3}, {{{0, 0}, {1, 2}},
                              {{0, 2}, {2, 1}},
                              {{2, 1}, {1, 2}},
                              {{1, 0}, {2, 1}},
                              {{1, 1}, {1, 1}}}),
                absl::StatusCode::kUnimplemented, HasSubstr("overlap or interlock"));
}

TEST_F(TorchDistributedCheckpointTest, ReadsTensorsWithoutElements) {
  const auto source = Make({0, 3}, {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Tensors().at("w").shape, (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE((*source)->Read("w", 0, {}).ok());
}

TEST_F(TorchDistributedCheckpointTest, RefusesTransformedItems) {
  ExpectRefused(Make({4}, {{{0}, {4}}}, {Text("transform_descriptors"), List({Text("zstd")})}),
                absl::StatusCode::kUnimplemented,
                HasSubstr("'w' is stored with the transform 'zstd'"));
}

TEST_F(TorchDistributedCheckpointTest, ComparesItemsWithTheirFiles) {
  ASSERT_TRUE(Make({4}, {{{0}, {4}}}).ok());
  const std::string data = *os::ReadFile(directory_ / "__0_0.distcp");
  Write("__0_0.distcp", data.substr(0, data.size() - 1));
  ExpectDamaged(OpenTorchDistributedCheckpoint(directory_), "__0_0.distcp is damaged");
  std::filesystem::remove(directory_ / "__0_0.distcp");
  ExpectRefused(OpenTorchDistributedCheckpoint(directory_), absl::StatusCode::kNotFound,
                HasSubstr("__0_0.distcp"));
  std::filesystem::remove(directory_ / ".metadata");
  ExpectRefused(OpenTorchDistributedCheckpoint(directory_), absl::StatusCode::kNotFound,
                HasSubstr(".metadata"));
}

TEST_F(TorchDistributedCheckpointTest, ReadsNoFileOutsideOfTheDirectory) {
  ASSERT_TRUE(Make({4}, {{{0}, {4}}}).ok());
  std::string metadata = *os::ReadFile(directory_ / ".metadata");
  const size_t at = metadata.find("__0_0.distcp");
  Write(".metadata", metadata.replace(at, 12, "../../passwd"));
  ExpectDamaged(OpenTorchDistributedCheckpoint(directory_), "is outside of the directory");
}

TEST_F(TorchDistributedCheckpointTest, RefusesAnItemOfAnotherShape) {
  ASSERT_TRUE(Make({4}, {{{0}, {4}}}).ok());
  const std::string metadata = *os::ReadFile(directory_ / ".metadata");
  const std::string data = *os::ReadFile(directory_ / "__0_0.distcp");
  ASSERT_TRUE(Make({2, 2}, {{{0, 0}, {2, 2}}}).ok());
  std::string other = *os::ReadFile(directory_ / "__0_0.distcp");
  // The metadata announces [2, 2]; the item has [4], and bytes in front of it do not matter.
  ASSERT_GT(other.size(), data.size());
  Write("__0_0.distcp", std::string(other.size() - data.size(), ' ') + data);
  const auto source = OpenTorchDistributedCheckpoint(directory_);
  ASSERT_TRUE(source.ok()) << source.status();
  std::string bytes(16, '\0');
  EXPECT_EQ((*source)->Read("w", 0, bytes).code(), absl::StatusCode::kDataLoss);
}

using MdlusTest = TorchFilesTest;

TEST_F(MdlusTest, HasThreeMembers) {
  const std::string model =
      TorchFile(Dict({Text("w"), FloatTensor("0", 1, 0, {1}, {1})}), {"abcd"});
  const std::string whole = ZipBuilder()
                                .Add("model.pt", model)
                                .Add("args.json", "{}")
                                .Add("metadata.json", "{}")
                                .Finish();
  const auto source = OpenMdlus(Write("a.mdlus", whole));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(BytesOf(**source, "w"), "abcd");
  ExpectDamaged(OpenMdlus(Write("b.mdlus", ZipBuilder().Add("model.pt", model).Finish())),
                "it has no member args.json");
  ExpectDamaged(OpenMdlus(Write("c.mdlus", model)), "it has no member model.pt");
  ExpectDamaged(OpenMdlus(Write("d.mdlus", std::string(2000, 'x'))), "there is no header of a tar");
  ExpectDamaged(OpenMdlus(Write("e.mdlus", "")), "there is no header of a tar");
}

}  // namespace
}  // namespace meshrun
