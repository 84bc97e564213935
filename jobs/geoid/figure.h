// The picture of a trained geoid: truth, prediction and error beside each other, each with a colour
// bar.
#pragma once

#include <span>
#include <string>

#include "jobs/figures/image.h"

namespace meshrun::geoid {

// A map on a regular grid from south to north, each row from west to east.
struct Map {
  int rows = 0;
  int columns = 0;
  double south = 0;
  double west = 0;
  double latitude_step = 0;
  double longitude_step = 0;
};

// `truth` and `prediction` are [rows * columns] in metres; the error is prediction minus truth.
// Raises std::invalid_argument where their sizes differ from the map's.
jobs::Image draw_figure(const Map& map, std::span<const float> truth,
                        std::span<const float> prediction, const std::string& title);

}  // namespace meshrun::geoid
