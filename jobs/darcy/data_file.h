// Samples of Darcy flow in an HDF5 file. Without LibTorch.
//
//   /permeability   [samples, rows, columns], any float type; read as float32
//   /pressure       the same shape
//   attribute "parameters" of the root group (optional): text, how the samples were made
//
// Errors: DataError names the file and what is wrong with it. Threads: one at a time.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace meshrun::darcy {

class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct DataShape {
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t cells() const { return rows * columns; }
  friend bool operator==(const DataShape&, const DataShape&) = default;
};

// Open for reading.
class DataFile {
 public:
  explicit DataFile(const std::string& path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const DataShape& shape() const { return shape_; }
  // Empty where the file does not say.
  const std::string& parameters() const { return parameters_; }

  // Samples [first, first + count), row-major, into memory for count * cells() numbers each. Raises
  // for a number that is not finite, or a permeability that is not positive.
  void read(int64_t first, int64_t count, float* permeability, float* pressure) const;

 private:
  void read_set(const char* name, int64_t first, int64_t count, float* values) const;
  void close();

  const std::string path_;
  int64_t file_ = -1;
  DataShape shape_;
  std::string parameters_;
};

// Writes a file beside `path`, flushes it and renames it. The arrays have shape.samples *
// shape.cells() numbers.
void write_data_file(const std::string& path, const DataShape& shape, const float* permeability,
                     const float* pressure, const std::string& parameters);

}  // namespace meshrun::darcy
