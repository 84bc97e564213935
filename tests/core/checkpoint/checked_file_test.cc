// What is read of a checkpoint's file is what was written, and damage has a place.
#include "core/checkpoint/checked_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/checkpoint/step_files.h"
#include "tests/core/checkpoint/temporary_directory.h"

namespace meshrun {
namespace {

using ::testing::AllOf;
using testing::EncodeTensors;
using testing::Hashed;
using testing::HashedAsAWhole;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TemporaryDirectory;

class CheckedFileTest : public ::testing::Test {
 protected:
  CheckedFileTest() {
    path_ = directory_.Write("f", content_);
    header_bytes_ = *SafetensorsHeaderEnd("f", content_, content_.size());
  }
  std::unique_ptr<CheckedFile> Open() {
    auto opened = CheckedFile::Open(path_, file_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  void Damage(uint64_t at) {
    std::string damaged = content_;
    damaged[at] ^= 1;
    directory_.Write("f", damaged);
  }
  std::string Problem(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    const std::string text(status.message());
    EXPECT_TRUE(text.starts_with(path_)) << text;
    return text.substr(std::min(path_.size(), text.size()));
  }

  const TemporaryDirectory directory_;
  const std::string content_ = EncodeTensors({
      {"a", {{"U8", {40}}, "0123456789012345678901234567890123456789"}},
      {"b", {{"U8", {4}}, "bbbb"}},
      {"c", {{"U8", {4}}, "cccc"}},
  });
  // 16 bytes each: a ends in the third, with b and c.
  const Manifest::File file_ = Hashed(content_, 16);
  std::string path_;
  uint64_t header_bytes_ = 0;
};

TEST_F(CheckedFileTest, GivesWhatLiesInTheIntervals) {
  const auto file = Open();
  EXPECT_EQ(file->chunk_count(), 4u);
  const uint64_t data = header_bytes_;
  const CheckedFile::Interval intervals[] = {{0, 8},
                                             {data + 1, data + 2},
                                             {data + 3, data + 3},
                                             {data + 4, data + 20},
                                             {data + 30, data + 34},
                                             {data + 34, data + 48}};
  std::string taken;
  uint64_t last = 0;
  const absl::Status read = file->Read(intervals, [&](uint64_t offset, std::string_view bytes) {
    EXPECT_EQ(bytes, std::string_view(content_).substr(offset, bytes.size()));
    EXPECT_GE(offset, last);
    last = offset + bytes.size();
    taken += bytes;
  });
  ASSERT_TRUE(read.ok()) << read;
  std::string expected;
  for (const auto& [begin, end] : intervals) expected += content_.substr(begin, end - begin);
  EXPECT_EQ(taken, expected);
  const CheckedFile::Interval beyond = {0, content_.size() + 1};
  EXPECT_EQ(file->Read(std::span(&beyond, 1), [](auto...) {}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckedFileTest, ADamagedByteIsNamedByTensorAndPlace) {
  Damage(header_bytes_ + 20);
  const auto file = Open();
  const std::string at = std::to_string(header_bytes_ + 16);
  const std::string last = std::to_string(header_bytes_ + 31);
  EXPECT_EQ(Problem(file->VerifyAll()),
            " is damaged: bytes 16 to 31 of a (bytes " + at + " to " + last + " of the file)");
  EXPECT_TRUE(file->Verify(0, 2).ok());
  EXPECT_FALSE(file->Verify(2, 3).ok());
  EXPECT_TRUE(file->Verify(3, 4).ok());
  const CheckedFile::Interval good = {header_bytes_, header_bytes_ + 16};
  const CheckedFile::Interval bad = {header_bytes_ + 31, header_bytes_ + 32};
  EXPECT_TRUE(file->Read(std::span(&good, 1), [](auto...) {}).ok());
  EXPECT_FALSE(file->Read(std::span(&bad, 1), [](auto...) { FAIL(); }).ok());
}

TEST_F(CheckedFileTest, ADamagedChunkOfSeveralTensorsNamesThem) {
  Damage(header_bytes_ + 45);
  const std::string at = std::to_string(header_bytes_ + 32);
  const std::string last = std::to_string(header_bytes_ + 47);
  EXPECT_EQ(Problem(Open()->VerifyAll()),
            " is damaged: bytes 32 to 39 of a, bytes 0 to 3 of b, bytes 0 to 3 of c (bytes " + at +
                " to " + last +
                " of the file; these 3 have one hash, so which of them is damaged is not known)");
}

TEST_F(CheckedFileTest, OfManyTensorsInAChunkAFewAreNamedAndTheRestCounted) {
  testing::StoredTensors tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) tensors[name] = {{"U8", {1}}, "x"};
  std::string content = EncodeTensors(tensors);
  const Manifest::File file = Hashed(content, 16);
  content.back() ^= 1;
  const auto opened = CheckedFile::Open(directory_.Write("f", content), file);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(Problem((*opened)->VerifyAll()),
              AllOf(HasSubstr("bytes 0 to 0 of d, bytes 0 to 0 of e and 2 more (bytes "),
                    HasSubstr("; these 7 have one hash, so which of them")));
}

TEST_F(CheckedFileTest, DamageInTheHeaderIsSaid) {
  // In a padding space, in the JSON, in the length.
  for (const uint64_t at : {header_bytes_ - 1, uint64_t{12}, uint64_t{0}}) {
    Damage(at);
    EXPECT_THAT(Problem(CheckedFile::Open(path_, file_).status()),
                AllOf(StartsWith(" is damaged: its header"),
                      HasSubstr("(bytes 0 to " + std::to_string(header_bytes_ - 1))))
        << at;
    const auto anyway = CheckedFile::Open(path_, file_, CheckedFile::DamagedHeader::kIsReadAnyway);
    ASSERT_TRUE(anyway.ok()) << anyway.status();
    EXPECT_FALSE((*anyway)->Verify(0, 1).ok());
    EXPECT_TRUE((*anyway)->Verify(1, 4).ok());
  }
}

TEST_F(CheckedFileTest, AnotherLengthIsSaidWithBothSizes) {
  const std::string size = std::to_string(content_.size());
  for (size_t bytes = 0; bytes < content_.size(); ++bytes) {
    directory_.Write("f", content_.substr(0, bytes));
    EXPECT_EQ(Problem(CheckedFile::Open(path_, file_).status()),
              " is truncated: " + std::to_string(bytes) + " bytes, " + size + " were written");
  }
  directory_.Write("f", content_ + "x");
  EXPECT_THAT(Problem(CheckedFile::Open(path_, file_).status()), StartsWith(" is too long: "));
  std::filesystem::remove(path_);
  EXPECT_EQ(Problem(CheckedFile::Open(path_, file_).status()), " is missing");
  std::filesystem::create_directory(path_);
  EXPECT_EQ(CheckedFile::Open(path_, file_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckedFileTest, EveryDamagedByteIsFound) {
  for (size_t at = 0; at < content_.size(); ++at) {
    Damage(at);
    const auto file = CheckedFile::Open(path_, file_);
    EXPECT_FALSE(file.ok() && (*file)->VerifyAll().ok()) << at;
  }
}

TEST_F(CheckedFileTest, AFileOfVersion1IsComparedAsAWhole) {
  const Manifest::File whole = HashedAsAWhole(content_);
  auto file = CheckedFile::Open(path_, whole);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->chunk_count(), 0u);
  EXPECT_TRUE((*file)->VerifyAll().ok());
  const CheckedFile::Interval interval = {header_bytes_, header_bytes_ + 4};
  std::string taken;
  ASSERT_TRUE((*file)->Read(std::span(&interval, 1), [&](uint64_t, auto b) { taken += b; }).ok());
  EXPECT_EQ(taken, "0123");
  Damage(header_bytes_ + 1);
  file = CheckedFile::Open(path_, whole);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Problem((*file)->VerifyAll()),
              AllOf(StartsWith(" is damaged: its SHA-256 is "), HasSubstr(whole.sha256),
                    HasSubstr("which tensor is damaged is not known")));
}

TEST(Xxh3Test, IsThatOfXxh128sum) {
  EXPECT_EQ(Xxh3("").Hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Xxh3("meshrun").Hex().size(), 32u);
  EXPECT_NE(Xxh3("meshrun"), Xxh3("meshrum"));
}

}  // namespace
}  // namespace meshrun
