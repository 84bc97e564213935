// A diverging colour map: blue below zero, nearly white at zero, red above, equally dark at both
// ends.
#pragma once

#include "jobs/figures/image.h"

namespace meshrun::jobs {

// `value` in [-1, 1]; what lies outside takes the colour of that end, a NaN is grey.
Colour diverging_colour(double value);

// The smallest of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10 times a power of ten that is at least
// `value`, which is positive: a limit that reads well beside a colour bar.
double round_up_nicely(double value);

}  // namespace meshrun::jobs
