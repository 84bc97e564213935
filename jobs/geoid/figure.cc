#include "jobs/geoid/figure.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "jobs/figures/colour_bar.h"
#include "jobs/figures/colour_map.h"
#include "jobs/figures/panels.h"
#include "jobs/figures/text.h"
#include "jobs/runtime/words.h"

namespace meshrun::geoid {
namespace {

using jobs::Align;
using jobs::diverging_colour;
using jobs::draw_text;
using jobs::Image;
using jobs::kBarHeight;
using jobs::kInk;
using jobs::kLabelHeight;
using jobs::kTick;

constexpr int kMargin = 36;
constexpr int kGap = 44;
// Left of each map, for the latitudes.
constexpr int kLatitudeWidth = 48;
constexpr int kMapTop = 118;
constexpr int kBarDrop = 52;
constexpr int kBelowBar = 56;
constexpr double kTitleHeight = 18;
constexpr double kPanelTitleHeight = 14;
// A narrower map has short titles and fewer longitudes.
constexpr int kWide = 320;
// Errors beyond this quantile take the end of the colour bar, lest a few peaks bleach the rest.
constexpr double kErrorQuantile = 0.998;

std::string degrees(double value, char positive, char negative) {
  std::string text = jobs::format("%.0f\x7f", std::abs(value));
  if (value != 0 && std::abs(value) != 180) text += value > 0 ? positive : negative;
  return text;
}

struct Panel {
  std::string title;
  std::span<const float> values;
  double limit;  // the colour bar's ends, in metres
};

void draw_map(Image& image, int left, const Map& map, const Panel& panel) {
  for (int y = 0; y < map.rows; ++y) {
    for (int x = 0; x < map.columns; ++x) {
      const size_t point = static_cast<size_t>(map.rows - 1 - y) * map.columns + x;
      image.set(left + x, kMapTop + y, diverging_colour(panel.values[point] / panel.limit));
    }
  }
  image.outline_rectangle(left, kMapTop, map.columns, map.rows, kInk);
}

void draw_graticule(Image& image, int left, const Map& map) {
  const int bottom = kMapTop + map.rows;
  const int longitudes = map.columns < kWide ? 120 : 60;
  for (int longitude = -360; longitude <= 360; longitude += longitudes) {
    const double x = (longitude - map.west) / map.longitude_step;
    if (x < -0.5 || x > map.columns + 0.5) continue;
    image.fill_rectangle(left + static_cast<int>(std::lround(x)), bottom + 1, 1, kTick, kInk);
    const int east = longitude > 180 ? longitude - 360 : longitude;
    draw_text(image, left + x, bottom + kTick + 8, kLabelHeight, degrees(east, 'E', 'W'), kInk,
              Align::kCentre);
  }
  for (int latitude = -90; latitude <= 90; latitude += 30) {
    const double y = map.rows - 1 - (latitude - map.south) / map.latitude_step;
    if (y < -0.5 || y > map.rows - 0.5) continue;
    image.fill_rectangle(left - 1 - kTick, kMapTop + static_cast<int>(std::lround(y)), kTick, 1,
                         kInk);
    draw_text(image, left - kTick - 6, kMapTop + y - kLabelHeight / 2, kLabelHeight,
              degrees(latitude, 'N', 'S'), kInk, Align::kRight);
  }
}

double limit_of_most(std::vector<float> errors) {
  for (float& error : errors) error = std::abs(error);
  const auto nth = errors.begin() + static_cast<int64_t>(kErrorQuantile * (errors.size() - 1));
  std::nth_element(errors.begin(), nth, errors.end());
  return jobs::limit_of(std::span(&*nth, 1));
}

}  // namespace

Image draw_figure(const Map& map, std::span<const float> truth, std::span<const float> prediction,
                  const std::string& title) {
  const size_t points = static_cast<size_t>(map.rows) * map.columns;
  if (truth.size() != points || prediction.size() != points) {
    throw std::invalid_argument("draw_figure: a map of " + std::to_string(points) +
                                " points, but " + std::to_string(truth.size()) + " true and " +
                                std::to_string(prediction.size()) + " predicted values");
  }
  const std::vector<float> error = jobs::difference(prediction, truth);
  const double field = jobs::limit_of(truth);
  const double range = limit_of_most(error);
  const bool is_wide = map.columns >= kWide;
  const Panel panels[] = {{is_wide ? "Truth: geoid undulation, m" : "Truth, m", truth, field},
                          {"Prediction, m", prediction, field},
                          {is_wide ? "Error: prediction - truth, m" : "Error, m", error, range}};

  const int panel_width = kLatitudeWidth + map.columns;
  Image image(2 * kMargin + 3 * panel_width + 2 * kGap,
              kMapTop + map.rows + kBarDrop + kBarHeight + kBelowBar, jobs::kPaper);
  draw_text(image, kMargin, kMargin, kTitleHeight, title, kInk);
  int left = kMargin + kLatitudeWidth;
  for (const Panel& panel : panels) {
    draw_text(image, left, kMapTop - 28, kPanelTitleHeight, panel.title, kInk);
    draw_map(image, left, map, panel);
    draw_graticule(image, left, map);
    const int bar_width = map.columns * 3 / 4;
    jobs::draw_colour_bar(image, left + (map.columns - bar_width) / 2,
                          kMapTop + map.rows + kBarDrop, bar_width, -1, 1, panel.limit, "m");
    left += panel_width + kGap;
  }
  return image;
}

}  // namespace meshrun::geoid
