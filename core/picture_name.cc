#include "core/picture_name.h"

#include <algorithm>
#include <utility>

namespace meshrun {
namespace {

constexpr size_t kLongestName = 64;
constexpr std::pair<std::string_view, std::string_view> kTypes[] = {{".png", "image/png"},
                                                                    {".jpg", "image/jpeg"},
                                                                    {".jpeg", "image/jpeg"},
                                                                    {".webp", "image/webp"},
                                                                    {".gif", "image/gif"}};

bool MayBeInName(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

std::string_view PictureType(std::string_view name) {
  if (name.size() > kLongestName || name.starts_with('.') ||
      !std::all_of(name.begin(), name.end(), MayBeInName)) {
    return "";
  }
  for (const auto& [suffix, type] : kTypes) {
    if (name.ends_with(suffix)) return type;
  }
  return "";
}

std::string NotAPictureName(std::string_view name) {
  return "'" + std::string(name) +
         "' is not the name of a picture: use up to 64 of A-Z, a-z, 0-9, '.', '_', '-', and end "
         "with .png, .jpg, .jpeg, .webp or .gif";
}

}  // namespace meshrun
