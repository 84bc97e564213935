// An 8-bit RGB picture in memory, and its PNG form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshrun::jobs {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;

  friend bool operator==(const Colour&, const Colour&) = default;
};

class Image {
 public:
  // Raises std::invalid_argument where a side is not positive or above 32768.
  Image(int width, int height, Colour background);

  int width() const { return width_; }
  int height() const { return height_; }
  // Row 0 is the top one. The pixel must exist.
  Colour at(int x, int y) const { return pixels_[index(x, y)]; }

  // Drawing outside the picture has no effect.
  void set(int x, int y, Colour colour);
  // Mixes `colour` in; `opacity` from 0 to 1.
  void blend(int x, int y, Colour colour, double opacity);
  void fill_rectangle(int x, int y, int width, int height, Colour colour);
  // The four edges just outside the rectangle.
  void outline_rectangle(int x, int y, int width, int height, Colour colour);

 private:
  size_t index(int x, int y) const { return static_cast<size_t>(y) * width_ + x; }
  bool contains(int x, int y) const { return x >= 0 && y >= 0 && x < width_ && y < height_; }

  int width_;
  int height_;
  std::vector<Colour> pixels_;
};

// The bytes of a PNG file. Raises std::runtime_error with libpng's message.
std::string encode_png(const Image& image);

}  // namespace meshrun::jobs
