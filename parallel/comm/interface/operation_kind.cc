#include "parallel/comm/interface/operation_kind.h"

namespace meshrun {

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kBarrier:
      return "barrier";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kReduce:
      return "reduce";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kGather:
      return "gather";
    case OperationKind::kScatter:
      return "scatter";
    case OperationKind::kReduceScatter:
      return "reduce_scatter";
    case OperationKind::kAllToAll:
      return "all_to_all";
    case OperationKind::kSend:
      return "send";
    case OperationKind::kReceive:
      return "recv";
    case OperationKind::kCoalesced:
      return "coalesced operations";
    case OperationKind::kAllGatherV:
      return "all_gather_v";
    case OperationKind::kReduceScatterV:
      return "reduce_scatter_v";
    case OperationKind::kGatherV:
      return "gather_v";
    case OperationKind::kScatterV:
      return "scatter_v";
    case OperationKind::kAllToAllV:
      return "all_to_all_v";
    case OperationKind::kCompare:
      return "comparison";
  }
  return "unknown operation";
}

}  // namespace meshrun
