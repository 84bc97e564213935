#include "parallel/shard/layout/placement.h"

#include "fmt/format.h"

namespace meshrun {

const char* to_string(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return "sum";
    case PartialOp::kAvg:
      return "avg";
    case PartialOp::kProduct:
      return "product";
    case PartialOp::kMin:
      return "min";
    case PartialOp::kMax:
      return "max";
  }
  return "?";
}

std::string to_string(const Placement& placement) {
  switch (placement.kind()) {
    case Placement::Kind::kReplicate:
      return "Replicate";
    case Placement::Kind::kShard:
      return fmt::format("Shard({})", placement.dim());
    case Placement::Kind::kPartial:
      return fmt::format("Partial({})", to_string(placement.op()));
  }
  return "?";
}

std::string to_string(const Placements& placements) {
  std::string text;
  for (const Placement& placement : placements) {
    text += (text.empty() ? "" : ", ") + to_string(placement);
  }
  return "[" + text + "]";
}

}  // namespace meshrun
