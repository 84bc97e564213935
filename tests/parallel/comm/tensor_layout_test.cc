// How a tensor lies in memory, as the backends see it.
#include "parallel/base/tensor_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshrun {
namespace {

TEST(TensorLayoutTest, SlicesAlongOneDimensionAreRows) {
  const at::Tensor tensor = at::zeros({4, 6, 5}, at::kFloat);
  const auto layout_of = [](const at::Tensor& view) {
    const auto span = span_of(view);
    return span
               ? std::vector<int64_t>{span->layout.rows, span->layout.row_bytes, span->layout.pitch}
               : std::vector<int64_t>{};
  };
  using Layout = std::vector<int64_t>;
  EXPECT_EQ(layout_of(tensor), (Layout{1, 480, 480}));
  EXPECT_EQ(layout_of(tensor.narrow(0, 1, 2)), (Layout{1, 240, 240}));
  EXPECT_EQ(layout_of(tensor.narrow(1, 1, 2)), (Layout{4, 40, 120}));
  EXPECT_EQ(layout_of(tensor.narrow(2, 1, 2)), (Layout{24, 8, 20}));
  EXPECT_EQ(layout_of(tensor.select(1, 2)), (Layout{4, 20, 120}));
  EXPECT_EQ(layout_of(tensor.narrow(1, 1, 2).narrow(2, 0, 3)), Layout{});
  EXPECT_EQ(layout_of(tensor.transpose(0, 1)), Layout{});
  EXPECT_EQ(layout_of(at::zeros({1}).expand({4})), Layout{});
  EXPECT_EQ(span_of(at::zeros({3, 0}))->data, nullptr);
  EXPECT_EQ(slice_layout(tensor.sizes(), 1, 2, 4).pitch, 120);
  EXPECT_EQ(span_of(tensor.narrow(2, 1, 2))->data,
            static_cast<std::byte*>(tensor.data_ptr()) + sizeof(float));
}

}  // namespace
}  // namespace meshrun
