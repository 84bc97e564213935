// Which files of the product have grown too long to be read at one sitting.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshrun::house {

struct LongFile {
  std::string file;  // relative to the root
  int lines = 0;

  friend bool operator==(const LongFile&, const LongFile&) = default;
};

// The sources of the product's folders below `root` that have more than `most` lines, the longest
// first: *.cc, *.h, *.cu, *.cuh, *.py, and scripts, which are files that begin with "#!" and have
// no ending. tests/, third_party/, hidden directories and symbolic links are not read, nor are
// folders that this repository does not know: somebody's own project in a clone.
std::vector<LongFile> FindLongFiles(const std::filesystem::path& root, int most);

}  // namespace meshrun::house
