// A horizontal colour bar with its scale.
#pragma once

#include <string_view>

#include "jobs/figures/image.h"

namespace meshrun::jobs {

inline constexpr Colour kPaper = {255, 255, 255};
inline constexpr Colour kInk = {34, 38, 44};
inline constexpr int kBarHeight = 16;
inline constexpr int kTick = 5;
inline constexpr double kLabelHeight = 9;

// Colours of diverging_colour() from `low` to `high`, where 1 stands for `limit`; five labels below
// (three below narrow ones), `unit` on the right.
void draw_colour_bar(Image& image, int left, int top, int width, double low, double high,
                     double limit, std::string_view unit);

}  // namespace meshrun::jobs
