// Gloo over loopback TCP, as LibTorch has it: with PhysicsNeMo's steps around it, and without.
//
// PhysicsNeMo (physicsnemo/distributed/utils.py) calls list all_to_all and uneven all_gather, which
// ProcessGroupGloo has not. They are replaced by what costs no more: alltoall_base on one flat
// buffer of which the lists' tensors are views, and one broadcast for each rank's piece, which is
// what ProcessGroupNCCL makes of an uneven list. All else is as there: what is allocated, copied,
// stacked, concatenated, and the tensors that only fill a place.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "tests/bench/collectives/contender.h"
#include "third_party/libtorch/shims.h"

namespace meshrun::bench {
namespace {

using Extents = std::vector<int64_t>;

void all_to_all(const Group& gloo, const at::Tensor& to, Extents to_counts, const at::Tensor& from,
                Extents from_counts) {
  at::Tensor output = to, input = from;
  libtorch::all_to_all_single(*gloo, output, input, to_counts, from_counts, {.asyncOp = false})
      ->wait();
}

void broadcast(const Group& gloo, const at::Tensor& tensor, int root) {
  std::vector<at::Tensor> tensors = {tensor};
  gloo->broadcast(tensors, {.rootRank = root, .asyncOp = false})->wait();
}

bool are_equal(const Extents& extents) {
  return std::all_of(extents.begin(), extents.end(),
                     [&](int64_t extent) { return extent == extents[0]; });
}

// Only this rank's piece, or only the root's.
Extents only(const Extents& extents, int rank) {
  Extents result(extents.size(), 0);
  result[rank] = extents[rank];
  return result;
}

at::Tensor concatenate(const std::vector<at::Tensor>& pieces, int64_t dim) {
  const at::Tensor whole = at::cat(pieces, dim);
  copied_bytes() += static_cast<int64_t>(whole.nbytes());
  return whole;
}

// split() and contiguous(): no copy along dim 0.
at::Tensor contiguous_pieces(const Problem& p, const at::Tensor& whole, const Extents& extents) {
  if (p.dim == 0) return whole.view({-1});
  const at::Tensor flat = flat_for(p, extents);
  pack(p, whole, extents, flat);
  return flat;
}

// ---- PhysicsNeMo's

at::Tensor all_gather_v(const Problem& p, const Group& gloo) {
  std::vector<at::Tensor> pieces;
  for (const int64_t extent : p.sizes) {
    pieces.push_back(at::empty(p.shape_with(extent), p.input.options()));
  }
  if (are_equal(p.sizes)) {
    std::vector<std::vector<at::Tensor>> outputs = {pieces};
    std::vector<at::Tensor> inputs = {p.input};
    gloo->allgather(outputs, inputs, {.asyncOp = false})->wait();
    copied_bytes() += p.what.bytes;  // c10d's flat buffer
  } else {
    pieces[p.rank].copy_(p.input);
    copied_bytes() += static_cast<int64_t>(p.input.nbytes());
    for (int r = 0; r < p.size; ++r) broadcast(gloo, pieces[r], r);
  }
  return concatenate(pieces, p.dim);
}

at::Tensor reduce_scatter_v(const Problem& p, const Group& gloo) {
  const at::Tensor send = contiguous_pieces(p, p.input, p.sizes);
  const Extents own(p.size, p.sizes[p.rank]);
  const at::Tensor received = flat_for(p, own);
  all_to_all(gloo, received, counts_of(p, own), send, counts_of(p, p.sizes));
  const at::Tensor stacked = at::stack(pieces_of(p, received, own), /*dim=*/2);
  copied_bytes() += static_cast<int64_t>(stacked.nbytes());
  const auto dtype = p.input.scalar_type();
  return at::sum(stacked, {2}, false, at::elementSize(dtype) < 4 ? at::kFloat : dtype).to(dtype);
}

at::Tensor gather_v(const Problem& p, const Group& gloo) {
  const bool is_root = p.rank == 0;
  const Extents from = is_root ? p.sizes : Extents(p.size, 0);
  const at::Tensor received = flat_for(p, from);
  all_to_all(gloo, received, counts_of(p, from), p.input.view({-1}),
             counts_of(p, only(Extents(p.size, p.sizes[p.rank]), 0)));
  std::vector<at::Tensor> pieces;
  if (is_root) {
    pieces = pieces_of(p, received, p.sizes);
  } else {
    for (const int64_t extent : p.sizes) {
      pieces.push_back(at::empty(p.shape_with(extent), p.input.options()));
    }
  }
  const at::Tensor whole = concatenate(pieces, p.dim);
  return is_root ? whole : at::Tensor();
}

at::Tensor scatter_v(const Problem& p, const Group& gloo) {
  const bool is_root = p.rank == 0;
  const Extents to = is_root ? p.sizes : Extents(p.size, 0);
  const at::Tensor send = is_root ? contiguous_pieces(p, p.input, to) : p.input.view({-1});
  const Extents from = only(Extents(p.size, p.sizes[p.rank]), 0);
  const at::Tensor received = flat_for(p, from);
  all_to_all(gloo, received, counts_of(p, from), send, counts_of(p, to));
  return pieces_of(p, received, from)[0];
}

// tensor[indices] for each peer, into the views of a flat buffer.
void select(const Problem& p, const at::Tensor& flat) {
  std::vector<at::Tensor> pieces = pieces_of(p, flat, p.sent());
  for (int r = 0; r < p.size; ++r) {
    at::index_select_out(pieces[r], p.input, p.dim, p.indices[r]);
  }
  copied_bytes() += static_cast<int64_t>(flat.nbytes());
}

at::Tensor indexed(const Problem& p, const Group& gloo) {
  const at::Tensor send = flat_for(p, p.sent());
  select(p, send);
  const at::Tensor received = flat_for(p, p.received());
  all_to_all(gloo, received, counts_of(p, p.received()), send, counts_of(p, p.sent()));
  return concatenate(pieces_of(p, received, p.received()), p.dim);
}

at::Tensor indexed_backward(const Problem& p, const Group& gloo) {
  const at::Tensor send = contiguous_pieces(p, p.input, p.received());
  const at::Tensor received = flat_for(p, p.sent());
  all_to_all(gloo, received, counts_of(p, p.sent()), send, counts_of(p, p.received()));
  const at::Tensor gradients = concatenate(pieces_of(p, received, p.sent()), p.dim);
  const at::Tensor indices = at::cat(p.indices);
  const auto dtype = p.input.scalar_type();
  const auto wide = at::elementSize(dtype) < 4 ? at::kFloat : dtype;
  const at::Tensor result = at::zeros(p.shape, p.input.options().dtype(wide));
  return result.index_add_(p.dim, indices, gradients.to(wide)).to(dtype);
}

at::Tensor exchange(const Problem& p, const Group& gloo) {
  const at::Tensor received = flat_for(p, p.received());
  all_to_all(gloo, received, counts_of(p, p.received()), p.input.view({-1}),
             counts_of(p, p.sent()));
  return concatenate(pieces_of(p, received, p.received()), p.dim);
}

Contender all_reduce(const Problem& problem, const Group& gloo, const std::string& name) {
  const at::Tensor tensor = at::empty_like(problem.input);
  return {.name = name,
          .note = "in place",
          .call =
              [=, backend = gloo->getBackend(c10::kCPU)] {
                std::vector<at::Tensor> tensors = {tensor};
                backend->allreduce(tensors, {.asyncOp = false})->wait();
                return tensor;
              },
          .prepare = [=, &problem] { tensor.copy_(problem.input); }};
}

}  // namespace

Contender physicsnemo_equivalent(const Problem& problem, const Group& gloo) {
  static const std::string kName = "physicsnemo_equivalent";
  const std::string& name = problem.what.operation;
  if (name == "all_reduce") return all_reduce(problem, gloo, kName);
  using Function = at::Tensor (*)(const Problem&, const Group&);
  const std::vector<std::pair<std::string, Function>> functions = {
      {"all_gather_v", all_gather_v},
      {"reduce_scatter_v", reduce_scatter_v},
      {"gather_v", gather_v},
      {"scatter_v", scatter_v},
      {"indexed_all_to_all_v", indexed},
      {"indexed_all_to_all_v_backward", indexed_backward},
      {"all_to_all", exchange}};
  const auto found =
      std::find_if(functions.begin(), functions.end(), [&](auto& f) { return f.first == name; });
  TORCH_CHECK(found != functions.end(), "no such operation: ", name);
  const Function function = found->second;
  std::string note = "list all_to_all as alltoall_base";
  if (name == "all_gather_v") {
    note = are_equal(problem.sizes) ? "all_gather of a list" : "uneven all_gather as broadcasts";
  }
  return {.name = kName, .note = std::move(note), .call = [=, &problem] {
            return function(problem, gloo);
          }};
}

Contender raw_gloo(const Problem& problem, const Group& gloo) {
  const Problem& p = problem;
  const std::string& name = p.what.operation;
  if (name == "all_reduce") return all_reduce(p, gloo, "gloo");
  Contender result{.name = "gloo"};
  if (p.dim != 0) result.note = "pieces lie one after the other: neither packed nor unpacked";
  const bool is_root = p.rank == 0;
  // Packed beforehand.
  const auto packed = [&](const at::Tensor& whole, const Extents& extents) {
    const at::Tensor flat = flat_for(p, extents);
    pack(p, whole, extents, flat);
    return flat;
  };
  const auto put_in_order = [&](const Extents& extents) {
    result.ordered = [&p, extents](const at::Tensor& flat) {
      const at::Tensor whole =
          at::empty(p.shape_with(std::accumulate(extents.begin(), extents.end(), int64_t{0})),
                    flat.options());
      unpack(p, flat, extents, whole);
      return whole;
    };
  };
  const auto exchange_of = [&](const at::Tensor& to, const Extents& from_extents,
                               const at::Tensor& from, const Extents& to_extents) {
    return [=, to_counts = counts_of(p, from_extents), from_counts = counts_of(p, to_extents)] {
      all_to_all(gloo, to, to_counts, from, from_counts);
    };
  };
  if (name == "all_gather_v") {
    const at::Tensor output = flat_for(p, p.sizes);
    result.kept = {output};
    const at::Tensor input = p.input.view({-1});
    if (are_equal(p.sizes)) {
      result.call = [=] {
        at::Tensor to = output, from = input;
        libtorch::all_gather_single(*gloo, to, from, {.asyncOp = false})->wait();
        return output;
      };
    } else {
      result.note += std::string(result.note.empty() ? "" : "; ") + "a broadcast for each piece";
      std::vector<at::Tensor> pieces = pieces_of(p, output, p.sizes);
      result.call = [=, rank = p.rank] {
        pieces[rank].view({-1}).copy_(input);
        copied_bytes() += static_cast<int64_t>(input.nbytes());
        for (int r = 0; r < static_cast<int>(pieces.size()); ++r) broadcast(gloo, pieces[r], r);
        return output;
      };
    }
    put_in_order(p.sizes);
  } else if (name == "reduce_scatter_v") {
    const Extents own(p.size, p.sizes[p.rank]);
    const at::Tensor received = flat_for(p, own);
    const at::Tensor output = at::empty(p.shape_with(own[0]), p.input.options());
    result.kept = {received, output};
    result.note += std::string(result.note.empty() ? "" : "; ") + "all-to-all and a sum";
    const auto run = exchange_of(received, own, packed(p.input, p.sizes), p.sizes);
    result.call = [=, rows = received.view({p.size, -1})] {
      run();
      at::Tensor sum = output.view({-1});
      at::sum_out(sum, rows, {0});
      return output;
    };
  } else if (name == "gather_v") {
    const Extents from = is_root ? p.sizes : Extents(p.size, 0);
    const at::Tensor output = flat_for(p, from);
    result.kept = {output};
    const auto run =
        exchange_of(output, from, p.input.view({-1}), only(Extents(p.size, p.sizes[p.rank]), 0));
    result.call = [=] {
      run();
      return is_root ? output : at::Tensor();
    };
    put_in_order(p.sizes);
  } else if (name == "scatter_v") {
    const Extents to = is_root ? p.sizes : Extents(p.size, 0);
    const Extents from = only(Extents(p.size, p.sizes[p.rank]), 0);
    const at::Tensor output = flat_for(p, from);
    result.kept = {output};
    const auto run = exchange_of(output, from, is_root ? packed(p.input, to) : flat_for(p, to), to);
    result.call = [=] {
      run();
      return output;
    };
    put_in_order({p.sizes[p.rank]});
  } else if (name == "indexed_all_to_all_v_backward") {
    const at::Tensor received = flat_for(p, p.sent());
    const at::Tensor output = at::empty(p.shape, p.input.options());
    result.kept = {received, output};
    result.note += std::string(result.note.empty() ? "" : "; ") + "and index_add_";
    const auto run = exchange_of(received, p.sent(), packed(p.input, p.received()), p.received());
    result.call = [=, &p, pieces = pieces_of(p, received, p.sent())] {
      run();
      output.zero_();
      for (int r = 0; r < p.size; ++r) output.index_add_(p.dim, p.indices[r], pieces[r]);
      return output;
    };
  } else {
    const bool is_indexed = name == "indexed_all_to_all_v";
    const at::Tensor send = is_indexed ? flat_for(p, p.sent()) : p.input.view({-1});
    const at::Tensor output = flat_for(p, p.received());
    result.kept = {output};
    if (is_indexed)
      result.note += std::string(result.note.empty() ? "" : "; ") + "after index_select";
    const auto run = exchange_of(output, p.received(), send, p.sent());
    result.call = [=, &p] {
      if (is_indexed) select(p, send);
      run();
      return output;
    };
    put_in_order(p.received());
  }
  return result;
}

}  // namespace meshrun::bench
