#include "client/render/table.h"

#include <algorithm>

#include "client/render/style.h"

namespace meshrun::client {

Table::Table(std::vector<std::string> titles) : titles_(std::move(titles)) {
  for (std::string& title : titles_) {
    right_.push_back(title.starts_with('>'));
    if (right_.back()) title.erase(0, 1);
  }
}

void Table::Add(std::vector<std::string> row) {
  row.resize(titles_.size());
  rows_.push_back(std::move(row));
}

std::string Table::Render(int indent) const {
  std::vector<size_t> widths(titles_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::vector<size_t> shown;
  for (size_t c = 0; c < titles_.size(); ++c) {
    if (widths[c] == 0 && !rows_.empty()) continue;
    widths[c] = std::max(widths[c], titles_[c].size());
    shown.push_back(c);
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text(indent, ' ');
    for (const size_t c : shown) {
      const std::string blanks(widths[c] - DisplayWidth(cells[c]), ' ');
      if (c != shown.front()) text += "  ";
      text += right_[c] ? blanks + cells[c] : cells[c] + blanks;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(titles_);
  for (const auto& row : rows_) line(row);
  return out;
}

}  // namespace meshrun::client
