// Reads a vertical grid in PROJ's GTX format.
//
// The file: 40 bytes of big-endian header (south latitude, west longitude, latitude step and
// longitude step in degrees as f64; rows and columns as i32), then rows x columns big-endian f32 in
// metres, from south to north, each row from west to east. EGM96 is /usr/share/proj/egm96_15.gtx of
// Debian's proj-data: 721 x 1440 points, 0.25 degrees apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace meshrun::geoid {

struct GtxGrid {
  double south = 0;
  double west = 0;
  double latitude_step = 0;
  double longitude_step = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> metres;  // [rows * columns], south to north

  int64_t size() const { return rows * columns; }
  double latitude(int64_t row) const { return south + static_cast<double>(row) * latitude_step; }
  double longitude(int64_t column) const {
    return west + static_cast<double>(column) * longitude_step;
  }
};

// What is wrong with a data file: its path, the bytes expected and found, what to install.
class GtxError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Raises GtxError where the file cannot be read, is shorter or longer than its header says, leaves
// the Earth (latitudes beyond the poles), visits a longitude twice, or holds a value that is not a
// height.
GtxGrid read_gtx(const std::string& path);

// Where EGM96 is for a program: share/meshrun/egm96_15.gtx in a directory above it, as tools/bundle
// lays it out; else where Debian's proj-data has it.
std::string find_egm96(const std::filesystem::path& program);
// For this program.
std::string find_egm96();

}  // namespace meshrun::geoid
