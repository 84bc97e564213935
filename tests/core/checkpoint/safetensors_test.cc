// Files of the safetensors format: layouts, and what is said of damaged ones.
#include "core/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <random>

#include "core/checkpoint/safetensors_index.h"
#include "tests/core/checkpoint/mutations.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::Mutated;
using ::testing::StartsWith;
using testing::TemporaryDirectory;

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

absl::StatusOr<SafetensorsHeader> Decode(const std::string& content) {
  const auto end = SafetensorsHeaderEnd("f", content, content.size());
  if (!end.ok()) return end.status();
  return DecodeSafetensorsHeader("f", std::string_view(content).substr(0, *end), content.size());
}

std::string Problem(const std::string& content) {
  const auto header = Decode(content);
  return header.ok() ? "it is read" : MessageOf(header.status());
}

TEST(SafetensorsTest, ALayoutComesBackAndPutsGreaterElementsFirst) {
  const std::map<std::string, TensorInfo> tensors = {
      {"a", {"U8", {3}}},      {"b", {"F64", {2, 2}}}, {"caf\xc3\xa9 \"\n", {"BF16", {}}},
      {"empty", {"F32", {0}}}, {"z", {"F64", {1}}},
  };
  const auto made = LayOutSafetensors("f", tensors, {{"format", "pt"}});
  ASSERT_TRUE(made.ok()) << made.status();
  std::string content = EncodeSafetensorsHeader(*made);
  EXPECT_EQ(content.size() % 8, 0u);
  EXPECT_EQ(made->tensors.at("b").begin, content.size());
  EXPECT_EQ(made->tensors.at("z").begin, content.size() + 32);
  content.resize(made->file_bytes);
  const auto read = Decode(content);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata, made->metadata);
  ASSERT_EQ(read->tensors.size(), tensors.size());
  for (const auto& [name, entry] : made->tensors) {
    EXPECT_EQ(read->tensors.at(name).tensor, tensors.at(name));
    EXPECT_EQ(read->tensors.at(name).begin, entry.begin) << name;
    EXPECT_EQ(read->tensors.at(name).end, entry.end) << name;
    EXPECT_EQ(entry.begin % *ElementBytes(entry.tensor.dtype), 0u) << name;
  }
}

TEST(SafetensorsTest, AFileWithoutTensorsComesBack) {
  const auto made = LayOutSafetensors("f", {});
  ASSERT_TRUE(made.ok());
  const std::string content = EncodeSafetensorsHeader(*made);
  EXPECT_EQ(content.size(), made->file_bytes);
  const auto read = Decode(content);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->tensors.empty());
}

TEST(SafetensorsTest, ALayoutRefusesWhatTheFormatCannotHold) {
  const auto problem = [](const std::string& name, const TensorInfo& tensor) {
    const auto made = LayOutSafetensors("f", {{name, tensor}});
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(made.status()), StartsWith("f: "));
    return MessageOf(made.status());
  };
  EXPECT_THAT(problem("\xff", {"F32", {}}), HasSubstr("not UTF-8: '\\xff'"));
  EXPECT_THAT(problem("x", {"F7", {}}), HasSubstr("F7"));
  EXPECT_THAT(problem("x", {"F32", {-1}}), HasSubstr("x"));
  EXPECT_THAT(problem("__metadata__", {"F32", {}}), HasSubstr("reserves"));
  EXPECT_FALSE(LayOutSafetensors("f", {}, {{"k", "\xff"}}).ok());
  constexpr int64_t kHalf = int64_t{1} << 62;
  EXPECT_FALSE(LayOutSafetensors("f", {{"a", {"U16", {kHalf}}}, {"b", {"U16", {kHalf}}}}).ok());
}

