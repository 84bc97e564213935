#include "parallel/comm/interface/collective_spec.h"

#include <array>

#include "c10/util/Exception.h"

namespace meshrun {
namespace {

using c10d::OpType;
using Kind = CollectiveSpec::Kind;

// By kind.
constexpr std::array<OpType, 18> kOpTypes = {
    OpType::BARRIER,   OpType::BROADCAST,      OpType::ALLREDUCE, OpType::REDUCE,
    OpType::ALLGATHER, OpType::GATHER,         OpType::SCATTER,   OpType::REDUCE_SCATTER,
    OpType::ALLTOALL,  OpType::SEND,           OpType::RECV,      OpType::COALESCED,
    OpType::ALLGATHER, OpType::REDUCE_SCATTER, OpType::GATHER,    OpType::SCATTER,
    OpType::ALLTOALL,  OpType::BARRIER,
};

}  // namespace

Kind adjoint_of(Kind kind) {
  switch (kind) {
    case Kind::kAllGatherV:
      return Kind::kReduceScatterV;
    case Kind::kReduceScatterV:
      return Kind::kAllGatherV;
    case Kind::kGatherV:
      return Kind::kScatterV;
    case Kind::kScatterV:
      return Kind::kGatherV;
    case Kind::kAllToAllV:
      return Kind::kAllToAllV;
    default:
      TORCH_INTERNAL_ASSERT(false, name_of(kind), " is not on pieces");
  }
}

CollectiveSpec adjoint(CollectiveSpec spec) {
  spec.kind = adjoint_of(spec.kind);
  if (spec.kind == Kind::kAllToAllV) std::swap(spec.cut, spec.received);
  return spec;
}

OpType op_type_of(Kind kind) { return kOpTypes[static_cast<size_t>(kind)]; }

}  // namespace meshrun
