// The operators in docs/shard_tensor.md are those that are registered. MESHRUN_WRITE_DOCS=PATH
// writes them into that page instead.
#include "parallel/shard/dispatch/operator_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "third_party/libtorch/shims.h"

namespace meshrun {
namespace {

constexpr const char* kBegin = "<!-- operators: printed from the table of handlers -->\n";
constexpr const char* kEnd = "<!-- /operators -->\n";

std::string read(const std::string& path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(OperatorTableTest, TheDocumentedOperatorsAreTheRegisteredOnes) {
  const char* write_to = std::getenv("MESHRUN_WRITE_DOCS");
  const std::string path = write_to == nullptr ? "docs/shard_tensor.md" : write_to;
  const std::string page = read(path);
  const size_t begin = page.find(kBegin);
  const size_t end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << path;
  ASSERT_NE(end, std::string::npos) << path;
  const size_t inside = begin + std::string(kBegin).size();
  const std::string whose = fmt::format("\nThese are LibTorch {}'s.\n\n", libtorch::kVersion);
  const std::string table = whose + operators_as_markdown();
  if (write_to != nullptr) {
    std::ofstream(path) << page.substr(0, inside) << table << page.substr(end);
    return;
  }
  const std::string documented = page.substr(inside, end - inside);
  if (!documented.starts_with(whose)) GTEST_SKIP() << "the page is of another LibTorch:" << whose;
  EXPECT_EQ(documented, table) << "write it anew: MESHRUN_WRITE_DOCS=$PWD/docs/shard_tensor.md "
                                  "bazel-bin/tests/parallel/shard/operator_table_test";
}

TEST(OperatorTableTest, EveryRowSaysWhatItTakes) {
  for (const OperatorRow& row : registered_operators()) {
    EXPECT_FALSE(row.movement.placements.empty()) << row.name;
  }
}

TEST(OperatorTableTest, EachOperatorHasOneHandlerALevel) {
  std::set<std::pair<HandlerLevel, std::string>> seen;
  for (const OperatorRow& row : registered_operators()) {
    EXPECT_TRUE(seen.emplace(row.level, row.name).second) << row.family << ": " << row.name;
  }
}

// LibTorch says itself which operators are pointwise. Composite ones are taken apart into others.
TEST(OperatorTableTest, EveryPointwiseOperatorHasARule) {
  std::set<std::string> rows;
  for (const OperatorRow& row : registered_operators()) rows.insert(row.name);
  std::set<std::string> missing;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !op->hasTag(at::Tag::pointwise)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const std::string full = c10::toString(name);
    if (full.starts_with("aten::") && rows.count(full) == 0) missing.insert(full);
  }
  EXPECT_EQ(fmt::format("{}", fmt::join(missing, " ")), "");
}

}  // namespace
}  // namespace meshrun
