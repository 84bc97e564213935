#include "jobs/figures/image.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace meshrun::jobs {
namespace {

constexpr int kMaxSide = 32768;

static_assert(sizeof(Colour) == 3, "libpng reads the pixels as packed RGB");

}  // namespace

Image::Image(int width, int height, Colour background) : width_(width), height_(height) {
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide) {
    throw std::invalid_argument("an image cannot be " + std::to_string(width) + " x " +
                                std::to_string(height) + " pixels");
  }
  pixels_.assign(static_cast<size_t>(width) * height, background);
}

void Image::set(int x, int y, Colour colour) {
  if (contains(x, y)) pixels_[index(x, y)] = colour;
}

void Image::blend(int x, int y, Colour colour, double opacity) {
  if (!contains(x, y)) return;
  const double share = std::clamp(opacity, 0.0, 1.0);
  const auto mix = [share](uint8_t below, uint8_t above) {
    return static_cast<uint8_t>(std::lround(below + share * (above - below)));
  };
  Colour& pixel = pixels_[index(x, y)];
  pixel = {mix(pixel.red, colour.red), mix(pixel.green, colour.green),
           mix(pixel.blue, colour.blue)};
}

void Image::fill_rectangle(int x, int y, int width, int height, Colour colour) {
  for (int row = y; row < y + height; ++row) {
    for (int column = x; column < x + width; ++column) set(column, row, colour);
  }
}

void Image::outline_rectangle(int x, int y, int width, int height, Colour colour) {
  fill_rectangle(x - 1, y - 1, width + 2, 1, colour);
  fill_rectangle(x - 1, y + height, width + 2, 1, colour);
  fill_rectangle(x - 1, y, 1, height, colour);
  fill_rectangle(x + width, y, 1, height, colour);
}

std::string encode_png(const Image& image) {
  std::vector<Colour> pixels;
  pixels.reserve(static_cast<size_t>(image.width()) * image.height());
  for (int y = 0; y < image.height(); ++y) {
    for (int x = 0; x < image.width(); ++x) pixels.push_back(image.at(x, y));
  }
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width());
  header.height = static_cast<png_uint_32>(image.height());
  header.format = PNG_FORMAT_RGB;

  std::string bytes;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(header);
  bytes.resize(size);
  const int encoded = png_image_write_to_memory(&header, bytes.data(), &size,
                                                /*convert_to_8_bit=*/0, pixels.data(),
                                                /*row_stride=*/0, /*colormap=*/nullptr);
  if (encoded == 0) throw std::runtime_error(std::string("libpng: ") + header.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace meshrun::jobs
