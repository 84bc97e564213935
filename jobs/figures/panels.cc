#include "jobs/figures/panels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "jobs/figures/colour_bar.h"
#include "jobs/figures/colour_map.h"
#include "jobs/figures/text.h"

namespace meshrun::jobs {
namespace {

constexpr int kMargin = 36;
constexpr int kGap = 56;
constexpr int kPanelWidth = 256;
constexpr int kTitleHeight = 18;
constexpr int kBelowTitle = 24;
constexpr int kPanelTitleHeight = 12;
constexpr int kAboveMap = 28;
constexpr int kBarDrop = 16;
constexpr int kBelowBar = 52;

int height_of(const FieldPanel& panel) {
  return std::max(1, kPanelWidth * panel.rows / std::max(1, panel.columns));
}

int row_height(const std::vector<FieldPanel>& row) {
  int highest = 1;
  for (const FieldPanel& panel : row) highest = std::max(highest, height_of(panel));
  return kAboveMap + highest + kBarDrop + kBarHeight + kBelowBar;
}

void draw_panel(Image& image, int left, int top, const FieldPanel& panel) {
  draw_text(image, left, top, kPanelTitleHeight, panel.title, kInk);
  const int height = height_of(panel);
  const int map_top = top + kAboveMap;
  for (int y = 0; y < height; ++y) {
    const int row = y * panel.rows / height;
    for (int x = 0; x < kPanelWidth; ++x) {
      const int column = x * panel.columns / kPanelWidth;
      const float value = panel.values[static_cast<size_t>(row) * panel.columns + column];
      image.set(left + x, map_top + y, diverging_colour(value / panel.limit));
    }
  }
  image.outline_rectangle(left, map_top, kPanelWidth, height, kInk);
  draw_colour_bar(image, left, map_top + height + kBarDrop, kPanelWidth, panel.is_signed ? -1 : 0,
                  1, panel.limit, "");
}

}  // namespace

Image draw_panels(const std::string& title, const std::vector<std::vector<FieldPanel>>& rows) {
  int width = static_cast<int>(text_width(kTitleHeight, title));
  int height = 2 * kMargin + kTitleHeight + kBelowTitle;
  for (const std::vector<FieldPanel>& row : rows) {
    const int panels = static_cast<int>(row.size());
    width = std::max(width, panels * kPanelWidth + (panels - 1) * kGap);
    height += row_height(row);
    for (const FieldPanel& panel : row) {
      const size_t cells = static_cast<size_t>(panel.rows) * panel.columns;
      if (panel.values.size() != cells || cells == 0) {
        throw std::invalid_argument("draw_panels: \"" + panel.title + "\" has " +
                                    std::to_string(panel.values.size()) + " values for " +
                                    std::to_string(panel.rows) + " x " +
                                    std::to_string(panel.columns) + " cells");
      }
    }
  }
  Image image(width + 2 * kMargin, height, kPaper);
  draw_text(image, kMargin, kMargin, kTitleHeight, title, kInk);
  int top = kMargin + kTitleHeight + kBelowTitle;
  for (const std::vector<FieldPanel>& row : rows) {
    int left = kMargin;
    for (const FieldPanel& panel : row) {
      draw_panel(image, left, top, panel);
      left += kPanelWidth + kGap;
    }
    top += row_height(row);
  }
  return image;
}

double limit_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest > 0 ? round_up_nicely(largest) : 1;
}

std::vector<float> difference(std::span<const float> predicted, std::span<const float> truth) {
  std::vector<float> result(truth.size());
  std::transform(predicted.begin(), predicted.end(), truth.begin(), result.begin(), std::minus());
  return result;
}

}  // namespace meshrun::jobs
