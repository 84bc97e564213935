// A file that is part of a program: //core/embed:embed.bzl makes them from files of the tree.
#pragma once

#include <string_view>

namespace meshrun {

struct EmbeddedFile {
  // Relative to the folder of its BUILD file: "icons/rank.svg".
  std::string_view path;
  std::string_view bytes;
};

}  // namespace meshrun
