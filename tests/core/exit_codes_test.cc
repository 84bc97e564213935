#include "core/exit_codes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

namespace meshrun {
namespace {

// The table below the heading "Exit codes" has a row for each code, and no other rows.
TEST(ExitCodesTest, TheDocsListIsTheProgramsList) {
  std::ifstream page("docs/errors.md");
  std::set<std::string> listed;
  bool in_section = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) in_section = line == "## Exit codes";
    if (!in_section || !line.starts_with("| ")) continue;
    const std::string code = line.substr(2, line.find(" |", 2) - 2);
    if (code != "code") listed.insert(code);
  }
  std::set<std::string> known = {std::to_string(kExitSignalBase) + " + n"};
  for (const int code : {kExitOk, kExitJobFailed, kExitUsage, kExitOutputLost, kExitTryAgain,
                         kExitDoNotRequeue, kExitDeadline, kExitNotExecutable, kExitNotFound}) {
    known.insert(std::to_string(code));
  }
  EXPECT_EQ(listed, known);
}

}  // namespace
}  // namespace meshrun
