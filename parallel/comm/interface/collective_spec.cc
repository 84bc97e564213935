#include "parallel/comm/interface/collective_spec.h"

#include <array>

namespace meshrun {
namespace {

using Kind = CollectiveSpec::Kind;

struct Row {
  const char* name;
  Kind adjoint;
};

// By kind.
constexpr std::array<Row, 5> kRows = {{
    {"all_gather_v", Kind::kReduceScatterV},
    {"reduce_scatter_v", Kind::kAllGatherV},
    {"gather_v", Kind::kScatterV},
    {"scatter_v", Kind::kGatherV},
    {"all_to_all_v", Kind::kAllToAllV},
}};

const Row& row_of(Kind kind) { return kRows[static_cast<size_t>(kind)]; }

}  // namespace

const char* name_of(Kind kind) { return row_of(kind).name; }

Kind adjoint_of(Kind kind) { return row_of(kind).adjoint; }

CollectiveSpec adjoint(CollectiveSpec spec) {
  spec.kind = adjoint_of(spec.kind);
  if (spec.kind == Kind::kAllToAllV) std::swap(spec.cut, spec.received);
  return spec;
}

}  // namespace meshrun
