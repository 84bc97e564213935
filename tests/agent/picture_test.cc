// What a rank shows: a file in the directory that its daemon names.
#include "agent/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/os/files.h"
#include "core/picture_name.h"
#include "tests/worker/support/processes.h"

namespace meshrun::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PictureTest : public ::testing::Test {
 protected:
  PictureTest() { ::setenv("MESHRUN_PICTURES", directory_.path().c_str(), 1); }
  ~PictureTest() override { ::unsetenv("MESHRUN_PICTURES"); }
  size_t Files() const { return std::distance(fs::directory_iterator(directory_.path()), {}); }

  testing::TemporaryDirectory directory_;
};

TEST_F(PictureTest, TakesThePlaceOfTheOneBefore) {
  EXPECT_TRUE(ShowsPictures());
  const std::string bytes("a\0b", 3);
  EXPECT_EQ(ShowPicture("map.png", "first"), "");
  EXPECT_EQ(ShowPicture("map.png", bytes), "");
  EXPECT_EQ(os::ReadFile(directory_ / "map.png").value_or(""), bytes);
  EXPECT_EQ(Files(), 1u) << "nothing is left half-written";
  EXPECT_EQ(ShowPicture("other.jpg", std::string(kMostPictureBytes, 'x')), "");
  EXPECT_EQ(Files(), 2u);
}

TEST_F(PictureTest, SaysWhatIsWrong) {
  for (const char* name : {"", "map", "map.svg", ".map.png", "../map.png"}) {
    EXPECT_THAT(ShowPicture(name, "x"), HasSubstr("is not the name of a picture")) << name;
  }
  EXPECT_THAT(ShowPicture("map.png", ""), HasSubstr("has 0 bytes: show one with 1 to 4194304"));
  EXPECT_THAT(ShowPicture("map.png", std::string(kMostPictureBytes + 1, 'x')),
              HasSubstr("has 4194305 bytes"));
  EXPECT_EQ(Files(), 0u);
  ::setenv("MESHRUN_PICTURES", (directory_ / "absent").c_str(), 1);
  EXPECT_THAT(ShowPicture("map.png", "x"), HasSubstr("absent/map.png: No such file or directory"));
}

TEST_F(PictureTest, DoesNothingOutsideMeshrun) {
  ::setenv("MESHRUN_PICTURES", "", 1);
  EXPECT_FALSE(ShowsPictures());
  EXPECT_EQ(ShowPicture("map.png", "x"), "");
  ::unsetenv("MESHRUN_PICTURES");
  EXPECT_FALSE(ShowsPictures());
  EXPECT_EQ(ShowPicture("map.png", "x"), "");
  EXPECT_THAT(ShowPicture("map.svg", "x"), HasSubstr("is not the name of a picture"));
}

}  // namespace
}  // namespace meshrun::agent
