#include "jobs/darcy/data_file.h"

#include <hdf5/serial/hdf5.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>

#include "core/os/files.h"

namespace meshrun::darcy {
namespace {

constexpr char kPermeability[] = "permeability";
constexpr char kPressure[] = "pressure";
constexpr char kParameters[] = "parameters";
constexpr int kDimensions = 3;

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw DataError("Darcy data " + path + ": " + problem);
}

// One of HDF5's handles.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// HDF5 prints its errors otherwise; ours say more.
void be_silent() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

std::string text(const std::array<hsize_t, kDimensions>& shape) {
  return std::to_string(shape[0]) + " x " + std::to_string(shape[1]) + " x " +
         std::to_string(shape[2]);
}

DataShape shape_of(const std::string& path, hid_t file, const char* name) {
  if (H5Lexists(file, name, H5P_DEFAULT) <= 0) {
    fail(path, std::string("it has no dataset \"") + name + "\"; the layout is /permeability and " +
                   "/pressure, both [samples, rows, columns]");
  }
  const Handle set(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  if (!set.ok()) fail(path, std::string(name) + " is not a dataset");
  const Handle space(H5Dget_space(set.get()), H5Sclose);
  const Handle type(H5Dget_type(set.get()), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_FLOAT) {
    fail(path, std::string(name) + " does not hold floating-point numbers");
  }
  const int dimensions = H5Sget_simple_extent_ndims(space.get());
  if (dimensions != kDimensions) {
    fail(path, std::string(name) + " has " + std::to_string(dimensions) +
                   " dimensions; the layout is [samples, rows, columns]");
  }
  std::array<hsize_t, kDimensions> extents{};
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  if (extents[0] < 1 || extents[1] < 2 || extents[2] < 2) {
    fail(path, std::string(name) + " is " + text(extents) + ": at least 1 x 2 x 2 is needed");
  }
  return {static_cast<int64_t>(extents[0]), static_cast<int64_t>(extents[1]),
          static_cast<int64_t>(extents[2])};
}

std::string parameters_of(const std::string& path, hid_t file) {
  if (H5Aexists(file, kParameters) <= 0) return "";
  const Handle attribute(H5Aopen(file, kParameters, H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  if (!attribute.ok() || H5Tget_class(type.get()) != H5T_STRING ||
      H5Tis_variable_str(type.get()) != 0) {
    return "";  // of a file that others made
  }
  std::string value(H5Tget_size(type.get()), '\0');
  if (H5Aread(attribute.get(), type.get(), value.data()) < 0) {
    fail(path, "its attribute \"parameters\" cannot be read");
  }
  return value.substr(0, value.find('\0'));
}

std::string place(const DataShape& shape, int64_t first, int64_t index) {
  return "sample " + std::to_string(first + index / shape.cells()) + ", row " +
         std::to_string(index % shape.cells() / shape.columns) + ", column " +
         std::to_string(index % shape.columns);
}

void write_set(hid_t file, const char* name, const DataShape& shape, const float* values,
               const std::function<void(bool)>& check) {
  const std::array<hsize_t, kDimensions> extents = {static_cast<hsize_t>(shape.samples),
                                                    static_cast<hsize_t>(shape.rows),
                                                    static_cast<hsize_t>(shape.columns)};
  const Handle space(H5Screate_simple(kDimensions, extents.data(), nullptr), H5Sclose);
  const Handle set(
      H5Dcreate2(file, name, H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Dclose);
  check(space.ok() && set.ok() &&
        H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
}

void write_text(hid_t file, const char* name, const std::string& value,
                const std::function<void(bool)>& check) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  check(H5Tset_size(type.get(), value.size() + 1) >= 0);
  const Handle attribute(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT),
                         H5Aclose);
  check(attribute.ok() && H5Awrite(attribute.get(), type.get(), value.c_str()) >= 0);
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path) {
  be_silent();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) fail(path, "does not exist");
  if (std::filesystem::is_directory(path, ignored)) fail(path, "is a directory");
  if (::access(path.c_str(), R_OK) != 0) fail(path, std::strerror(errno));
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file_ < 0) fail(path, "is not an HDF5 file, or is truncated");
  try {
    shape_ = shape_of(path, file_, kPermeability);
    const DataShape pressure = shape_of(path, file_, kPressure);
    if (pressure != shape_) {
      const auto words = [](const DataShape& shape) {
        return std::to_string(shape.samples) + " x " + std::to_string(shape.rows) + " x " +
               std::to_string(shape.columns);
      };
      fail(path, "permeability is " + words(shape_) + ", but pressure " + words(pressure));
    }
    parameters_ = parameters_of(path, file_);
  } catch (...) {
    close();
    throw;
  }
}

DataFile::~DataFile() { close(); }

void DataFile::close() {
  if (file_ >= 0) H5Fclose(file_);
  file_ = -1;
}

void DataFile::read(int64_t first, int64_t count, float* permeability, float* pressure) const {
  read_set(kPermeability, first, count, permeability);
  read_set(kPressure, first, count, pressure);
  for (int64_t i = 0; i < count * shape_.cells(); ++i) {
    if (!std::isfinite(permeability[i]) || permeability[i] <= 0) {
      fail(path_, "the permeability at " + place(shape_, first, i) + " is " +
                      std::to_string(permeability[i]) + "; it must be positive");
    }
    if (!std::isfinite(pressure[i])) {
      fail(path_, "the pressure at " + place(shape_, first, i) + " is not finite");
    }
  }
}

void DataFile::read_set(const char* name, int64_t first, int64_t count, float* values) const {
  const std::array<hsize_t, kDimensions> start = {static_cast<hsize_t>(first), 0, 0};
  const std::array<hsize_t, kDimensions> extents = {static_cast<hsize_t>(count),
                                                    static_cast<hsize_t>(shape_.rows),
                                                    static_cast<hsize_t>(shape_.columns)};
  const Handle set(H5Dopen2(file_, name, H5P_DEFAULT), H5Dclose);
  const Handle in_file(H5Dget_space(set.get()), H5Sclose);
  const Handle in_memory(H5Screate_simple(kDimensions, extents.data(), nullptr), H5Sclose);
  const bool read = H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, start.data(), nullptr,
                                        extents.data(), nullptr) >= 0 &&
                    H5Dread(set.get(), H5T_NATIVE_FLOAT, in_memory.get(), in_file.get(),
                            H5P_DEFAULT, values) >= 0;
  if (!read) {
    fail(path_, "samples " + std::to_string(first) + " to " + std::to_string(first + count - 1) +
                    " of " + name + " cannot be read; the file is damaged");
  }
}

void write_data_file(const std::string& path, const DataShape& shape, const float* permeability,
                     const float* pressure, const std::string& parameters) {
  be_silent();
  const std::string aside = path + "." + std::to_string(::getpid()) + ".new";
  const auto check = [&](bool done) {
    if (done) return;
    const std::string reason = errno != 0 ? std::strerror(errno) : "HDF5 refuses";
    std::remove(aside.c_str());
    fail(path, "cannot be written: " + reason);
  };
  errno = 0;
  {
    const Handle file(H5Fcreate(aside.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    check(file.ok());
    write_set(file.get(), kPermeability, shape, permeability, check);
    write_set(file.get(), kPressure, shape, pressure, check);
    write_text(file.get(), kParameters, parameters, check);
    check(H5Fflush(file.get(), H5F_SCOPE_LOCAL) >= 0);
  }
  const absl::Status published = os::PublishFile(aside, path);
  if (!published.ok()) fail(path, "cannot be written: " + std::string(published.message()));
}

}  // namespace meshrun::darcy
