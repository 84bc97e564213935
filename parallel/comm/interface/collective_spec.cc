#include "parallel/comm/interface/collective_spec.h"

#include <array>

namespace meshrun {
namespace {

using c10d::OpType;
using Kind = CollectiveSpec::Kind;

struct Row {
  OpType type;
  Kind adjoint;
};

// By kind.
constexpr std::array<Row, 18> kRows = {{
    {OpType::BARRIER, Kind::kBarrier},
    {OpType::BROADCAST, Kind::kReduce},
    {OpType::ALLREDUCE, Kind::kAllReduce},
    {OpType::REDUCE, Kind::kBroadcast},
    {OpType::ALLGATHER, Kind::kReduceScatter},
    {OpType::GATHER, Kind::kScatter},
    {OpType::SCATTER, Kind::kGather},
    {OpType::REDUCE_SCATTER, Kind::kAllGather},
    {OpType::ALLTOALL, Kind::kAllToAll},
    {OpType::SEND, Kind::kReceive},
    {OpType::RECV, Kind::kSend},
    {OpType::COALESCED, Kind::kCoalesced},
    {OpType::ALLGATHER, Kind::kReduceScatterV},
    {OpType::REDUCE_SCATTER, Kind::kAllGatherV},
    {OpType::GATHER, Kind::kScatterV},
    {OpType::SCATTER, Kind::kGatherV},
    {OpType::ALLTOALL, Kind::kAllToAllV},
    {OpType::BARRIER, Kind::kCompare},
}};

const Row& row_of(Kind kind) { return kRows[static_cast<size_t>(kind)]; }

}  // namespace

Kind adjoint_of(Kind kind) { return row_of(kind).adjoint; }

CollectiveSpec adjoint(CollectiveSpec spec) {
  spec.kind = adjoint_of(spec.kind);
  if (spec.kind == Kind::kAllToAllV) std::swap(spec.cut, spec.received);
  return spec;
}

OpType op_type_of(Kind kind) { return row_of(kind).type; }

}  // namespace meshrun
