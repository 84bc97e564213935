// docs/monitoring.md and what is exported name the same metrics.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "core/metrics/exposition.h"

namespace meshrun::testing {

// Names in the first column of the table below this heading.
inline std::set<std::string> DocumentedBelow(const std::string& heading) {
  std::ifstream page("docs/monitoring.md");
  std::set<std::string> names;
  std::string line;
  bool is_below = false;
  while (std::getline(page, line)) {
    if (line.starts_with("## ")) is_below = line == "## " + heading;
    if (!is_below || !line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find('|', 1));
    for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      const size_t end = cell.find('`', at + 1);
      names.insert(cell.substr(at + 1, end - at - 1));
      at = end;
    }
  }
  return names;
}

// `heading`: the program's own table. All that the page has must be exported, and the reverse.
inline void ExpectDocumented(const metrics::Exposition& out, const std::string& heading) {
  std::set<std::string> documented = DocumentedBelow(heading);
  EXPECT_GT(documented.size(), 10u);
  documented.merge(DocumentedBelow("Metrics of both"));
  std::set<std::string> exported;
  for (const auto& family : out.families()) {
    EXPECT_FALSE(family.metric.empty()) << family.name << " has no series here";
    EXPECT_FALSE(family.help.empty()) << family.name;
    exported.insert(family.name);
  }
  EXPECT_EQ(exported, documented);
}

}  // namespace meshrun::testing
