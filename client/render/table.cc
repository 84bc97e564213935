#include "client/render/table.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "client/render/style.h"

namespace meshrun::client {
namespace {

// Least width of a shortened text, and of a wrapped one.
constexpr size_t kLeastText = 12;
constexpr size_t kLeastWrapped = 16;

}  // namespace

Table::Table(std::vector<std::string> titles) {
  for (std::string& title : titles) {
    Column column;
    for (; !title.empty() && (title[0] == '>' || title[0] == '~'); title.erase(0, 1)) {
      if (title[0] == '>') column.right = true;
      if (title[0] == '~') ++column.goes;
    }
    column.title = std::move(title);
    columns_.push_back(std::move(column));
  }
}

void Table::Add(std::vector<std::string> row) {
  row.resize(columns_.size());
  rows_.push_back(std::move(row));
}

// False when they do not fit, however short their texts are.
bool Table::Shrink(const std::vector<size_t>& shown, size_t width,
                   std::vector<size_t>* widths) const {
  const auto least = [&](size_t c) {
    if (columns_[c].right || c == shown.front()) return (*widths)[c];
    return std::min((*widths)[c], c == shown.back() ? kLeastWrapped : kLeastText);
  };
  size_t total = 2 * (shown.size() - 1);
  for (const size_t c : shown) total += (*widths)[c];
  while (total > width) {
    const size_t longest = *std::max_element(shown.begin(), shown.end(), [&](size_t a, size_t b) {
      return (*widths)[a] - least(a) < (*widths)[b] - least(b);
    });
    const size_t cut = std::min(total - width, (*widths)[longest] - least(longest));
    if (cut == 0) return false;
    (*widths)[longest] -= cut;
    total -= cut;
  }
  return true;
}

std::vector<size_t> Table::Fit(std::vector<size_t> shown, size_t width,
                               std::vector<size_t>* widths) const {
  while (shown.size() > 1) {
    std::vector<size_t> fitted = *widths;
    if (Shrink(shown, width, &fitted)) {
      *widths = std::move(fitted);
      break;
    }
    // The first maximum from the right.
    const auto goes = std::max_element(shown.rbegin(), shown.rend(), [&](size_t a, size_t b) {
      return columns_[a].goes < columns_[b].goes;
    });
    shown.erase(std::prev(goes.base()));
  }
  return shown;
}

std::string Table::Render(int indent, int width) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::vector<size_t> shown;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (widths[c] == 0 && !rows_.empty()) continue;
    widths[c] = std::max(widths[c], columns_[c].title.size());
    shown.push_back(c);
  }
  if (shown.empty()) return "";
  if (width > indent) shown = Fit(std::move(shown), static_cast<size_t>(width - indent), &widths);
  const size_t before_last =
      std::accumulate(shown.begin(), shown.end() - 1, static_cast<size_t>(indent),
                      [&](size_t sum, size_t c) { return sum + widths[c] + 2; });

  std::string out;
  const auto add = [&out](std::string text) {
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(static_cast<size_t>(indent), ' ');
    for (const size_t c : shown) {
      const bool last = c == shown.back() && !columns_[c].right && shown.size() > 1;
      const std::vector<std::string> pieces =
          last ? Wrap(cells[c], widths[c])
               : std::vector{shown.front() == c ? cells[c] : Shorten(cells[c], widths[c])};
      const std::string blanks(widths[c] - std::min(widths[c], DisplayWidth(pieces[0])), ' ');
      if (c != shown.front()) text += "  ";
      text += columns_[c].right ? blanks + pieces[0] : pieces[0] + blanks;
      for (size_t i = 1; i < pieces.size(); ++i) {
        add(std::exchange(text, std::string(before_last, ' ') + pieces[i]));
      }
    }
    add(std::move(text));
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  line(titles);
  for (const auto& row : rows_) line(row);
  return out;
}

}  // namespace meshrun::client