TEST(SafetensorsTest, EveryInconsistencyIsNamed) {
  const auto one = [](const std::string& entry) { return File("{\"x\":" + entry + "}", "1234"); };
  EXPECT_EQ(Problem(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})")), "it is read");
  // Fields of later versions of the format.
  EXPECT_EQ(Problem(one(R"({"new":[{"a":[1]}],"dtype":"F32","shape":[],"data_offsets":[0,4]})")),
            "it is read");
  const std::pair<std::string, std::string> wrong[] = {
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "x needs 8 bytes"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "x needs 4 bytes"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", "x has 3 data_offsets"},
      {R"({"dtype":"F32","shape":[1]})", "x has no data_offsets"},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "a negative number"},
      {R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", "a fraction"},
      {R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})", "shape of x is, or has, a list"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", "impossible"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,4]})", "x"},
      {R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})", "F33"},
      {R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", "dtype of x is, or has, a number"},
      {R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})", "is there twice"},
      {R"(null)", "x is null"},
      {R"([1])", "x is a list"},
  };
  for (const auto& [entry, problem] : wrong) {
    EXPECT_THAT(Problem(one(entry)), AllOf(StartsWith("f is damaged"), HasSubstr(problem)))
        << entry;
  }
  EXPECT_THAT(Problem(one(R"({"dtype":"F4","shape":[8],"data_offsets":[0,4]})")),
              HasSubstr("less than a byte"));
  EXPECT_THAT(Problem(File("[]", "")), HasSubstr("not an object"));
  EXPECT_THAT(Problem(File("", "")), AllOf(StartsWith("f is damaged"), HasSubstr("it is empty")));
  // Bytes are those of the file.
  EXPECT_THAT(Problem(File("{]", "")), EndsWith("it is not JSON at byte 9"));
  EXPECT_THAT(Problem(File(R"({"x":)", "")), EndsWith("it ends in the middle, after byte 12"));
  EXPECT_THAT(Problem(File(R"({"__metadata__":{"a":1}})", "")), HasSubstr("a of __metadata__"));
  EXPECT_THAT(Problem(File(R"({"__metadata__":["a"]})", "")), HasSubstr("not an object"));
}

TEST(SafetensorsTest, TensorsMustCoverTheData) {
  const auto two = [](int b, int e, const std::string& data) {
    return File(
        R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[)" +
            std::to_string(e - b) + R"(],"data_offsets":[)" + std::to_string(b) + "," +
            std::to_string(e) + "]}}",
        data);
  };
  EXPECT_EQ(Problem(two(2, 4, "abcd")), "it is read");
  EXPECT_THAT(Problem(two(3, 5, "abcde")), HasSubstr("y begins at byte 3 of the data"));
  EXPECT_THAT(Problem(two(1, 4, "abcd")), HasSubstr("y begins at byte 1 of the data"));
  const std::string whole = two(2, 4, "abcd");
  EXPECT_EQ(Problem(two(2, 4, "abc")), "f is truncated: " + std::to_string(whole.size() - 1) +
                                           " bytes, its header describes " +
                                           std::to_string(whole.size()));
  EXPECT_THAT(Problem(two(2, 4, "abcde")), StartsWith("f is too long: "));
}

TEST(SafetensorsTest, AHeaderOfMoreThanTheFormatsLimitIsNotRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.Write("big.safetensors", std::string("\0\0\0\x10\0\0\0\0", 8));
  std::filesystem::resize_file(path, uint64_t{1} << 40);  // sparse
  const auto header = ReadSafetensorsHeader(path);
  EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(header.status()), HasSubstr("268435456 bytes, and the format allows"));
}

