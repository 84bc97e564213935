// Pictures that ranks show: what a file must be called, and how large it may be. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace meshrun {

// A larger picture is not shown.
inline constexpr size_t kMostPictureBytes = size_t{4} << 20;

// The media type of a picture by its suffix: "image/png". Formats that can hold a script have none.
// Empty: this is not the name of a picture. A name has 64 of [A-Za-z0-9._-] at most, and does not
// begin with a dot.
std::string_view PictureType(std::string_view name);

// What to say of a name without a type.
std::string NotAPictureName(std::string_view name);

}  // namespace meshrun
