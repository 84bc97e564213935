#include "client/render/stacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

// A reason why the place of a rank is not known is cut to so many columns.
constexpr size_t kProblem = 600;

void SortByRank(std::vector<v1::RankStack>* stacks) {
  std::sort(stacks->begin(), stacks->end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
}

std::string Indented(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    std::replace(line.begin(), line.end(), '\t', ' ');
    if (end > 0) out += fmt::format("  {}\n", EscapeControls(line));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

std::string DescribeStacks(std::vector<v1::RankStack> stacks, const Style& style) {
  SortByRank(&stacks);
  std::string out;
  for (const v1::RankStack& stack : stacks) {
    const std::string name = Paint(style, Colour::kBold, fmt::format("rank {}", stack.rank()));
    const std::string where =
        !stack.error().empty()  ? fmt::format(": {}", OneLine(stack.error(), kProblem))
        : stack.place().empty() ? ""
                                : fmt::format(" is in {}", EscapeControls(stack.place()));
    out += name + where + "\n";
    out += Indented(stack.text());
  }
  return out;
}

std::string StacksJson(std::vector<v1::RankStack> stacks) {
  using Json = nlohmann::ordered_json;
  SortByRank(&stacks);
  Json all = Json::array();
  for (const v1::RankStack& stack : stacks) {
    Json entry;
    entry["rank"] = stack.rank();
    if (!stack.error().empty()) entry["error"] = stack.error();
    if (!stack.place().empty()) entry["place"] = stack.place();
    if (!stack.text().empty()) entry["text"] = stack.text();
    all.push_back(std::move(entry));
  }
  Json out;
  out["stacks"] = std::move(all);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace meshrun::client
