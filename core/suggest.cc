#include "core/suggest.h"

#include <fmt/format.h>

#include <algorithm>

namespace meshrun {
namespace {

// Edits to get from a to b: insert, remove, replace, swap neighbours.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> two(b.size() + 1);
  std::vector<size_t> one(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) one[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({one[j] + 1, row[j - 1] + 1, one[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two[j - 2] + 1);
      }
    }
    two.swap(one);
    one.swap(row);
  }
  return one[b.size()];
}

// As many as a slip of the fingers makes. Two short words, or two ids with random ends, are not
// near because they have letters in common.
size_t MostEdits(std::string_view typed) {
  typed.remove_prefix(std::min(typed.find_first_not_of('-'), typed.size()));
  return typed.size() < 3 ? 0 : typed.size() < 6 ? 1 : 2;
}

}  // namespace

std::string Nearest(std::string_view typed, const std::vector<std::string>& words) {
  std::string best;
  size_t best_distance = MostEdits(typed) + 1;
  for (const std::string& word : words) {
    const size_t distance = Distance(typed, word);
    if (distance < best_distance) {
      best = word;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  // "node" for "nodes-per-host" is an unfinished word, not a typing error.
  for (const std::string& word : words) {
    if (typed.size() >= 3 && word.starts_with(typed)) return word;
  }
  return "";
}

std::string DidYouMean(std::string_view typed, const std::vector<std::string>& words) {
  const std::string nearest = Nearest(typed, words);
  return nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest);
}

}  // namespace meshrun
