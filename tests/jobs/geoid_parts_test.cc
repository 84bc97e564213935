// The parts of the geoid job that need no network.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "jobs/figures/colour_map.h"
#include "jobs/figures/image.h"
#include "jobs/figures/text.h"
#include "jobs/geoid/figure.h"
#include "jobs/geoid/gtx.h"
#include "jobs/geoid/sampler.h"
#include "jobs/runtime/error_file.h"
#include "jobs/runtime/first_line.h"
#include "jobs/runtime/one_cycle.h"
#include "nlohmann/json.hpp"
#include "parallel/base/split.h"
#include "tests/jobs/gtx_writer.h"

namespace meshrun::geoid {
namespace {

using jobs::Align;
using jobs::Colour;
using jobs::diverging_colour;
using jobs::draw_text;
using jobs::encode_png;
using jobs::Image;
using jobs::one_cycle;
using jobs::round_up_nicely;
using jobs::text_width;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string temporary(const std::string& name) { return testing::TempDir() + name; }

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(SplitTest, IsPhysicsNemosRule) {
  EXPECT_THAT(compute_split_shapes(9, 4), ElementsAre(2, 2, 2, 3));
  EXPECT_THAT(compute_split_shapes(10, 8), ElementsAre(1, 1, 1, 1, 1, 1, 1, 3));
  EXPECT_THAT(compute_split_shapes(3, 4), ElementsAre(0, 0, 0, 3));
  EXPECT_THAT(compute_split_shapes(1025, 4), ElementsAre(257, 257, 257, 254));
  EXPECT_THAT(compute_split_shapes(10, 4), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(compute_split_shapes(7, 1), ElementsAre(7));
  EXPECT_THAT(compute_split_shapes(0, 2), ElementsAre(0, 0));
}

TEST(SplitTest, PiecesCoverTheWholeWithoutGapOrOverlap) {
  for (int64_t size = 0; size <= 40; ++size) {
    for (int64_t pieces = 1; pieces <= 9; ++pieces) {
      int64_t end = 0;
      for (int64_t index = 0; index < pieces; ++index) {
        const SplitRange range = split_range(size, pieces, index);
        ASSERT_EQ(range.begin, end) << size << " in " << pieces;
        ASSERT_GE(range.size(), 0);
        end = range.end;
      }
      ASSERT_EQ(end, size) << size << " in " << pieces;
    }
  }
}

TEST(SplitTest, RefusesWhatIsNoSplit) {
  EXPECT_THROW(compute_split_shapes(-1, 2), std::invalid_argument);
  EXPECT_THROW(compute_split_shapes(4, 0), std::invalid_argument);
  EXPECT_THROW(split_range(4, 2, 2), std::invalid_argument);
}

TEST(GtxTest, ReadsHeaderAndValuesFromSouthToNorth) {
  const std::string path = temporary("good.gtx");
  write(path, gtx_bytes({.rows = 3, .columns = 4},
                        [](int row, int column) { return static_cast<float>(10 * row + column); }));
  const GtxGrid grid = read_gtx(path);
  EXPECT_EQ(grid.rows, 3);
  EXPECT_EQ(grid.columns, 4);
  EXPECT_EQ(grid.latitude(2), 90);
  EXPECT_EQ(grid.longitude(3), 90);
  EXPECT_EQ(grid.metres[2 * 4 + 3], 23);
}

TEST(GtxTest, AnAbsentFileSaysWhatToInstall) {
  EXPECT_THAT([] { read_gtx("/nowhere/egm96_15.gtx"); },
              ThrowsMessage<GtxError>(AllOf(HasSubstr("/nowhere/egm96_15.gtx: does not exist"),
                                            HasSubstr("apt install proj-data"))));
  EXPECT_THAT([] { read_gtx(testing::TempDir()); },
              ThrowsMessage<GtxError>(HasSubstr("is a directory")));
}

TEST(GtxTest, Egm96OfABundleIsFoundFromItsPrograms) {
  namespace fs = std::filesystem;
  const fs::path bundle = fs::path(temporary("bundle"));
  const fs::path program = bundle / "libexec/meshrun/jobs/geoid/program/geoid";
  fs::create_directories(bundle / "share/meshrun/egm96_15.gtx");
  EXPECT_EQ(find_egm96(program), "/usr/share/proj/egm96_15.gtx") << "a directory is not a file";
  fs::remove(bundle / "share/meshrun/egm96_15.gtx");
  write((bundle / "share/meshrun/egm96_15.gtx").string(), "");
  EXPECT_EQ(find_egm96(program), (bundle / "share/meshrun/egm96_15.gtx").string());
  fs::remove_all(bundle);
  EXPECT_EQ(find_egm96(program), "/usr/share/proj/egm96_15.gtx");
  EXPECT_EQ(find_egm96(""), "/usr/share/proj/egm96_15.gtx");
}

TEST(GtxTest, ATruncatedFileIsNamedWithBytesExpectedAndFound) {
  const std::string path = temporary("short.gtx");
  const std::string whole = gtx_bytes({.rows = 3, .columns = 4});
  write(path, whole.substr(0, whole.size() - 1));
  EXPECT_THAT([&] { read_gtx(path); }, ThrowsMessage<GtxError>(AllOf(
                                           HasSubstr(path), HasSubstr("truncated"),
                                           HasSubstr("expected 88 bytes"), HasSubstr("found 87"))));
  write(path, whole.substr(0, 39));
  EXPECT_THAT([&] { read_gtx(path); },
              ThrowsMessage<GtxError>(AllOf(HasSubstr("expected 40"), HasSubstr("found 39"))));
  write(path, whole + "x");
  EXPECT_THAT([&] { read_gtx(path); },
              ThrowsMessage<GtxError>(AllOf(HasSubstr("too long"), HasSubstr("found 89"))));
}

TEST(GtxTest, ABadHeaderIsRefused) {
  const std::string path = temporary("header.gtx");
  const auto expect_refused = [&](const GtxHeader& header, const std::string& reason) {
    write(path, gtx_bytes(header));
    EXPECT_THAT([&] { read_gtx(path); },
                ThrowsMessage<GtxError>(AllOf(HasSubstr("bad header"), HasSubstr(reason))));
  };
  expect_refused({.rows = -3}, "-3 rows");
  expect_refused({.rows = 2'000'000'000, .columns = 2'000'000'000}, "2000000000 rows");
  expect_refused({.latitude_step = 0}, "steps of 0");
  expect_refused({.latitude_step = std::numeric_limits<double>::quiet_NaN()}, "steps of");
  expect_refused({.south = -90, .latitude_step = 100}, "latitudes from -90");
  expect_refused({.columns = 5}, "none runs twice");
  expect_refused({.west = 1e9}, "longitudes from");
}

TEST(GtxTest, AValueThatIsNoHeightIsRefused) {
  const std::string path = temporary("nan.gtx");
  write(path, gtx_bytes({.rows = 3, .columns = 4}, [](int row, int column) {
          return row == 1 && column == 2 ? std::nanf("") : 0.0F;
        }));
  EXPECT_THAT([&] { read_gtx(path); }, ThrowsMessage<GtxError>(HasSubstr("at row 1, column 2")));
}

TEST(SamplerTest, HoldsOutTheAskedShareTheSameInEveryRun) {
  const PointSplit split = split_points(100'000, 0.1);
  EXPECT_NEAR(split.held_out.size(), 10'000, 400);
  EXPECT_EQ(split.training.size() + split.held_out.size(), 100'000);
  EXPECT_EQ(split.held_out, split_points(100'000, 0.1).held_out);
  EXPECT_THROW(split_points(10, 1.0), std::invalid_argument);
  EXPECT_THROW(split_points(0, 0.1), std::invalid_argument);
}

TEST(SamplerTest, ABatchIsAFunctionOfSeedAndStep) {
  const auto batch = global_batch(1, 7, 2048, 1000);
  EXPECT_EQ(batch, global_batch(1, 7, 2048, 1000));
  EXPECT_NE(batch, global_batch(1, 8, 2048, 1000));
  EXPECT_NE(batch, global_batch(2, 7, 2048, 1000));
  for (const int64_t position : batch) ASSERT_TRUE(position >= 0 && position < 1000);
  EXPECT_GT(std::set<int64_t>(batch.begin(), batch.end()).size(), 800);
}

TEST(OneCycleTest, RisesToThePeakAndFallsToNearlyNothing) {
  EXPECT_NEAR(one_cycle(1.0, 0, 101), 0.04, 1e-12);
  EXPECT_NEAR(one_cycle(1.0, 30, 101), 1.0, 1e-12);
  EXPECT_NEAR(one_cycle(1.0, 100, 101), 4e-6, 1e-12);
  EXPECT_TRUE(std::isfinite(one_cycle(1.0, 0, 1)));
}

TEST(ColourMapTest, DivergesFromNearlyWhite) {
  const Colour low = diverging_colour(-1);
  const Colour high = diverging_colour(1);
  EXPECT_GT(low.blue, low.red);
  EXPECT_GT(high.red, high.blue);
  EXPECT_GT(diverging_colour(0).green, 240);
  EXPECT_EQ(diverging_colour(5), high);
  EXPECT_EQ(diverging_colour(NAN).red, diverging_colour(NAN).blue);
}

TEST(ColourMapTest, LimitsReadWell) {
  EXPECT_DOUBLE_EQ(round_up_nicely(106.99), 120);
  EXPECT_DOUBLE_EQ(round_up_nicely(1), 1);
  EXPECT_DOUBLE_EQ(round_up_nicely(0.031), 0.04);
  EXPECT_DOUBLE_EQ(round_up_nicely(9), 10);
}

// Decodes with libpng, independent of how it was encoded.
std::vector<uint8_t> decode(const std::string& bytes, int& width, int& height) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  EXPECT_NE(png_image_begin_read_from_memory(&header, bytes.data(), bytes.size()), 0);
  header.format = PNG_FORMAT_RGB;
  width = static_cast<int>(header.width);
  height = static_cast<int>(header.height);
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(header));
  EXPECT_NE(png_image_finish_read(&header, nullptr, pixels.data(), 0, nullptr), 0);
  return pixels;
}

TEST(ImageTest, ThePngDecodesToTheSamePixels) {
  Image image(5, 3, {1, 2, 3});
  image.set(4, 2, {200, 100, 50});
  image.set(5, 0, {9, 9, 9});  // outside: no effect
  int width = 0;
  int height = 0;
  const std::vector<uint8_t> pixels = decode(encode_png(image), width, height);
  ASSERT_EQ(width, 5);
  ASSERT_EQ(height, 3);
  EXPECT_THAT(std::vector<uint8_t>(pixels.begin(), pixels.begin() + 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(std::vector<uint8_t>(pixels.end() - 3, pixels.end()), ElementsAre(200, 100, 50));
  EXPECT_THROW(Image(0, 3, {}), std::invalid_argument);
}

TEST(TextTest, IsDrawnWhereItWasAskedFor) {
  Image image(100, 40, {255, 255, 255});
  draw_text(image, 50, 10, 12, "42", {0, 0, 0}, Align::kCentre);
  int ink = 0;
  for (int y = 0; y < 40; ++y) {
    for (int x = 0; x < 100; ++x) {
      if (image.at(x, y).red > 128) continue;
      ++ink;
      const double half = text_width(12, "42") / 2 + 3;
      EXPECT_TRUE(std::abs(x - 50) <= half && y >= 8 && y <= 26) << x << ", " << y;
    }
  }
  EXPECT_GT(ink, 40);
}

TEST(FigureTest, ShowsTruthPredictionAndErrorSideBySide) {
  const Map map{.rows = 37,
                .columns = 72,
                .south = -90,
                .west = -180,
                .latitude_step = 5,
                .longitude_step = 5};
  const std::vector<float> truth(37 * 72, 50.0F);
  std::vector<float> prediction(37 * 72, 50.0F);
  const Image image = draw_figure(map, truth, prediction, "title");
  EXPECT_GT(image.width(), 3 * 72);
  EXPECT_GT(image.height(), 37);
  prediction.pop_back();
  EXPECT_THROW(draw_figure(map, truth, prediction, "title"), std::invalid_argument);
}

TEST(ErrorFileTest, HasTorchelasticsShape) {
  const auto content = nlohmann::json::parse(
      jobs::format_error_file({"c10::Error", "bad \xff byte", "frame #0"}, 1689298411));
  const auto& message = content.at("message");
  EXPECT_THAT(message.at("message").get<std::string>(), testing::StartsWith("c10::Error: bad "));
  EXPECT_EQ(message.at("extraInfo").at("timestamp"), "1689298411");
  EXPECT_EQ(message.at("extraInfo").at("py_callstack"), "frame #0");
}

TEST(FirstLineTest, IsShortAndWholeCharacters) {
  EXPECT_EQ(jobs::first_line("RMSE 1 m\nreport x\n", 512), "RMSE 1 m");
  EXPECT_EQ(jobs::first_line("a\r\nb", 512), "a");
  EXPECT_EQ(jobs::first_line("", 512), "");
  EXPECT_EQ(jobs::first_line(std::string(600, 'x'), 512), std::string(512, 'x'));
  // Two bytes each, of which the limit cuts one in half.
  EXPECT_EQ(jobs::first_line("\u00fc\u00fc\u00fc", 5), "\u00fc\u00fc");
  EXPECT_EQ(jobs::first_line("\u00fc", 1), "");
}

}  // namespace
}  // namespace meshrun::geoid
