#include "parallel/shard/operators/row_exchange.h"

#include <numeric>

#include "ATen/ops/argsort.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/bucketize.h"
#include "ATen/ops/index_select.h"
#include "parallel/base/extents.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/all_to_all_v.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

struct Peers {
  Lengths ranks_of_piece;  // in the group
  int64_t own_piece = 0;
  int64_t group_size = 0;
  ShardMesh::Group group;
};

// The ranks that differ from this one along the axes of a cut alone.
Peers peers_of(const ShardMesh::Ptr& mesh, const Lengths& axes) {
  Peers peers;
  int64_t pieces = 1;
  for (const int64_t axis : axes) {
    const int64_t ranks = mesh->shape()[static_cast<size_t>(axis)];
    peers.own_piece = peers.own_piece * ranks + mesh->coordinate()[static_cast<size_t>(axis)];
    pieces *= ranks;
  }
  if (axes.size() == 1) {
    peers.group = mesh->axis_group(axes.front());
    peers.group_size = pieces;
    peers.ranks_of_piece.resize(static_cast<size_t>(pieces));
    std::iota(peers.ranks_of_piece.begin(), peers.ranks_of_piece.end(), int64_t{0});
    return peers;
  }
  peers.group = mesh->group();
  peers.group_size = mesh->size();
  for (int64_t piece = 0; piece < pieces; ++piece) {
    Lengths coordinate = mesh->coordinate();
    int64_t rest = piece;
    for (size_t i = axes.size(); i-- > 0;) {
      const auto axis = static_cast<size_t>(axes[i]);
      coordinate[axis] = rest % mesh->shape()[axis];
      rest /= mesh->shape()[axis];
    }
    int64_t rank = 0;
    for (size_t axis = 0; axis < coordinate.size(); ++axis) {
      rank = rank * mesh->shape()[axis] + coordinate[axis];
    }
    peers.ranks_of_piece.push_back(rank);
  }
  return peers;
}

}  // namespace

at::Tensor exchange_rows(const at::Tensor& local, const ShardMesh::Ptr& mesh, int64_t dim,
                         const DimCut& from, const Lengths& rows, const DimCut& to) {
  const Peers peers = peers_of(mesh, from.axes);
  const Lengths begins = extent_offsets(from.sizes);
  const auto own = static_cast<size_t>(peers.own_piece);
  const auto is_of = [&](int64_t row, size_t piece) {
    return row >= begins[piece] && row < begins[piece + 1];
  };
  // By ranks of the group, which are in the order of the pieces.
  Lengths send_sizes(static_cast<size_t>(peers.group_size));
  Lengths receive_sizes(static_cast<size_t>(peers.group_size));
  Lengths sent;
  Lengths order;  // where the rows of the result are among those that arrive
  size_t begin = 0;
  for (size_t piece = 0; piece < to.sizes.size(); ++piece) {
    const size_t end = begin + static_cast<size_t>(to.sizes[piece]);
    int64_t& count = send_sizes[static_cast<size_t>(peers.ranks_of_piece[piece])];
    for (size_t j = begin; j < end; ++j) {
      if (!is_of(rows[j], own)) continue;
      sent.push_back(rows[j] - begins[own]);
      ++count;
    }
    if (piece == own) {
      order.resize(end - begin);
      int64_t arrived = 0;
      for (size_t source = 0; source < from.sizes.size(); ++source) {
        for (size_t j = begin; j < end; ++j) {
          if (!is_of(rows[j], source)) continue;
          order[j - begin] = arrived++;
          ++receive_sizes[static_cast<size_t>(peers.ranks_of_piece[source])];
        }
      }
    }
    begin = end;
  }
  const auto indices = [&](const Lengths& values) { return constant(values).to(local.device()); };
  const at::Tensor packed = at::index_select(local, dim, indices(sent));
  const at::Tensor arrived =
      all_to_all_v(packed, send_sizes, receive_sizes, dim, dim, GroupArgument(peers.group));
  return at::index_select(arrived, dim, indices(order));
}

RowRoute::RowRoute(const at::Tensor& rows, const ShardMesh::Ptr& mesh, const DimCut& to) {
  const Peers peers = peers_of(mesh, to.axes);
  group_ = peers.group;
  Lengths ends(to.sizes.size());
  std::partial_sum(to.sizes.begin(), to.sizes.end(), ends.begin());
  const auto on_device = [&](const Lengths& values) { return constant(values).to(rows.device()); };
  // The first piece that ends behind the row. A row beyond the last one was refused, or fails an
  // assertion of its device.
  const at::Tensor piece = at::bucketize(rows, on_device(ends), /*out_int32=*/false, /*right=*/true)
                               .clamp_max(static_cast<int64_t>(ends.size()) - 1);
  const at::Tensor rank = on_device(peers.ranks_of_piece).index_select(0, piece);
  order_ = at::argsort(rank, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor sent = at::bincount(rank, {}, peers.group_size);
  const Lengths one_each(static_cast<size_t>(peers.group_size), 1);
  const at::Tensor received = all_to_all_v(sent, one_each, one_each, 0, 0, GroupArgument(group_));
  const auto lengths = [](const at::Tensor& counts) {
    const at::Tensor on_host = counts.to(at::kCPU).contiguous();
    const int64_t* const begin = on_host.const_data_ptr<int64_t>();
    return Lengths(begin, begin + on_host.numel());
  };
  send_sizes_ = lengths(sent);
  receive_sizes_ = lengths(received);
}

at::Tensor RowRoute::send(const at::Tensor& tensor, int64_t dim) const {
  return all_to_all_v(at::index_select(tensor, dim, order_), send_sizes_, receive_sizes_, dim, dim,
                      GroupArgument(group_));
}

}  // namespace meshrun
