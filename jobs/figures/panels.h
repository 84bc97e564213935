// Pictures of fields in rows of panels, each with a title and a colour bar.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "jobs/figures/image.h"

namespace meshrun::jobs {

struct FieldPanel {
  std::string title;
  // [rows * columns], the first row at the top.
  std::span<const float> values;
  int rows = 0;
  int columns = 0;
  // The ends of the colour bar: 0 and `limit`, or, if `is_signed`, -limit and limit.
  double limit = 1;
  bool is_signed = false;
};

// All panels are drawn equally wide. Raises std::invalid_argument where a panel's values are not
// rows * columns.
Image draw_panels(const std::string& title, const std::vector<std::vector<FieldPanel>>& rows);

// An end for a colour bar that shows all of `values`.
double limit_of(std::span<const float> values);

// predicted - truth, value by value; both have the same size.
std::vector<float> difference(std::span<const float> predicted, std::span<const float> truth);

}  // namespace meshrun::jobs
