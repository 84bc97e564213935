#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "tests/parallel/shard/operator_cases.h"
#include "tests/parallel/shard/raising_call.h"

namespace meshrun {
namespace {

using SearchShape = std::vector<int64_t>;

SearchShape search_shape(Draw& draw, int64_t fewest, int64_t most) {
  SearchShape shape(static_cast<size_t>(draw.integer(fewest, most)));
  for (int64_t& extent : shape) extent = draw.chance(0.07) ? 0 : draw.extent();
  return shape;
}

// Quarters, many of them equal; their summands add up exactly.
at::Tensor quarters(Draw& draw, const SearchShape& shape, at::ScalarType type) {
  const at::Tensor numbers = draw.integers(shape, -20, 20);
  return at::isIntegralType(type, false) ? numbers.clamp_min(type == at::kByte ? 0 : -20).to(type)
                                         : (numbers.to(at::kDouble) / 4).to(type);
}

void put_anywhere(Draw& draw, const at::Tensor& values, double number) {
  if (values.numel() == 0 || !at::isFloatingType(values.scalar_type())) return;
  values.view(-1)[draw.integer(0, values.numel() - 1)] = number;
}

double not_finite(Draw& draw) {
  const double infinity = std::numeric_limits<double>::infinity();
  return draw.one_of<double>({infinity, -infinity, std::nan("")});
}

at::ScalarType number_type(Draw& draw) {
  return draw.one_of<at::ScalarType>(
      {at::kDouble, at::kDouble, at::kFloat, at::kHalf, at::kLong, at::kLong, at::kInt, at::kByte});
}

OperatorCase searchsorted_case(Draw& draw) {
  const SearchShape shape = search_shape(draw, 0, 3);
  const int64_t most = draw.chance(0.5) ? 40 : 6;
  SearchShape of_sequence = shape;
  if (shape.empty() || draw.chance(0.4)) of_sequence = {0};
  const bool is_vector = of_sequence.size() == 1;
  of_sequence.back() = draw.chance(0.07) ? 0 : draw.integer(1, most);
  const at::ScalarType type = number_type(draw);
  const at::ScalarType other = draw.chance(0.6) ? type : number_type(draw);
  at::Tensor sequence = quarters(draw, of_sequence, type);
  at::Tensor values = quarters(draw, shape, other);
  if (draw.chance(0.2)) put_anywhere(draw, values, not_finite(draw));
  if (draw.chance(0.2)) put_anywhere(draw, sequence, not_finite(draw));
  at::Tensor order = sequence.argsort(int64_t{-1}, false);
  const bool has_sorter = draw.chance(0.25);
  // LibTorch does not ask whether a sequence ascends.
  if (!has_sorter && draw.chance(0.85)) sequence = sequence.gather(-1, order);
  const bool out_int32 = draw.chance(0.3);
  const int64_t side_number = draw.integer(0, 2);
  const bool right = side_number != 1 && draw.chance(0.5);
  const at::ScalarType places_type = out_int32 ? at::kInt : at::kLong;
  const double number = draw.one_of<double>({0, 0.25, -1.1});
  const bool searched_last = draw.chance(0.3);
  const int64_t plain = draw.chance(0.3) ? draw.integer(0, 1) : -1;
  // A number is searched in a sharded sequence alone.
  const bool takes_numbers = is_vector && (searched_last || plain != 1);

  OperatorCase drawn;
  drawn.name = "searchsorted";
  drawn.inputs = {order, sequence, values};
  if (searched_last) std::swap(drawn.inputs[1], drawn.inputs[2]);
  drawn.call = [=](const Tensors& t) {
    std::optional<c10::string_view> side;
    if (side_number > 0) side = side_number == 1 ? "left" : "right";
    std::optional<at::Tensor> sorter;
    if (has_sorter) sorter = t[0];
    const at::Tensor& in = t[searched_last ? 2 : 1];
    const at::Tensor& x = t[searched_last ? 1 : 2];
    // The last one is never plain.
    const auto written = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
      return t[2].detach().new_zeros(sizes, at::TensorOptions(dtype));
    };
    at::Tensor out = written(x.sizes(), places_type);
    at::searchsorted_out(out, in.detach(), x.detach(), out_int32, right, side, sorter);
    at::Tensor grown = written({0}, places_type);
    at::searchsorted_out(grown, in.detach(), x.detach(), out_int32, right, side, sorter);
    at::Tensor wrong = written(x.sizes(), at::kDouble);
    Tensors results = {
        at::searchsorted(in, x, out_int32, right, side, sorter),
        out,
        grown,
        raises([&] { at::searchsorted(in, x, false, false, "middle"); }),
        raises([&] { at::searchsorted(in, x, false, true, "left"); }),
        raises([&] { at::searchsorted(in.sum(), x); }),
        raises([&] { at::searchsorted(in.unsqueeze(0).unsqueeze(0), x); }),
        raises([&] { at::searchsorted(in, x.sum()); }),
        raises([&] { at::searchsorted(in > 0, x > 0); }),
        raises([&] { at::searchsorted(in.detach().to(at::kComplexDouble), x); }),
        raises([&] { at::searchsorted(in, x, false, false, {}, t[0].to(at::kInt)); }),
        raises([&] { at::searchsorted(in, x, false, false, {}, t[0] + 1); }),
        raises([&] { at::searchsorted(in, x, false, false, {}, t[0].unsqueeze(0)); }),
        raises([&] { at::searchsorted_out(wrong, in.detach(), x.detach()); }),
        raises([&] { at::bucketize(x, in.unsqueeze(0)); })};
    if (takes_numbers) {
      at::Tensor one = written({}, places_type);
      at::searchsorted_out(one, in.detach(), at::Scalar(number), out_int32, right, side, sorter);
      results.push_back(one);
      results.push_back(at::searchsorted(in, number, out_int32, right, side, sorter));
      results.push_back(at::searchsorted(in, int64_t{1}, out_int32, right, side, sorter));
    }
    if (is_vector && !has_sorter) {
      at::Tensor buckets = written(x.sizes(), places_type);
      at::bucketize_out(buckets, x.detach(), in.detach(), out_int32, right);
      results.push_back(buckets);
      results.push_back(at::bucketize(x, in, out_int32, right));
      if (takes_numbers) {
        at::Tensor bucket = written({}, places_type);
        at::bucketize_out(bucket, at::Scalar(number), in.detach(), out_int32, right);
        results.push_back(bucket);
        results.push_back(at::bucketize(number, in, out_int32, right));
      }
    }
    return results;
  };
  if (plain >= 0) drawn.plain = {static_cast<size_t>(plain)};
  return drawn;
}

// No two equal ones.
at::Tensor unique_numbers(Draw& draw, const SearchShape& shape, at::ScalarType type) {
  const at::Tensor like = draw.normal(shape);
  return (like.reshape({-1}).argsort(int64_t{0}, false) - like.numel() / 3).reshape(shape).to(type);
}

OperatorCase isin_case(Draw& draw) {
  const SearchShape shape = search_shape(draw, 0, 3);
  const SearchShape of_tests =
      draw.chance(0.3) ? SearchShape{draw.integer(20, 60)} : search_shape(draw, 0, 2);
  // A byte has no number below 0.
  const auto some_type = [&] {
    const at::ScalarType type = number_type(draw);
    return type == at::kByte ? at::kShort : type;
  };
  const at::ScalarType type = some_type();
  const at::ScalarType other = draw.chance(0.6) ? type : some_type();
  const bool unique = draw.chance(0.3);
  at::Tensor elements = unique ? unique_numbers(draw, shape, type) : quarters(draw, shape, type);
  at::Tensor tests =
      unique ? unique_numbers(draw, of_tests, other) : quarters(draw, of_tests, other);
  OperatorCase drawn;
  drawn.name = "isin";
  if (!unique && draw.chance(0.3)) {
    put_anywhere(draw, elements, not_finite(draw));
    put_anywhere(draw, tests, not_finite(draw));
  } else if (draw.chance(0.3)) {
    // Tenths are other numbers in each type.
    const auto tenths = [](const at::Tensor& numbers) {
      return at::isFloatingType(numbers.scalar_type())
                 ? (numbers.to(at::kDouble) / 10).to(numbers.scalar_type())
                 : numbers;
    };
    elements = tenths(elements);
    tests = tenths(tests);
    drawn.no_partial = true;
  }
  const bool invert = draw.chance(0.5);
  const double number = draw.one_of<double>({0, 0.1, 0.25, 2});
  const bool tests_last = draw.chance(0.5);
  drawn.inputs = {tests, elements};
  if (tests_last) std::swap(drawn.inputs[0], drawn.inputs[1]);
  drawn.call = [=](const Tensors& t) {
    const at::Tensor& x = t[tests_last ? 0 : 1];
    const at::Tensor& in = t[tests_last ? 1 : 0];
    const auto written = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
      return t[1].detach().new_zeros(sizes, at::TensorOptions(dtype));
    };
    at::Tensor out = written(x.sizes(), at::kBool);
    at::isin_out(out, x.detach(), in.detach(), unique, invert);
    at::Tensor grown = written({0}, at::kBool);
    at::isin_out(grown, x.detach(), in.detach(), unique, invert);
    at::Tensor wrong = written(x.sizes(), at::kLong);
    Tensors results = {at::isin(x, in, unique, invert),
                       at::isin(x, in, unique, !invert),
                       out,
                       grown,
                       raises([&] { at::isin(x > 0, in); }),
                       raises([&] { at::isin(x, in > 0); }),
                       raises([&] { at::isin(x.detach().to(at::kComplexDouble), in); }),
                       raises([&] { at::isin_out(wrong, x.detach(), in.detach()); })};
    if (!tests_last) {
      at::Tensor equal = written(x.sizes(), at::kBool);
      at::isin_out(equal, x.detach(), at::Scalar(number), false, invert);
      results.insert(results.end(), {equal, at::isin(x, number, false, invert),
                                     at::isin(x, int64_t{1}, unique, invert),
                                     raises([&] { at::isin(x, at::Scalar(true)); })});
    } else {
      at::Tensor one = written({}, at::kBool);
      at::isin_out(one, at::Scalar(number), in.detach(), false, invert);
      results.insert(results.end(), {one, at::isin(number, in, false, invert),
                                     at::isin(at::Scalar(int64_t{1}), in, unique, invert),
                                     raises([&] { at::isin(at::Scalar(true), in); })});
    }
    return results;
  };
  if (draw.chance(0.3)) drawn.plain = {0};
  return drawn;
}

const bool kRegistered = register_operator_cases("searching", [](Draw& draw) {
  return draw.chance(0.5) ? searchsorted_case(draw) : isin_case(draw);
});

}  // namespace
}  // namespace meshrun
