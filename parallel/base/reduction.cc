// Which reductions there are, and of which types: values without the loops.
#include "parallel/base/dtype.h"
#include "parallel/base/reduce.h"

namespace meshrun {
namespace {

bool is_integral(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return true;
    default:
      return false;
  }
}

bool is_reducible(DType dtype) {
  return is_integral(dtype) || dtype == DType::kFloat16 || dtype == DType::kBFloat16 ||
         dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kComplex64 ||
         dtype == DType::kComplex128;
}

}  // namespace

const char* name_of(ReductionOp op) {
  switch (op) {
    case ReductionOp::kNone:
      return "none";
    case ReductionOp::kSum:
      return "sum";
    case ReductionOp::kAverage:
      return "average";
    case ReductionOp::kProduct:
      return "product";
    case ReductionOp::kMin:
      return "min";
    case ReductionOp::kMax:
      return "max";
    case ReductionOp::kAnd:
      return "bitwise and";
    case ReductionOp::kOr:
      return "bitwise or";
    case ReductionOp::kXor:
      return "bitwise xor";
  }
  return "unknown reduction";  // of a peer's header
}

std::string reduction_problem(ReductionOp op, DType dtype) {
  const auto problem = [&](const char* reason) {
    return std::string(name_of(op)) + " of " + name_of(dtype) + ": " + reason;
  };
  const bool is_complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  if (op == ReductionOp::kNone) return "";
  if (!is_reducible(dtype)) return problem("elements of this type are moved, never reduced");
  switch (op) {
    case ReductionOp::kAverage:
      return is_integral(dtype) ? problem("an average needs a floating-point or complex type") : "";
    case ReductionOp::kMin:
    case ReductionOp::kMax:
      return is_complex ? problem("complex numbers have no order") : "";
    case ReductionOp::kAnd:
    case ReductionOp::kOr:
    case ReductionOp::kXor:
      return is_integral(dtype) ? "" : problem("needs an integer type or bool");
    default:
      return "";
  }
}

DType Reduction::partial() const {
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const bool rounds =
      op == ReductionOp::kSum || op == ReductionOp::kAverage || op == ReductionOp::kProduct;
  return is_half && rounds && accumulate == Accumulate::kWide ? DType::kFloat32 : dtype;
}

}  // namespace meshrun
