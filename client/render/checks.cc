#include "client/render/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/text.h"

namespace meshrun::client {
namespace {

// "warn", and two blanks.
constexpr size_t kLevelColumns = 6;
constexpr std::string_view kArrow = "-> ";

}  // namespace

Checks LimitChecks(const std::vector<v1::Node>& nodes) {
  // Nodes without a limit, by its name.
  std::map<std::string_view, std::vector<std::string>> unlimited;
  for (const v1::Node& node : nodes) {
    const auto& limits = node.resources().limits();
    const auto keeps = [&limits](std::string_view limit) {
      return std::find(limits.begin(), limits.end(), limit) != limits.end();
    };
    if (!keeps("memory")) unlimited["memory"].push_back(node.name());
    if (!keeps("cpu") && !keeps("cpu-quota")) unlimited["cpu"].push_back(node.name());
    if (!keeps("pids")) unlimited["pids"].push_back(node.name());
    if (!keeps("devices") && node.resources().gpus_size() > 0)
      unlimited["devices"].push_back(node.name());
  }
  Checks checks;
  for (auto& [limit, without] : unlimited) {
    std::sort(without.begin(), without.end(), NaturalLess);
    checks.push_back({Level::kWarn, fmt::format("{} limits", limit),
                      without.size() == 1 ? "none on " + without.front()
                                          : fmt::format("none on {} nodes, one is {}",
                                                        without.size(), without.front()),
                      "a job there may use more than it asked for: docs/operations.md, Limits"});
  }
  return checks;
}

std::string_view LevelName(Level level) {
  static constexpr std::string_view kNames[] = {"ok", "warn", "fail"};
  return kNames[static_cast<int>(level)];
}

std::string CheckList(const Checks& checks, const Style& style) {
  static constexpr Colour kColours[] = {Colour::kGreen, Colour::kYellow, Colour::kRed};
  const auto columns = static_cast<size_t>(TableWidth(style));
  const auto pieces = [columns](std::string_view text, size_t before) {
    return columns == 0 ? std::vector<std::string>{std::string(text)}
                        : Wrap(text, columns > before ? columns - before : 1);
  };
  size_t width = 0;
  for (const Check& c : checks) {
    const size_t own = DisplayWidth(c.what);
    if (columns == 0 || own <= columns / 3) width = std::max(width, own);
  }
  const size_t margin = kLevelColumns + width + 2;
  std::string out;
  for (const Check& c : checks) {
    std::string row = Paint(style, kColours[static_cast<int>(c.level)],
                            fmt::format("{:<4}", LevelName(c.level))) +
                      "  ";
    if (DisplayWidth(c.what) <= width) {
      row += c.what + std::string(width - DisplayWidth(c.what) + 2, ' ');
    } else {
      for (const std::string& piece : pieces(c.what, kLevelColumns)) {
        out += std::exchange(row, std::string(kLevelColumns, ' ')) + piece + "\n";
      }
      row = std::string(margin, ' ');
    }
    for (const std::string& piece : pieces(c.found, margin)) {
      out += std::exchange(row, std::string(margin, ' ')) + piece + "\n";
    }
    if (c.advice.empty()) continue;
    row = std::string(margin, ' ') + std::string(kArrow);
    for (const std::string& piece : pieces(c.advice, margin + kArrow.size())) {
      out += std::exchange(row, std::string(margin + kArrow.size(), ' ')) + piece + "\n";
    }
  }
  return out;
}

}  // namespace meshrun::client
