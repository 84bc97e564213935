#include "parallel/comm/flight_record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace meshrun {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(FlightRecordFileTest, TheRecordGoesToAFileThatOneShortLineNames) {
  const std::string directory = std::filesystem::path(::testing::TempDir()) / "records";
  std::filesystem::create_directories(directory);
  setenv("MESHRUN_FLIGHT_RECORD_DIR", directory.c_str(), 1);
  const std::string path = flight_record_path(3);
  EXPECT_THAT(path, StartsWith(directory + "/meshrun-flight-record-rank-3-"));
  std::filesystem::remove(path);
  const std::string record(60000, 'x');
  const std::string line = keep_flight_record(path, record);
  EXPECT_THAT(line, HasSubstr(path));
  EXPECT_LT(line.size(), 400u);
  keep_flight_record(path, "{}");
  EXPECT_EQ(read(path), record + "\n{}\n");
  // What cannot be written is said.
  EXPECT_THAT(keep_flight_record(directory + "/absent/file", "{}"),
              HasSubstr("No such file or directory"));
  unsetenv("MESHRUN_FLIGHT_RECORD_DIR");
}

TEST(FlightRecordFileTest, ItLiesBesideTheErrorFileOfTheRank) {
  setenv("TORCHELASTIC_ERROR_FILE", "/var/log/job/0.error.json", 1);
  EXPECT_THAT(flight_record_path(0), StartsWith("/var/log/job/meshrun-flight-record-rank-0-"));
  unsetenv("TORCHELASTIC_ERROR_FILE");
  setenv("TMPDIR", "/scratch", 1);
  EXPECT_THAT(flight_record_path(0), StartsWith("/scratch/meshrun-flight-record-rank-0-"));
  unsetenv("TMPDIR");
}

}  // namespace
}  // namespace meshrun
