#include "jobs/figures/colour_map.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace meshrun::jobs {
namespace {

struct Oklab {
  double lightness, a, b;
};

double to_linear(uint8_t channel) {
  const double value = channel / 255.0;
  return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
}

uint8_t from_linear(double value) {
  const double encoded =
      value <= 0.0031308 ? 12.92 * value : 1.055 * std::pow(value, 1 / 2.4) - 0.055;
  return static_cast<uint8_t>(std::lround(255 * std::clamp(encoded, 0.0, 1.0)));
}

// Björn Ottosson, "A perceptual color space for image processing" (2020): equal steps look equal.
Oklab to_oklab(Colour colour) {
  const double red = to_linear(colour.red);
  const double green = to_linear(colour.green);
  const double blue = to_linear(colour.blue);
  const double l = std::cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue);
  const double m = std::cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue);
  const double s = std::cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

Colour from_oklab(const Oklab& colour) {
  const auto cube = [](double value) { return value * value * value; };
  const double l = cube(colour.lightness + 0.3963377774 * colour.a + 0.2158037573 * colour.b);
  const double m = cube(colour.lightness - 0.1055613458 * colour.a - 0.0638541728 * colour.b);
  const double s = cube(colour.lightness - 0.0894841775 * colour.a - 1.2914855480 * colour.b);
  return {from_linear(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          from_linear(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          from_linear(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

// At -1, -2/3, ..., 1; between them the way is straight in Oklab.
constexpr std::array<Colour, 7> kAnchors = {{{16, 42, 104},
                                             {52, 116, 186},
                                             {158, 202, 228},
                                             {247, 247, 244},
                                             {244, 180, 142},
                                             {204, 78, 66},
                                             {103, 10, 36}}};
constexpr Colour kNotANumber = {150, 150, 150};

}  // namespace

Colour diverging_colour(double value) {
  if (std::isnan(value)) return kNotANumber;
  const double position = (std::clamp(value, -1.0, 1.0) + 1) / 2 * (kAnchors.size() - 1);
  const size_t below = std::min<size_t>(static_cast<size_t>(position), kAnchors.size() - 2);
  const double share = position - static_cast<double>(below);
  const Oklab from = to_oklab(kAnchors[below]);
  const Oklab to = to_oklab(kAnchors[below + 1]);
  return from_oklab({std::lerp(from.lightness, to.lightness, share), std::lerp(from.a, to.a, share),
                     std::lerp(from.b, to.b, share)});
}

double round_up_nicely(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double step : {1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (step * power >= value) return step * power;
  }
  return 10 * power;
}

}  // namespace meshrun::jobs
