// Aligned columns. Pure.
#pragma once

#include <string>
#include <vector>

namespace meshrun::client {

class Table {
 public:
  // A title that begins with '>' is aligned to the right, without the sign.
  explicit Table(std::vector<std::string> titles);
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  // Two blanks between columns, `indent` in front, no blanks at the end of a line. Columns in which
  // every cell is empty are left out.
  std::string Render(int indent = 0) const;

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace meshrun::client
