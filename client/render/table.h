// Aligned columns. Pure.
#pragma once

#include <string>
#include <vector>

namespace meshrun::client {

class Table {
 public:
  // The signs before a title are not shown. '>' aligns the column to the right. Where the room does
  // not suffice, columns with '~~' are left out first, then those with '~', then the others.
  explicit Table(std::vector<std::string> titles);
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  // Two blanks between columns, `indent` in front, no blanks at the end of a line. Columns in which
  // every cell is empty are left out.
  //
  // `width`: columns of the terminal, 0 for any. To fit, texts are shortened and the last column is
  // wrapped. If that is not enough, columns are left out: those with '~~' first, then those with
  // '~', then the others, and among equals the rightmost first. The first column that is shown and
  // columns with '>' are never shortened.
  std::string Render(int indent = 0, int width = 0) const;

 private:
  struct Column {
    std::string title;
    bool right = false;
    // Larger ones go before.
    int goes = 0;
  };
  // `shown`: indices of columns. Shortens *widths and leaves columns out until all fit.
  std::vector<size_t> Fit(std::vector<size_t> shown, size_t width,
                          std::vector<size_t>* widths) const;
  bool Shrink(const std::vector<size_t>& shown, size_t width, std::vector<size_t>* widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace meshrun::client
