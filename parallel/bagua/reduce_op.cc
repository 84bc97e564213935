#include "parallel/bagua/reduce_op.h"

#include "fmt/format.h"

namespace meshrun::bagua {

std::string to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::SUM:
      return "SUM";
    case ReduceOp::PRODUCT:
      return "PRODUCT";
    case ReduceOp::MIN:
      return "MIN";
    case ReduceOp::MAX:
      return "MAX";
    case ReduceOp::BOR:
      return "BOR";
    case ReduceOp::BAND:
      return "BAND";
    case ReduceOp::BXOR:
      return "BXOR";
    case ReduceOp::AVG:
      return "AVG";
  }
  return fmt::format("ReduceOp({})", static_cast<int>(op));
}

std::optional<c10d::ReduceOp> to_c10d(ReduceOp op) {
  using Type = c10d::ReduceOp::RedOpType;
  switch (op) {
    case ReduceOp::SUM:
      return Type::SUM;
    case ReduceOp::PRODUCT:
      return Type::PRODUCT;
    case ReduceOp::MIN:
      return Type::MIN;
    case ReduceOp::MAX:
      return Type::MAX;
    case ReduceOp::BOR:
      return Type::BOR;
    case ReduceOp::BAND:
      return Type::BAND;
    case ReduceOp::BXOR:
      return Type::BXOR;
    case ReduceOp::AVG:
      return Type::AVG;
  }
  return std::nullopt;
}

}  // namespace meshrun::bagua
