#include "jobs/figures/colour_bar.h"

#include <cmath>
#include <cstdio>

#include "jobs/figures/colour_map.h"
#include "jobs/figures/text.h"

namespace meshrun::jobs {

void draw_colour_bar(Image& image, int left, int top, int width, double low, double high,
                     double limit, std::string_view unit) {
  for (int x = 0; x < width; ++x) {
    const Colour colour = diverging_colour(std::lerp(low, high, x / (width - 1.0)));
    image.fill_rectangle(left + x, top, 1, kBarHeight, colour);
  }
  image.outline_rectangle(left, top, width, kBarHeight, kInk);
  const int steps = width < 400 ? 2 : 4;
  for (int step = 0; step <= steps; ++step) {
    const double share = static_cast<double>(step) / steps;
    const int x = left + static_cast<int>(std::lround(share * (width - 1)));
    image.fill_rectangle(x, top + kBarHeight + 1, 1, kTick, kInk);
    const double value = std::lerp(low, high, share) * limit;
    char label[32];
    std::snprintf(label, sizeof label, "%.3g", value == 0 ? 0.0 : value);
    draw_text(image, x, top + kBarHeight + kTick + 8, kLabelHeight, label, kInk, Align::kCentre);
  }
  draw_text(image, left + width + 14, top + (kBarHeight - kLabelHeight) / 2, kLabelHeight, unit,
            kInk);
}

}  // namespace meshrun::jobs
