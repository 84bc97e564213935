#include "jobs/geoid/gtx.h"

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace meshrun::geoid {
namespace {

constexpr int64_t kHeaderBytes = 40;
constexpr int64_t kValueBytes = 4;
// Far above any grid that PROJ ships; a header beyond it is not a header.
constexpr int64_t kMaxPointsPerSide = 100'000;
// No geoid or vertical datum departs from its ellipsoid by more.
constexpr float kMaxMetres = 1000.0F;
// Headers carry steps such as 1/60 rounded to f64.
constexpr double kDegreeTolerance = 1e-6;
constexpr char kRemedy[] =
    "; install Debian's package proj-data (apt install proj-data), which brings "
    "/usr/share/proj/egm96_15.gtx, or pass another GTX file with --data";

template <typename... Parts>
[[noreturn]] void fail(const std::string& path, const Parts&... parts) {
  std::ostringstream message;
  message << "geoid data file " << path << ": ";
  (message << ... << parts) << kRemedy;
  throw GtxError(message.str());
}

uint64_t load_big_endian(const char* bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

double load_f64(const char* bytes) { return std::bit_cast<double>(load_big_endian(bytes, 8)); }

int32_t load_i32(const char* bytes) {
  return static_cast<int32_t>(static_cast<uint32_t>(load_big_endian(bytes, 4)));
}

float load_f32(const char* bytes) {
  return std::bit_cast<float>(static_cast<uint32_t>(load_big_endian(bytes, 4)));
}

std::string read_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "does not exist");
  if (error) fail(path, "cannot be read (", error.message(), ")");
  if (status.type() == std::filesystem::file_type::directory) {
    fail(path, "is a directory, not a GTX file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be opened (", std::strerror(errno), ")");
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) fail(path, "cannot be read to its end");
  return std::move(content).str();
}

GtxGrid parse_header(const std::string& path, const std::string& bytes) {
  GtxGrid grid;
  grid.south = load_f64(bytes.data());
  grid.west = load_f64(bytes.data() + 8);
  grid.latitude_step = load_f64(bytes.data() + 16);
  grid.longitude_step = load_f64(bytes.data() + 24);
  grid.rows = load_i32(bytes.data() + 32);
  grid.columns = load_i32(bytes.data() + 36);

  const bool sides_are_sane = grid.rows >= 2 && grid.columns >= 2 &&
                              grid.rows <= kMaxPointsPerSide && grid.columns <= kMaxPointsPerSide;
  if (!sides_are_sane) {
    fail(path, "bad header: ", grid.rows, " rows and ", grid.columns, " columns, expected 2 to ",
         kMaxPointsPerSide, " of each");
  }
  // Written so that a NaN is refused too.
  const bool steps_are_positive = grid.latitude_step > 0 && grid.longitude_step > 0;
  if (!steps_are_positive) {
    fail(path, "bad header: steps of ", grid.latitude_step, " and ", grid.longitude_step,
         " degrees, expected positive numbers");
  }
  const double north = grid.latitude(grid.rows - 1);
  if (!(grid.south >= -90 - kDegreeTolerance && north <= 90 + kDegreeTolerance)) {
    fail(path, "bad header: latitudes from ", grid.south, " to ", north,
         " degrees, expected within -90 to 90");
  }
  const double span = static_cast<double>(grid.columns) * grid.longitude_step;
  if (!(grid.west >= -360 && grid.west <= 360 && span <= 360 + kDegreeTolerance)) {
    fail(path, "bad header: longitudes from ", grid.west, " on, ", span,
         " degrees wide, expected at most 360 so that none runs twice");
  }
  return grid;
}

}  // namespace

GtxGrid read_gtx(const std::string& path) {
  const std::string bytes = read_file(path);
  const auto found = static_cast<int64_t>(bytes.size());
  if (found < kHeaderBytes) {
    fail(path, "truncated header, expected ", kHeaderBytes, " bytes, found ", found);
  }
  GtxGrid grid = parse_header(path, bytes);
  const int64_t expected = kHeaderBytes + grid.size() * kValueBytes;
  if (found != expected) {
    fail(path, found < expected ? "truncated" : "too long", ", expected ", expected, " bytes (",
         grid.rows, " x ", grid.columns, " values after the header), found ", found);
  }
  grid.metres.resize(grid.size());
  for (int64_t i = 0; i < grid.size(); ++i) {
    const float metres = load_f32(bytes.data() + kHeaderBytes + i * kValueBytes);
    if (!(std::abs(metres) <= kMaxMetres)) {
      fail(path, "value ", metres, " at row ", i / grid.columns, ", column ", i % grid.columns,
           " is not a height in metres");
    }
    grid.metres[i] = metres;
  }
  return grid;
}

std::string find_egm96(const std::filesystem::path& program) {
  std::error_code ignored;
  for (auto above = program.parent_path(); above.has_relative_path(); above = above.parent_path()) {
    const std::filesystem::path file = above / "share/meshrun/egm96_15.gtx";
    if (std::filesystem::is_regular_file(file, ignored)) return file.string();
  }
  return "/usr/share/proj/egm96_15.gtx";
}

std::string find_egm96() {
  std::error_code ignored;
  return find_egm96(std::filesystem::read_symlink("/proc/self/exe", ignored));
}

}  // namespace meshrun::geoid
