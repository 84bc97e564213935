// Open MPI's collectives on the Problem's own memory: results where they belong. Pieces along the
// last dimension are packed and unpacked by LibTorch's copies, which are faster than MPI's derived
// datatypes.
#include <mpi/mpi.h>

#include <algorithm>

#include "ATen/ops/empty.h"
#include "ATen/ops/index_select.h"
#include "c10/util/Exception.h"
#include "tests/bench/collectives/contender.h"

namespace meshrun::bench {
namespace {

struct Counts {
  std::vector<int> counts;
  std::vector<int> offsets;
};

// In MPI's units: bytes for moves, elements for sums.
Counts counts_for(const Problem& p, const std::vector<int64_t>& extents, int64_t unit) {
  Counts result;
  int offset = 0;
  for (const int64_t count : counts_of(p, extents)) {
    result.counts.push_back(static_cast<int>(count * unit));
    result.offsets.push_back(offset);
    offset += result.counts.back();
  }
  return result;
}

}  // namespace

Contender open_mpi(const Problem& problem) {
  const Problem& p = problem;
  const std::string& name = p.what.operation;
  const auto element = static_cast<int64_t>(p.input.element_size());
  TORCH_CHECK(p.check == Check::kBits || p.input.scalar_type() == at::kFloat,
              "Open MPI adds no bfloat16");
  const bool is_root = p.rank == 0;
  const bool is_staged = p.dim != 0;
  Contender result{.name = "open_mpi"};
  if (is_staged) result.note = "packed and unpacked by LibTorch";

  if (name == "all_reduce") {
    const at::Tensor tensor = at::empty_like(p.input);
    result.note = "in place";
    result.prepare = [=, &p] { tensor.copy_(p.input); };
    result.call = [=] {
      MPI_Allreduce(MPI_IN_PLACE, tensor.data_ptr(), static_cast<int>(tensor.numel()), MPI_FLOAT,
                    MPI_SUM, MPI_COMM_WORLD);
      return tensor;
    };
    return result;
  }
  if (name == "all_gather_v" || name == "gather_v") {
    const at::Tensor output = at::empty(p.shape, p.input.options());
    const at::Tensor flat = is_staged ? flat_for(p, p.sizes) : output;
    result.kept = {output, flat};
    const Counts from = counts_for(p, p.sizes, element);
    const bool everywhere = name == "all_gather_v";
    result.call = [=, &p] {
      const void* const own = p.input.data_ptr();
      if (everywhere) {
        MPI_Allgatherv(own, from.counts[p.rank], MPI_BYTE, flat.data_ptr(), from.counts.data(),
                       from.offsets.data(), MPI_BYTE, MPI_COMM_WORLD);
      } else {
        MPI_Gatherv(own, from.counts[p.rank], MPI_BYTE, flat.data_ptr(), from.counts.data(),
                    from.offsets.data(), MPI_BYTE, 0, MPI_COMM_WORLD);
      }
      if (!everywhere && !is_root) return at::Tensor();
      if (is_staged) unpack(p, flat, p.sizes, output);
      return output;
    };
    return result;
  }
  if (name == "scatter_v" || name == "reduce_scatter_v") {
    const at::Tensor output = at::empty(p.shape_with(p.sizes[p.rank]), p.input.options());
    const bool adds = name == "reduce_scatter_v";
    const bool sends = adds || is_root;
    const at::Tensor flat = is_staged && sends ? flat_for(p, p.sizes) : p.input;
    result.kept = {output};
    const Counts to = counts_for(p, p.sizes, adds ? 1 : element);
    result.call = [=, &p] {
      if (is_staged && sends) pack(p, p.input, p.sizes, flat);
      if (adds) {
        MPI_Reduce_scatter(flat.data_ptr(), output.data_ptr(), to.counts.data(), MPI_FLOAT, MPI_SUM,
                           MPI_COMM_WORLD);
      } else {
        MPI_Scatterv(flat.data_ptr(), to.counts.data(), to.offsets.data(), MPI_BYTE,
                     output.data_ptr(), to.counts[p.rank], MPI_BYTE, 0, MPI_COMM_WORLD);
      }
      return output;
    };
    return result;
  }
  // All-to-alls. Backward: what was received is sent back.
  const bool is_backward = name == "indexed_all_to_all_v_backward";
  const bool is_forward = name == "indexed_all_to_all_v";
  const std::vector<int64_t> to_extents = is_backward ? p.received() : p.sent();
  const std::vector<int64_t> from_extents = is_backward ? p.sent() : p.received();
  const Counts to = counts_for(p, to_extents, element);
  const Counts from = counts_for(p, from_extents, element);
  int64_t extent = 0;
  for (const int64_t e : from_extents) extent += e;
  const at::Tensor output =
      at::empty(is_backward ? p.shape : p.shape_with(extent), p.input.options());
  const bool sends_copy = is_forward || is_staged;
  const at::Tensor send = sends_copy ? flat_for(p, to_extents) : p.input;
  const at::Tensor received = is_backward || is_staged ? flat_for(p, from_extents) : output;
  result.kept = {output, received};
  if (is_forward)
    result.note += std::string(result.note.empty() ? "" : "; ") + "after index_select";
  if (is_backward) result.note += std::string(result.note.empty() ? "" : "; ") + "and index_add_";
  const auto equal = [](const Counts& c) {
    return std::all_of(c.counts.begin(), c.counts.end(), [&](int n) { return n == c.counts[0]; });
  };
  // MPI_Alltoall where every rank may call it: the same count everywhere.
  const bool is_even = !p.what.skewed && equal(to) && equal(from);
  result.call = [=, &p] {
    if (is_forward) {
      std::vector<at::Tensor> pieces = pieces_of(p, send, to_extents);
      for (int r = 0; r < p.size; ++r) {
        at::index_select_out(pieces[r], p.input, p.dim, p.indices[r]);
      }
      copied_bytes() += static_cast<int64_t>(send.nbytes());
    } else if (is_staged) {
      pack(p, p.input, to_extents, send);
    }
    if (is_even) {
      MPI_Alltoall(send.data_ptr(), to.counts[0], MPI_BYTE, received.data_ptr(), to.counts[0],
                   MPI_BYTE, MPI_COMM_WORLD);
    } else {
      MPI_Alltoallv(send.data_ptr(), to.counts.data(), to.offsets.data(), MPI_BYTE,
                    received.data_ptr(), from.counts.data(), from.offsets.data(), MPI_BYTE,
                    MPI_COMM_WORLD);
    }
    if (is_backward) {
      output.zero_();
      const std::vector<at::Tensor> pieces = pieces_of(p, received, from_extents);
      for (int r = 0; r < p.size; ++r) output.index_add_(p.dim, p.indices[r], pieces[r]);
    } else if (is_staged) {
      unpack(p, received, from_extents, output);
    }
    return output;
  };
  return result;
}

}  // namespace meshrun::bench
