// The audit's file: each record once, whatever ends the coordinator.
#include "coordinator/event_loop/audit_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace meshrun::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<v1::StateRow> Rows(uint64_t first, uint64_t last) {
  std::vector<v1::StateRow> rows;
  for (uint64_t sequence = first; sequence <= last; ++sequence) {
    v1::AuditRecord record;
    record.set_sequence(sequence);
    record.set_actor("ada");
    v1::StateRow& row = rows.emplace_back();
    row.set_table(v1::STATE_TABLE_AUDIT);
    row.set_value(record.SerializeAsString());
  }
  return rows;
}

AuditFile::Rows Part(uint64_t first, uint64_t last) {
  const std::vector<v1::StateRow> rows = Rows(first, last);
  return {rows.begin(), rows.end()};
}

class AuditFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<AuditFile> Open() {
    auto file =
        AuditFile::Open(path, [this](const std::string& text) { problems.push_back(text); });
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  // Numbers of the lines.
  std::vector<int> Lines(const std::string& of) {
    std::vector<int> out;
    std::ifstream file(of);
    for (std::string line; std::getline(file, line);) {
      const size_t at = line.find("\"sequence\":\"");
      out.push_back(at == std::string::npos ? -1 : std::atoi(line.c_str() + at + 12));
    }
    return out;
  }

  const std::string path =
      fmt::format("{}/audit-{}-{}", ::testing::TempDir(), ::getpid(),
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::vector<std::string> problems;
};

TEST_F(AuditFileTest, WhatItLacksIsAddedAtAStartAndACutLineIsWrittenAgain) {
  Open()->Write(Rows(1, 3));
  EXPECT_THAT(Lines(path), ElementsAre(1, 2, 3));
  struct stat info;
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::truncate(path.c_str(), info.st_size - 5), 0);
  const auto file = Open();
  EXPECT_EQ(file->last(), 2u);
  file->CatchUp(Part(1, 4));
  file->CatchUp(Part(5, 5));
  file->Write(Rows(5, 6));
  EXPECT_THAT(Lines(path), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(AuditFileTest, ANewFileBeginsWithWhatComesNext) {
  const auto file = Open();
  file->CatchUp(Part(1, 60));
  file->CatchUp(Part(61, 100));
  EXPECT_THAT(Lines(path), IsEmpty());
  file->Write(Rows(101, 102));
  EXPECT_THAT(Lines(path), ElementsAre(101, 102));
}

TEST_F(AuditFileTest, ItMayBeRenamed) {
  const auto file = Open();
  file->Write(Rows(1, 2));
  ASSERT_EQ(::rename(path.c_str(), (path + ".1").c_str()), 0);
  file->Write(Rows(3, 3));
  file->Reopen();
  file->Write(Rows(4, 4));
  EXPECT_THAT(Lines(path + ".1"), ElementsAre(1, 2, 3));
  EXPECT_THAT(Lines(path), ElementsAre(4));
}

TEST_F(AuditFileTest, AFileThatIsSomethingElseIsRefused) {
  std::ofstream(path) << "root:x:0:0\n";
  const auto file = AuditFile::Open(path, [](const std::string&) {});
  EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("name another file"));
}

// What could not be written waits, and the problem is said once.
TEST_F(AuditFileTest, LinesWaitForAPlace) {
  const auto file = Open();
  file->Write(Rows(1, 1));
  const std::string gone = path + ".d";
  ASSERT_EQ(::rename(path.c_str(), gone.c_str()), 0);
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  file->Reopen();
  file->Write(Rows(2, 2));
  file->Write(Rows(3, 3));
  EXPECT_EQ(problems.size(), 1u);
  ASSERT_EQ(::rmdir(path.c_str()), 0);
  file->Reopen();
  file->Write(Rows(4, 4));
  EXPECT_THAT(Lines(path), ElementsAre(2, 3, 4));
}

}  // namespace
}  // namespace meshrun::coordinator