TEST(SafetensorsTest, AFileOfATerabyteIsOpenedAndReadInPlace) {
  const TemporaryDirectory directory;
  const auto made = LayOutSafetensors("f", {{"x", {"F32", {1 << 20, 1 << 18}}}});
  ASSERT_TRUE(made.ok());
  const std::string path = directory.Write("big", EncodeSafetensorsHeader(*made));
  std::filesystem::resize_file(path, made->file_bytes);
  const auto source = OpenSafetensors(path);
  ASSERT_TRUE(source.ok()) << source.status();
  char bytes[4] = {1, 1, 1, 1};
  ASSERT_TRUE((*source)->Read("x", (uint64_t{1} << 40) - 4, bytes).ok());
  EXPECT_EQ(bytes[3], 0);
  EXPECT_EQ((*source)->Read("x", (uint64_t{1} << 40) - 3, bytes).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*source)->Read("y", 0, bytes).code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, NestingAndLongListsDoNotCostMemoryOrStack) {
  EXPECT_THAT(Problem(File(std::string(1 << 22, '['), "")), HasSubstr("not an object"));
  EXPECT_THAT(Problem(File(R"({"x":{"new":)" + std::string(1 << 22, '['), "")),
              StartsWith("f is damaged"));
  EXPECT_LT(Problem(File(R"({"x":")" + std::string(1 << 22, 'n'), "")).size(), 1000u);
  EXPECT_LT(Problem(File("{\"" + std::string(1 << 22, 'n') + "\":1}", "")).size(), 1000u);
}

TEST(SafetensorsTest, OtherFormatsAreNamed) {
  const TemporaryDirectory directory;
  const auto problem = [&](const std::string& name, const std::string& content) {
    return MessageOf(OpenSafetensors(directory.Write(name, content)).status());
  };
  EXPECT_THAT(problem("m.pt", "PK\x03\x04 zip of torch.save"), HasSubstr("torch.save()"));
  EXPECT_THAT(problem("m.pt", "\x80\x02}q\x01 a pickle"), HasSubstr("torch.save()"));
  EXPECT_THAT(problem("d/__0_0.distcp", "PK\x03\x04 zip"), HasSubstr("distributed.checkpoint"));
  EXPECT_THAT(problem("m.json", "{\"weight_map\": {}}"), HasSubstr("is JSON"));
  EXPECT_THAT(problem("short", "abc"), HasSubstr("truncated"));
  directory.Write("dcp/.metadata", "");
  EXPECT_THAT(MessageOf(OpenSafetensors(directory / "dcp").status()),
              HasSubstr("torch.distributed.checkpoint"));
  EXPECT_EQ(OpenSafetensors(directory / "absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenSafetensors(directory.path()).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(OpenSafetensors(directory / "pipe").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafetensorsTest, EveryTruncationIsFound) {
  const auto made = LayOutSafetensors("f", {{"x", {"U8", {4}}}, {"y", {"F32", {2}}}});
  ASSERT_TRUE(made.ok());
  std::string content = EncodeSafetensorsHeader(*made);
  content.resize(made->file_bytes, 'd');
  ASSERT_TRUE(Decode(content).ok());
  for (size_t size = 0; size < content.size(); ++size) {
    const auto header = Decode(content.substr(0, size));
    EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(MessageOf(header.status()), HasSubstr("truncated")) << size;
  }
}

TEST(SafetensorsTest, DamagedHeadersAreErrorsOrConsistent) {
  std::string content = EncodeSafetensorsHeader(*LayOutSafetensors(
      "f", {{"x", {"U8", {4}}}, {"y", {"F32", {2, 1}}}, {"z", {"BF16", {}}}}, {{"k", "v"}}));
  content.resize(content.size() + 14, 'd');
  std::mt19937_64 random(7);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string damaged = Mutated(content, random);
    const auto header = Decode(damaged);
    if (!header.ok()) continue;
    ++read;
    for (const auto& [name, entry] : header->tensors) {
      ASSERT_LE(entry.begin, entry.end);
      ASSERT_LE(entry.end, damaged.size());
      ASSERT_EQ(entry.end - entry.begin, *TensorBytes(name, entry.tensor));
    }
  }
  EXPECT_GT(read, 0);
}

TEST(SafetensorsIndexTest, TensorsOfSeveralFilesAreOne) {
  const TemporaryDirectory directory;
  const auto write = [&](const std::string& file, const std::string& tensor) {
    directory.Write(
        file, EncodeSafetensorsHeader(*LayOutSafetensors("f", {{tensor, {"U8", {1}}}})) + tensor);
  };
  write("a.safetensors", "x");
  write("b.safetensors", "y");
  const auto index = [&](const std::string& text) {
    directory.Write(kSafetensorsIndexName, text);
    return OpenSafetensorsIndex(directory.path());
  };
  const auto source = index(R"({"metadata": {"total_size": 2},
                                "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Notes().at("total_size"), "2");
  char byte = 0;
  ASSERT_TRUE((*source)->Read("y", 0, std::span(&byte, 1)).ok());
  EXPECT_EQ(byte, 'y');
  EXPECT_THAT(MessageOf(index(R"({"weight_map": {"x": "b.safetensors"}})").status()),
              HasSubstr("has no tensor x"));
  EXPECT_THAT(MessageOf(index(R"({"weight_map": {"x": "../a.safetensors"}})").status()),
              HasSubstr("is not in its directory"));
  EXPECT_THAT(MessageOf(index(R"({"weight_map": {"x": "c.safetensors"}})").status()),
              HasSubstr("c.safetensors"));
  const std::pair<const char*, const char*> wrong[] = {
      {"", "it is empty"},
      {"[]", "it is a list, not an object"},
      {"{}", "it has no weight_map"},
      {"{\n\"weight_map\": ", "it ends in the middle, after byte 15, line 2"},
      {R"({"weight_map": {"x": 1}})", "the file of x is 1, not a text"},
      {R"({"weight_map": {}, "metadata": []})", "metadata is a list, not an object"},
  };
  for (const auto& [text, problem] : wrong) {
    const absl::Status status = index(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(MessageOf(status), EndsWith(std::string(" is damaged: ") + problem));
  }
}

}  // namespace
}  // namespace meshrun
