// Draws lines of text into an image, with a small font that needs no file.
#pragma once

#include <string_view>

#include "jobs/figures/image.h"

namespace meshrun::jobs {

enum class Align { kLeft, kCentre, kRight };

// A character that the font does not have is drawn as '?'. "\x7f" is the degree sign. `x` is where
// the line starts, has its middle or ends, `y` its top; `height` is that of a capital letter, in
// pixels. Edges are smooth at any height.
void draw_text(Image& image, double x, double y, double height, std::string_view text,
               Colour colour, Align align = Align::kLeft);

// In pixels, without the space after the last character.
double text_width(double height, std::string_view text);

}  // namespace meshrun::jobs
