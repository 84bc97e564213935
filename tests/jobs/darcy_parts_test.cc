// The parts of the darcy job that need no ranks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5/serial/hdf5.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <set>
#include <string>
#include <vector>

#include "jobs/darcy/data.h"
#include "jobs/darcy/data_file.h"
#include "jobs/darcy/medium.h"
#include "jobs/darcy/options.h"
#include "jobs/darcy/solver.h"
#include "jobs/figures/panels.h"
#include "jobs/runtime/epoch_sampler.h"
#include "jobs/runtime/job.h"

namespace meshrun::darcy {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// --- solver ---

Tensor centres(int64_t cells) {
  return (at::arange(cells, at::kDouble) + 0.5) / static_cast<double>(cells);
}

// p = sin(pi x) sin(2 pi y), k = exp(x + y / 2): the relative error in the L2 norm.
double manufactured_error(int64_t rows, int64_t columns) {
  const std::vector<Tensor> grid = at::meshgrid({centres(rows), centres(columns)}, "ij");
  const Tensor& y = grid[0];
  const Tensor& x = grid[1];
  constexpr double kPi = std::numbers::pi;
  const Tensor p = at::sin(kPi * x) * at::sin(2 * kPi * y);
  const Tensor p_x = kPi * at::cos(kPi * x) * at::sin(2 * kPi * y);
  const Tensor p_y = 2 * kPi * at::sin(kPi * x) * at::cos(2 * kPi * y);
  const Tensor laplacian = -5 * kPi * kPi * p;
  const Tensor k = at::exp(x + y / 2);
  const Tensor f = -k * (p_x + p_y / 2 + laplacian);
  const Solution solution = solve_darcy(k.unsqueeze(0), f, 1e-10);
  return ((solution.pressure[0] - p).norm() / p.norm()).item<double>();
}

TEST(DarcySolverTest, ConvergesInSecondOrderToAManufacturedSolution) {
  for (const double aspect : {1.0, 1.5}) {
    const auto rows = [aspect](int64_t columns) { return static_cast<int64_t>(aspect * columns); };
    const double coarse = manufactured_error(rows(16), 16);
    const double middle = manufactured_error(rows(32), 32);
    const double fine = manufactured_error(rows(64), 64);
    EXPECT_NEAR(std::log2(coarse / middle), 2, 0.1);
    EXPECT_NEAR(std::log2(middle / fine), 2, 0.05);
    EXPECT_LT(fine, 2e-3);
  }
}

TEST(DarcySolverTest, LayersInSeriesHaveTheHarmonicMeanExactly) {
  // Flow across two layers: k dp/dx is continuous, so p is piecewise quadratic for f = 1. With f =
  // 0 but in one row of cells it is piecewise linear, which the scheme reproduces.
  const int64_t n = 32;
  Tensor k = at::ones({1, n, n}, at::kDouble);
  k.narrow(1, n / 2, n / 2).fill_(100);
  const DarcyOperator a(k);
  const Tensor ones = at::ones_like(k);
  // A constant pressure has no flux inside; the boundary's is 2 k / d^2 per face.
  const Tensor flux = a.apply(ones);
  EXPECT_EQ(flux[0][5][5].item<double>(), 0);
  EXPECT_DOUBLE_EQ(flux[0][0][5].item<double>(), 2.0 * n * n);
  EXPECT_DOUBLE_EQ(flux[0][n - 1][5].item<double>(), 200.0 * n * n);
  Tensor step = at::zeros_like(k);
  step.narrow(1, n / 2, n / 2).fill_(1);
  const double harmonic = 2 * 1 * 100.0 / 101;
  EXPECT_NEAR(a.apply(step)[0][n / 2][7].item<double>(), harmonic * n * n, 1e-6);
}

TEST(DarcySolverTest, TheOperatorIsSymmetricAndPositive) {
  const Tensor k = permeability_of(gaussian_fields(3, 0, 2, 12, 9), "lognormal");
  const DarcyOperator a(k);
  const Tensor u = at::randn_like(k);
  const Tensor v = at::randn_like(k);
  EXPECT_NEAR((u * a.apply(v)).sum().item<double>(), (v * a.apply(u)).sum().item<double>(), 1e-6);
  EXPECT_GT((u * a.apply(u)).sum().item<double>(), 0);
  // The diagonal is what apply() has on it.
  Tensor unit = at::zeros_like(k);
  unit[1][4][0] = 1;
  EXPECT_DOUBLE_EQ(a.apply(unit)[1][4][0].item<double>(), a.diagonal()[1][4][0].item<double>());
}

TEST(DarcySolverTest, EveryResidualIsSmallAndSamplesDoNotTouchEachOther) {
  for (const std::string medium : {"threshold", "lognormal"}) {
    const Tensor k = permeability_of(gaussian_fields(1, 0, 5, 24, 24), medium);
    const Tensor f = at::ones({24, 24}, at::kDouble);
    const Solution together = solve_darcy(k, f);
    const DarcyOperator a(k);
    const Tensor residual = (f - a.apply(together.pressure)).flatten(1).norm(2, 1) / f.norm();
    EXPECT_LE(residual.max().item<double>(), 1e-8);
    EXPECT_TRUE(at::allclose(residual, together.relative_residual, 1e-6, 1e-14));
    EXPECT_GT(together.pressure.min().item<double>(), 0) << "the maximum principle";
    const Solution alone = solve_darcy(k.narrow(0, 3, 1), f);
    EXPECT_TRUE(at::allclose(alone.pressure[0], together.pressure[3], 1e-12, 1e-16));
  }
}

TEST(DarcySolverTest, RefusesWhatHasNoSolution) {
  const Tensor f = at::ones({4, 4}, at::kDouble);
  EXPECT_THROW(solve_darcy(at::zeros({1, 4, 4}, at::kDouble), f), c10::ValueError);
  EXPECT_THROW(solve_darcy(at::ones({1, 4, 4}, at::kFloat), f), c10::ValueError);
  EXPECT_THROW(solve_darcy(at::ones({4, 4}, at::kDouble), f), c10::ValueError);
  EXPECT_THROW(solve_darcy(at::ones({1, 4, 4}, at::kDouble), f.to(at::kFloat)), c10::ValueError);
  EXPECT_THROW(solve_darcy(at::rand({1, 32, 32}, at::kDouble) + 0.01,
                           at::ones({32, 32}, at::kDouble), 1e-8, 3),
               SolverError);
  const Solution none = solve_darcy(at::ones({1, 4, 4}, at::kDouble), 0 * f);
  EXPECT_EQ(none.pressure.abs().max().item<double>(), 0);
}

// --- media ---

TEST(MediumTest, ASampleIsAFunctionOfSeedAndNumber) {
  const Tensor all = gaussian_fields(1, 0, 6, 16, 16);
  EXPECT_TRUE(at::allclose(gaussian_fields(1, 4, 2, 16, 16), all.narrow(0, 4, 2), 0, 1e-13));
  EXPECT_FALSE(at::allclose(gaussian_fields(2, 0, 6, 16, 16), all));
  EXPECT_EQ(gaussian_fields(1, 0, 0, 16, 16).size(0), 0);
}

TEST(MediumTest, TheFieldHasItsVarianceAndTheMediaTheirValues) {
  const Tensor fields = gaussian_fields(5, 0, 400, 16, 16);
  double variance = 0;
  for (int row = 0; row < 16; ++row) {
    for (int column = row == 0 ? 1 : 0; column < 16; ++column) {
      const double wave = std::numbers::pi * std::numbers::pi * (row * row + column * column);
      variance += std::pow(3 / (wave + 9), 2);
    }
  }
  EXPECT_NEAR(fields.square().mean().item<double>() / variance, 1, 0.1);
  const Tensor threshold = permeability_of(fields, "threshold");
  EXPECT_TRUE(at::logical_or(threshold.eq(3), threshold.eq(12)).all().item<bool>());
  EXPECT_TRUE(at::equal(threshold.eq(12), fields.gt(0)));
  const Tensor logs = permeability_of(fields, "lognormal").log();
  EXPECT_NEAR(logs.square().mean().item<double>(), 1, 0.1);
  EXPECT_THROW(permeability_of(fields, "sponge"), c10::ValueError);
}

// --- files ---

class DataFileTest : public testing::Test {
 protected:
  DataFileTest() {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  // Counts from 1, so permeabilities are positive.
  std::vector<float> numbers(const DataShape& shape, float from = 1) const {
    std::vector<float> values(static_cast<size_t>(shape.samples * shape.cells()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = from + static_cast<float>(i);
    return values;
  }
  void write(const std::string& path, const DataShape& shape) const {
    write_data_file(path, shape, numbers(shape).data(), numbers(shape, 100).data(), "made so");
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  void expect_refused(const std::string& file, const std::string& reason) const {
    EXPECT_THAT([&] { DataFile opened(file); },
                ThrowsMessage<DataError>(AllOf(HasSubstr(file), HasSubstr(reason))));
  }

  const std::string directory_ = testing::TempDir() + "darcy_files";
};

TEST_F(DataFileTest, ComesBackAsItWasWrittenInAnyPart) {
  const DataShape shape{5, 3, 4};
  write(path("a.h5"), shape);
  const DataFile file(path("a.h5"));
  EXPECT_EQ(file.shape(), shape);
  EXPECT_EQ(file.parameters(), "made so");
  std::vector<float> permeability(24);
  std::vector<float> pressure(24);
  file.read(2, 2, permeability.data(), pressure.data());
  EXPECT_EQ(permeability.front(), 25);
  EXPECT_EQ(permeability.back(), 48);
  EXPECT_EQ(pressure.front(), 124);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1) << "nothing is left aside";
}

TEST_F(DataFileTest, WhatIsNoDataFileIsNamed) {
  expect_refused(path("absent.h5"), "does not exist");
  expect_refused(directory_, "is a directory");
  std::ofstream(path("text.h5")) << "not HDF5";
  expect_refused(path("text.h5"), "not an HDF5 file");
  write(path("whole.h5"), {5, 3, 4});
  const auto size = fs::file_size(path("whole.h5"));
  for (const auto cut : {size / 10, size / 2, size - 1}) {
    fs::copy_file(path("whole.h5"), path("cut.h5"), fs::copy_options::overwrite_existing);
    fs::resize_file(path("cut.h5"), cut);
    expect_refused(path("cut.h5"), "truncated");
  }
}

TEST_F(DataFileTest, TheUsersOwnFilesMayHoldDoublesAndMustHaveTheLayout) {
  const auto create = [&](const std::string& name, const std::vector<hsize_t>& permeability,
                          const std::vector<hsize_t>& pressure, hid_t type, double value) {
    const hid_t file = H5Fcreate(path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const auto add = [&](const char* set_name, const std::vector<hsize_t>& extents) {
      if (extents.empty()) return;
      hsize_t count = 1;
      for (const hsize_t extent : extents) count *= extent;
      const std::vector<double> values(count, value);
      const hid_t space =
          H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
      const hid_t set =
          H5Dcreate2(file, set_name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
      H5Dclose(set);
      H5Sclose(space);
    };
    add("permeability", permeability);
    add("pressure", pressure);
    H5Fclose(file);
    return path(name);
  };
  const DataFile file(create("doubles.h5", {2, 3, 4}, {2, 3, 4}, H5T_IEEE_F64BE, 1.5));
  EXPECT_EQ(file.parameters(), "");
  std::vector<float> permeability(24);
  std::vector<float> pressure(24);
  file.read(0, 2, permeability.data(), pressure.data());
  EXPECT_EQ(permeability[23], 1.5F);

  expect_refused(create("half.h5", {2, 3, 4}, {}, H5T_IEEE_F32LE, 1), "no dataset \"pressure\"");
  expect_refused(create("shapes.h5", {2, 3, 4}, {2, 4, 3}, H5T_IEEE_F32LE, 1),
                 "permeability is 2 x 3 x 4, but pressure 2 x 4 x 3");
  expect_refused(create("flat.h5", {2, 12}, {2, 12}, H5T_IEEE_F32LE, 1), "has 2 dimensions");
  expect_refused(create("ints.h5", {2, 3, 4}, {2, 3, 4}, H5T_STD_I32LE, 1), "floating-point");
  const auto expect_bad_values = [&](const std::string& name, double value,
                                     const std::string& reason) {
    const DataFile bad(create(name, {2, 3, 4}, {2, 3, 4}, H5T_IEEE_F32LE, value));
    EXPECT_THAT([&] { bad.read(1, 1, permeability.data(), pressure.data()); },
                ThrowsMessage<DataError>(AllOf(HasSubstr(reason), HasSubstr("sample 1, row 0"))));
  };
  expect_bad_values("negative.h5", -1, "it must be positive");
  expect_bad_values("nan.h5", std::nan(""), "the permeability at");
}

TEST_F(DataFileTest, WhatCannotBeWrittenLeavesNothing) {
  EXPECT_THAT(
      [&] {
        write(path("no/such/directory.h5"), {1, 2, 2});
      },
      ThrowsMessage<DataError>(HasSubstr("No such file or directory")));
}

TEST(CacheTest, ItsNameFollowsFromEverythingThatSamplesDependOn) {
  const Options base;
  std::set<std::string> names = {cache_path(base)};
  std::vector<Options> others(6, base);
  others[0].medium = "lognormal";
  others[1].size = 32;
  others[2].data_seed = 2;
  others[3].train_samples = 10;
  others[4].test_samples = 10;
  others[5].cache = "/elsewhere";
  for (const Options& other : others) names.insert(cache_path(other));
  EXPECT_EQ(names.size(), 7);
  Options same = base;
  same.steps = 5;
  same.width = 7;
  EXPECT_EQ(cache_path(same), cache_path(base));
}

// --- options ---

std::optional<Options> parse(std::vector<const char*> words) {
  words.insert(words.begin(), "darcy");
  return parse_options(static_cast<int>(words.size()), words.data());
}

TEST(OptionsTest, FlagsAreReadAndWrongOnesNamed) {
  const auto options = parse({"--steps", "7", "--medium", "lognormal", "--spatial", "2"});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->steps, 7);
  EXPECT_EQ(options->medium, "lognormal");
  EXPECT_EQ(options->spatial, 2);
  EXPECT_TRUE(options->cache.ends_with("/darcy") || options->cache == "darcy-cache");
  const std::vector<std::vector<const char*>> wrong = {
      {"--steps", "0"}, {"--medium", "sponge"}, {"--batch", "many"},
      {"--size", "1"},  {"--resume"},           {"--png", "/no/such/directory/x.png"}};
  for (const auto& words : wrong) {
    EXPECT_THAT([&] { parse(words); }, ThrowsMessage<jobs::UsageError>(HasSubstr(words[0])));
  }
}

// --- shared ---

TEST(EpochSamplerTest, EveryEpochHasEverySampleOnce) {
  jobs::EpochSampler sampler(1, 10);
  std::vector<int64_t> drawn;
  for (int64_t step = 0; step < 5; ++step) {
    const std::vector<int64_t> batch = sampler.batch(step, 4);
    drawn.insert(drawn.end(), batch.begin(), batch.end());
  }
  const std::set<int64_t> first(drawn.begin(), drawn.begin() + 10);
  const std::set<int64_t> second(drawn.begin() + 10, drawn.end());
  EXPECT_EQ(first.size(), 10);
  EXPECT_EQ(second.size(), 10);
  EXPECT_FALSE(std::equal(drawn.begin(), drawn.begin() + 10, drawn.begin() + 10));
}

TEST(EpochSamplerTest, ABatchIsAFunctionOfSeedAndStep) {
  jobs::EpochSampler sampler(1, 1000);
  const auto batch = sampler.batch(70, 16);
  sampler.batch(3, 16);
  EXPECT_EQ(sampler.batch(70, 16), batch);
  EXPECT_EQ(jobs::EpochSampler(1, 1000).batch(70, 16), batch);
  EXPECT_NE(jobs::EpochSampler(2, 1000).batch(70, 16), batch);
  EXPECT_THROW(jobs::EpochSampler(1, 0), std::invalid_argument);
}

TEST(PanelsTest, AreDrawnInRowsWithTheirColours) {
  const std::vector<float> values = {0, 1, 2, 4};
  const jobs::FieldPanel panel{"p", values, 2, 2, jobs::limit_of(values), false};
  EXPECT_EQ(panel.limit, 4);
  const jobs::Image one = jobs::draw_panels("title", {{panel}});
  const jobs::Image four = jobs::draw_panels("title", {{panel, panel}, {panel, panel}});
  EXPECT_GT(four.width(), one.width());
  EXPECT_GT(four.height(), one.height());
  jobs::FieldPanel wrong = panel;
  wrong.rows = 3;
  EXPECT_THROW(jobs::draw_panels("title", {{wrong}}), std::invalid_argument);
}

}  // namespace
}  // namespace meshrun::darcy
