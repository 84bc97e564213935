#include "parallel/collectives/call/pieces.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshrun {
namespace {

using Shape = std::vector<int64_t>;

std::vector<int64_t> list(const Extents& extents) { return {extents.begin(), extents.end()}; }

void expect_problem(const Pieces& pieces, const std::string& part) {
  EXPECT_NE(pieces.problem.find(part), std::string::npos) << "'" << pieces.problem << "'";
}

TEST(CutTest, WithoutSizesAllPiecesAreAlike) {
  const Pieces piece = cut(Role::kPiece, {}, Shape{3, 8}, 0, 1, 4);
  EXPECT_EQ(piece.problem, "");
  EXPECT_EQ(list(piece.extents), Shape(4, 3));
  EXPECT_EQ(piece.total, 12);
  EXPECT_EQ(list(cut(Role::kWhole, {}, Shape{3, 8}, 1, 1, 4).extents), Shape(4, 2));
  expect_problem(cut(Role::kWhole, {}, Shape{3, 8}, 0, 1, 4), "3 along dim 0");
  expect_problem(cut(Role::kTemplate, {}, Shape{3, 8}, 0, 1, 4), "sizes is absent");
}

TEST(CutTest, TakesExtentsAndFullShapes) {
  const Pieces extents = cut(Role::kPiece, {2, 3, 0}, Shape{3, 8}, 0, 1, 3);
  EXPECT_EQ(list(extents.extents), (Shape{2, 3, 0}));
  EXPECT_EQ(extents.total, 5);
  const Sizes full = {Shape{2, 8}, Shape{3, 8}, Shape{0, 8}};
  EXPECT_EQ(list(cut(Role::kPiece, full, Shape{3, 8}, 0, 1, 3).extents), (Shape{2, 3, 0}));
  EXPECT_EQ(list(cut(Role::kTemplate, full, Shape{0, 8}, 0, 1, 3).extents), (Shape{2, 3, 0}));
}

TEST(CutTest, CountsDimFromTheBack) {
  const Pieces pieces = cut(Role::kPiece, {8, 1}, Shape{3, 8}, -1, 0, 2);
  EXPECT_EQ(pieces.problem, "");
  EXPECT_EQ(pieces.dim, 1);
}

TEST(CutTest, SaysWhatIsWrong) {
  const Shape shape = {3, 8};
  expect_problem(cut(Role::kPiece, {3, 2}, shape, 0, 0, 3), "sizes has 2 entries in a group of 3");
  expect_problem(cut(Role::kPiece, {3, -2}, shape, 0, 0, 2), "sizes[1] is -2");
  expect_problem(cut(Role::kPiece, {4, 2}, shape, 0, 0, 2),
                 "sizes[0] is 4 on rank 0, whose tensor has 3 along dim 0");
  expect_problem(cut(Role::kWhole, {4, 2}, shape, 0, 0, 2), "6 together; the tensor has 3");
  expect_problem(cut(Role::kPiece, {3, 2}, shape, 2, 0, 2),
                 "dim is 2 for a tensor of 2 dimensions");
  expect_problem(cut(Role::kPiece, {3, 2}, shape, -3, 0, 2), "dim is -3");
  expect_problem(cut(Role::kPiece, {3, 2}, Shape{}, 0, 0, 2), "no dimensions");
  expect_problem(cut(Role::kPiece, Sizes{Shape{3, 8}, Shape{2, 7}}, shape, 0, 0, 2),
                 "sizes[1] is the shape [2, 7]");
  expect_problem(cut(Role::kPiece, Sizes{Shape{3, 8}, Shape{2}}, shape, 0, 0, 2),
                 "sizes[1] is the shape [2]");
  expect_problem(cut(Role::kTemplate, {INT64_MAX, 1}, shape, 0, 0, 2), "sizes[1] is 1");
}

}  // namespace
}  // namespace meshrun
