#include "parallel/comm/point_to_point/point_to_point_v_collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/base/collective_errors.h"
#include "parallel/comm/interface/call_check.h"
#include "parallel/comm/interface/reduction_order.h"
#include "parallel/comm/point_to_point/gather_route.h"
#include "parallel/comm/point_to_point/gathered_comparison.h"
#include "parallel/comm/point_to_point/point_to_point_work.h"
#include "parallel/comm/point_to_point/slices.h"
#include "parallel/kernels/piece_kernels.h"

namespace meshrun {

using c10d::OpType;
using point_to_point::copy_own;
using point_to_point::copy_own_into_bytes;
using point_to_point::memory_view;
using point_to_point::slice_of;
using point_to_point::Slices;
using point_to_point::whole;

namespace {

// The largest that every backend takes: out of the way of the caller's own sends.
constexpr int kTag = (1 << 30) - 1;

// A rank's own slice of up to so many bytes goes with the others, in their kernel. A longer one is
// copied, which is faster than the few channels that a backend has for it.
constexpr size_t kOwnAmongOthers = 256 << 10;

int64_t sum(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// From one rank's part to the next: where 16-byte accesses can begin.
int64_t pitch_of(int64_t elements, const at::Tensor& tensor) {
  const int64_t unit = std::max<int64_t>(16 / tensor.element_size(), 1);
  return (elements + unit - 1) / unit * unit;
}

at::Tensor whole_in_bytes(const at::Tensor& tensor) {
  return memory_view(tensor, at::kByte, 0, static_cast<int64_t>(tensor.nbytes()));
}

// Of all_to_all_v: else the caller has written it already, or reads it where it is.
bool moves_own(at::IntArrayRef input_sizes, at::IntArrayRef output_sizes, int rank) {
  const auto own = static_cast<size_t>(rank);
  return input_sizes[own] > 0 && output_sizes[own] > 0;
}

// What a backend adds itself, where its order of the ranks may be its own. The exchange adds the
// rest: 16-bit floats in float32, bools, what NCCL has no type for.
bool is_added_by_backend(at::ScalarType type, bool use_fp32) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return true;  // the same in any order
    case at::kHalf:
    case at::kBFloat16:
      return !use_fp32 && !sums_in_rank_order();
    case at::kFloat:
    case at::kDouble:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return !sums_in_rank_order();
    default:
      return false;
  }
}

// Of slices of these extents along `dim`.
std::vector<int64_t> elements_of(const at::Tensor& tensor, int64_t dim, at::IntArrayRef extents) {
  int64_t of_one = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) of_one *= d == dim ? 1 : tensor.size(d);
  std::vector<int64_t> elements;
  for (const int64_t extent : extents) elements.push_back(extent * of_one);
  return elements;
}

bool own_travels(const StreamCalls* stream_calls, size_t bytes) {
  return stream_calls != nullptr && bytes <= kOwnAmongOthers;
}

// Whether a rank's own slice has one shape in both.
bool is_one_shape(const at::Tensor& output, int64_t output_dim, int64_t output_size,
                  const at::Tensor& input, int64_t input_dim, int64_t input_size) {
  for (int64_t d = 0; d < input.dim(); ++d) {
    if ((d == output_dim ? output_size : output.size(d)) !=
        (d == input_dim ? input_size : input.size(d))) {
      return false;
    }
  }
  return true;
}

std::vector<StreamCalls::Piece> pieces_of(const std::vector<at::Tensor>& bytes) {
  std::vector<StreamCalls::Piece> pieces(bytes.size());
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    if (bytes[rank].defined()) pieces[rank] = {bytes[rank].data_ptr(), bytes[rank].nbytes()};
  }
  return pieces;
}

bool are_equal(at::IntArrayRef sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size == sizes[0]; });
}

// c10d's options: a call that is waited for at once runs on the current stream, and has no Work.
template <typename Options>
Options options_of(const VCall& call) {
  Options options;
  options.timeout = call.timeout;
  options.asyncOp = call.async;
  return options;
}

// What `calls` calls, in one group; the Work of all, if there is one.
template <typename Calls>
PointToPointWork::Parts grouped(c10d::Backend& backend, const Calls& calls) {
  backend.startCoalescing();
  try {
    calls();
  } catch (...) {
    backend.endCoalescing();
    throw;
  }
  PointToPointWork::Parts parts;
  if (VCollectives::WorkPtr all = backend.endCoalescing()) parts.push_back(std::move(all));
  return parts;
}

}  // namespace

// What every rank must say alike, in words; none where nobody compares.
struct PointToPointVCollectives::Agreed {
  Agreed(const char* name, bool is_compared) : is_compared(is_compared) {
    if (is_compared) text = name;
  }
  void add(const at::Tensor& tensor, int64_t dim, int64_t other_dim) {
    if (!is_compared) return;
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[static_cast<size_t>(dim)] = shape[static_cast<size_t>(other_dim)] = -1;
    text += fmt::format(" of {} [{}] along dim {}", c10::toString(tensor.scalar_type()),
                        fmt::join(shape, ", "), dim);
    if (other_dim != dim) text += fmt::format(" to {}", other_dim);
  }
  void add(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim) {
    if (!is_compared) return;
    add(tensor, dim, dim);
    text += fmt::format(", sizes [{}]", fmt::join(sizes, ", "));
  }
  void add_root(const char* preposition, int root) {
    if (is_compared) text += fmt::format(" {} rank {}", preposition, root);
  }

  const bool is_compared;
  std::string text;
};

// Who gets which bytes, and what is to be done when they are there.
struct PointToPointVCollectives::Exchange {
  Exchange(int size, c10::Device device, StreamCalls* stream_calls)
      : sends(static_cast<size_t>(size)),
        receives(static_cast<size_t>(size)),
        stream_calls(stream_calls) {
    rest.device = device;
  }

  std::vector<at::Tensor> sends;  // by peer; undefined: nothing
  std::vector<at::Tensor> receives;
  StreamCalls* stream_calls;  // null: by c10d's methods
  PointToPointWork::Rest rest;

  void receive_into(Slices slices) {
    receives = slices.bytes;
    unpack(std::move(slices));
  }
  void unpack(Slices slices) {
    if (slices.packed.empty()) return;
    rest.kept.push_back(slices.buffer);
    rest.finish = [slices = std::move(slices)] { slices.unpack(); };
  }
};

PointToPointVCollectives::PointToPointVCollectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                   Compare compare, StreamCalls* stream_calls)
    : backend_(std::move(backend)),
      stream_calls_(stream_calls),
      compare_(std::move(compare)),
      rank_(backend_->getRank()),
      size_(backend_->getSize()),
      groups_calls_(backend_->supportsCoalescing()) {}

void PointToPointVCollectives::agree(const Agreed& agreed, VCall& call, std::string problem) const {
  if (agreed.is_compared) {
    std::string text = agreed.text;
    text += fmt::format("{}{}", call.use_fp32 ? "" : ", not in float32",
                        call.requires_grad ? ", with a gradient" : "");
    VCall header;
    header.problem = problem;
    header.requires_grad = call.requires_grad;
    header.use_fp32 = call.use_fp32;
    header.timeout = call.timeout;
    header.row = std::move(call.row);
    const uint64_t digest = Fingerprint(text + fmt::format(" {}", call.agreed));
    if (call.details) text += call.details();
    if (compare_) {
      compare_(std::move(text), digest, std::move(header))->wait();
    } else {
      compare_by_gathering(*backend_, text, digest, header);
    }
  }
  if (!problem.empty()) throw CollectiveArgumentError(std::move(problem));
}

PointToPointVCollectives::Exchange PointToPointVCollectives::begin(c10::Device device,
                                                                   const VCall& call) const {
  const bool is_taken =
      stream_calls_ != nullptr && !call.async && stream_calls_->takes_calls(device);
  return Exchange(size_, device, is_taken ? stream_calls_ : nullptr);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::run(Exchange exchange, OpType type,
                                                                const VCall& call) const {
  PointToPointWork::Parts parts;
  const auto start = [&](const at::Tensor& bytes, int peer, bool is_send) {
    if (!bytes.defined()) return;
    std::vector<at::Tensor> message = {bytes};
    parts.push_back(is_send ? backend_->send(message, peer, kTag)
                            : backend_->recv(message, peer, kTag));
  };
  const auto start_all = [&] {
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      const int to = (rank_ + step) % size_;
      start(exchange.receives[static_cast<size_t>(from)], from, false);
      start(exchange.sends[static_cast<size_t>(to)], to, true);
    }
  };
  const auto is_there = [](const at::Tensor& bytes) { return bytes.defined(); };
  const bool is_idle = std::none_of(exchange.sends.begin(), exchange.sends.end(), is_there) &&
                       std::none_of(exchange.receives.begin(), exchange.receives.end(), is_there);
  if (is_idle) {
    // Nothing to start.
  } else if (exchange.stream_calls != nullptr) {
    exchange.stream_calls->send_and_receive(exchange.rest.device, pieces_of(exchange.sends),
                                            pieces_of(exchange.receives));
  } else if (groups_calls_) {
    parts = grouped(*backend_, start_all);
  } else {
    start_all();
  }
  return work_of(std::move(parts), std::move(exchange), type, call);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::work_of(std::vector<WorkPtr> parts,
                                                                    Exchange exchange, OpType type,
                                                                    const VCall& call) const {
  PointToPointWork::Rest& rest = exchange.rest;
  for (const auto* messages : {&exchange.sends, &exchange.receives}) {
    for (const at::Tensor& bytes : *messages) {
      if (bytes.defined()) rest.kept.push_back(bytes);
    }
  }
  rest.timeout = call.timeout;
  rest.async = call.async;
  return c10::make_intrusive<PointToPointWork>(type, std::move(parts), std::move(rest));
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather_equal(const at::Tensor& output,
                                                                         const at::Tensor& input,
                                                                         at::IntArrayRef sizes,
                                                                         int64_t dim,
                                                                         const VCall& call) const {
  Exchange exchange = begin(output.device(), call);
  exchange.rest.result = output;
  Slices slices(output, sizes, dim, -1, Slices::Place::kOneBlock);
  at::Tensor own = slices.bytes[static_cast<size_t>(rank_)];
  if (!own.defined()) return run(std::move(exchange), OpType::ALLGATHER, call);
  if (slices.packed.empty() && point_to_point::can_travel(input)) {
    own = whole_in_bytes(input);
  } else {
    copy_own_into_bytes(own, input);
  }
  std::vector<WorkPtr> parts;
  if (StreamCalls* const calls = exchange.stream_calls) {
    calls->all_gather(output.device(), slices.block.data_ptr(), {own.data_ptr(), own.nbytes()});
    exchange.receives = {own, slices.block};
  } else {
    at::Tensor all = memory_view(slices.block, at::kByte, 0, static_cast<int64_t>(output.nbytes()));
    const auto options = options_of<c10d::AllgatherOptions>(call);
    if (WorkPtr work = backend_->_allgather_base(all, own, options)) {
      parts.push_back(std::move(work));
    }
    exchange.receives = {own, all};
  }
  exchange.unpack(std::move(slices));
  return work_of(std::move(parts), std::move(exchange), OpType::ALLGATHER, call);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather_by_broadcasts(
    const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
    const VCall& call) const {
  Exchange exchange = begin(output.device(), call);
  exchange.rest.result = output;
  Slices slices(output, sizes, dim, -1);
  exchange.receives = slices.bytes;
  const at::Tensor& own = exchange.receives[static_cast<size_t>(rank_)];
  StreamCalls* const calls = exchange.stream_calls;
  // A broadcast of NCCL's may begin in one memory and end in another.
  const bool is_copied = own.defined() && !(calls && point_to_point::can_travel(input));
  if (is_copied) copy_own_into_bytes(own, input);
  const std::vector<at::Tensor>& pieces = exchange.receives;
  if (std::none_of(pieces.begin(), pieces.end(), [](const auto& b) { return b.defined(); })) {
    return run(std::move(exchange), OpType::ALLGATHER, call);
  }
  std::vector<WorkPtr> parts;
  if (calls != nullptr) {
    const void* const source = (is_copied ? own : input).const_data_ptr();
    calls->broadcast_each(output.device(), pieces_of(pieces), source);
  } else {
    auto options = options_of<c10d::BroadcastOptions>(call);
    parts = grouped(*backend_, [&] {
      for (int rank = 0; rank < size_; ++rank) {
        std::vector<at::Tensor> piece = {pieces[static_cast<size_t>(rank)]};
        if (!piece[0].defined()) continue;  // on no rank
        options.rootRank = rank;
        backend_->broadcast(piece, options);
      }
    });
  }
  exchange.unpack(std::move(slices));
  return work_of(std::move(parts), std::move(exchange), OpType::ALLGATHER, call);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::reduce_scatter_equal(
    const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
    const VCall& call) const {
  Exchange exchange = begin(output.device(), call);
  exchange.rest.result = output;
  if (output.numel() == 0) return run(std::move(exchange), OpType::REDUCE_SCATTER, call);
  const Slices slices(input, sizes, dim, -1, Slices::Place::kOneBlock);
  slices.pack();
  const at::Tensor sum =
      point_to_point::can_travel(output) ? output : at::empty(output.sizes(), output.options());
  // Complex numbers are added as pairs.
  const at::ScalarType type = c10::toRealValueType(output.scalar_type());
  const int64_t numbers = output.is_complex() ? 2 : 1;
  at::Tensor from = memory_view(slices.block, type, 0, numbers * input.numel());
  at::Tensor to = memory_view(sum, type, 0, numbers * output.numel());
  std::vector<WorkPtr> parts;
  if (StreamCalls* const calls = exchange.stream_calls) {
    calls->reduce_scatter(output.device(), to.data_ptr(), from.const_data_ptr(),
                          static_cast<size_t>(to.numel()), type);
  } else {
    const auto options = options_of<c10d::ReduceScatterOptions>(call);
    if (WorkPtr work = backend_->_reduce_scatter_base(to, from, options)) {
      parts.push_back(std::move(work));
    }
  }
  exchange.receives = {from, to};
  if (!sum.is_same(output)) exchange.rest.finish = [output, sum] { output.copy_(sum); };
  return work_of(std::move(parts), std::move(exchange), OpType::REDUCE_SCATTER, call);
}

namespace {

// Errors belong to the Work.
template <typename Call>
VCollectives::WorkPtr as_work(OpType type, const Call& call) {
  const at::NoGradGuard no_grad;
  try {
    return call();
  } catch (...) {
    return c10::make_intrusive<PointToPointWork>(type, std::current_exception());
  }
}

}  // namespace

PointToPointVCollectives::WorkPtr PointToPointVCollectives::all_gather_v(const at::Tensor& output,
                                                                         const at::Tensor& input,
                                                                         at::IntArrayRef sizes,
                                                                         int64_t dim, VCall call) {
  return as_work(OpType::ALLGATHER, [&] {
    Agreed agreed("all_gather_v", compare_ != nullptr);
    CallCheck check(std::move(call.problem));
    if (check.are_sizes(sizes, size_) &&
        check.has_extent(input, dim, sizes[static_cast<size_t>(rank_)], "the input") &&
        check.has_extent(output, dim, sum(sizes), "the output") &&
        check.are_equal_beside(input, output, dim) && check.are_of_one_kind(input, output)) {
      agreed.add(input, sizes, dim);
    }
    agree(agreed, call, check.take_problem());

    switch (groups_calls_ ? choose_gather_route({sizes.data(), sizes.size()})
                          : GatherRoute::kSends) {
      case GatherRoute::kAllGather:
        return gather_equal(output, input, sizes, dim, call);
      case GatherRoute::kBroadcasts:
        return gather_by_broadcasts(output, input, sizes, dim, call);
      case GatherRoute::kSends:
        break;
    }
    Exchange exchange = begin(output.device(), call);
    const int skipped = own_travels(exchange.stream_calls, input.nbytes()) ? -1 : rank_;
    if (skipped == rank_) copy_own(slice_of(output, sizes, dim, rank_), input);
    const Slices own = whole(input, dim);
    own.pack();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != skipped) exchange.sends[static_cast<size_t>(peer)] = own.bytes[0];
    }
    exchange.receive_into({output, sizes, dim, skipped});
    exchange.rest.result = output;
    return run(std::move(exchange), OpType::ALLGATHER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::reduce_scatter_v(
    const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
    VCall call) {
  return as_work(OpType::REDUCE_SCATTER, [&] {
    Agreed agreed("reduce_scatter_v", compare_ != nullptr);
    CallCheck check(std::move(call.problem));
    if (check.are_sizes(sizes, size_) && check.has_extent(input, dim, sum(sizes), "the input") &&
        check.has_extent(output, dim, sizes[static_cast<size_t>(rank_)], "the output") &&
        check.are_equal_beside(input, output, dim) && check.are_of_one_kind(input, output)) {
      agreed.add(input, sizes, dim);
    }
    agree(agreed, call, check.take_problem());

    if (groups_calls_ && size_ > 1 && are_equal(sizes) &&
        is_added_by_backend(output.scalar_type(), call.use_fp32)) {
      return reduce_scatter_equal(output, input, sizes, dim, call);
    }
    Exchange exchange = begin(output.device(), call);
    const Slices sent(input, sizes, dim, rank_);
    sent.pack();
    exchange.sends = sent.bytes;
    exchange.rest.result = output;
    const int64_t elements = output.numel();
    if (elements > 0) {
      const int64_t pitch = pitch_of(elements, output) * output.element_size();
      const at::Tensor parts =
          at::empty({size_, pitch_of(elements, output)}, output.options()).narrow(1, 0, elements);
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) {
          exchange.receives[static_cast<size_t>(peer)] =
              memory_view(parts, at::kByte, peer * pitch, static_cast<int64_t>(output.nbytes()));
        }
      }
      parts.select(0, rank_).view(output.sizes()).copy_(slice_of(input, sizes, dim, rank_));
      exchange.rest.kept.push_back(parts);
      exchange.rest.finish = [output, parts, use_fp32 = call.use_fp32] {
        sum_in_order(output, parts, use_fp32);
      };
    }
    return run(std::move(exchange), OpType::REDUCE_SCATTER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather_v(const at::Tensor& output,
                                                                     const at::Tensor& input,
                                                                     at::IntArrayRef sizes,
                                                                     int64_t dim, int root,
                                                                     VCall call) {
  return as_work(OpType::GATHER, [&] {
    Agreed agreed("gather_v", compare_ != nullptr);
    CallCheck check(std::move(call.problem));
    if (check.are_sizes(sizes, size_) && check.is_rank(root, size_, "the root") &&
        check.has_extent(input, dim, sizes[static_cast<size_t>(rank_)], "the input")) {
      agreed.add(input, sizes, dim);
      agreed.add_root("to", root);
      if (rank_ == root && check.has_extent(output, dim, sum(sizes), "the output")) {
        check.are_equal_beside(input, output, dim);
        check.are_of_one_kind(input, output);
      }
    }
    agree(agreed, call, check.take_problem());

    Exchange exchange = begin(input.device(), call);
    if (rank_ == root) {
      copy_own(slice_of(output, sizes, dim, rank_), input);
      exchange.receive_into({output, sizes, dim, rank_});
      exchange.rest.result = output;
    } else {
      const Slices own = whole(input, dim);
      own.pack();
      exchange.sends[static_cast<size_t>(root)] = own.bytes[0];
    }
    return run(std::move(exchange), OpType::GATHER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::scatter_v(const at::Tensor& output,
                                                                      const at::Tensor& input,
                                                                      at::IntArrayRef sizes,
                                                                      int64_t dim, int root,
                                                                      VCall call) {
  return as_work(OpType::SCATTER, [&] {
    Agreed agreed("scatter_v", compare_ != nullptr);
    CallCheck check(std::move(call.problem));
    if (check.are_sizes(sizes, size_) && check.is_rank(root, size_, "the root") &&
        check.has_extent(output, dim, sizes[static_cast<size_t>(rank_)], "the output")) {
      agreed.add(output, sizes, dim);
      agreed.add_root("from", root);
      if (rank_ == root && check.has_extent(input, dim, sum(sizes), "the input")) {
        check.are_equal_beside(input, output, dim);
        check.are_of_one_kind(input, output);
      }
    }
    agree(agreed, call, check.take_problem());

    Exchange exchange = begin(output.device(), call);
    if (rank_ == root) {
      const Slices sent(input, sizes, dim, rank_);
      sent.pack();
      exchange.sends = sent.bytes;
      copy_own(output, slice_of(input, sizes, dim, rank_));
    } else {
      exchange.receive_into(whole(output, dim));
      at::Tensor received = exchange.receives[0];
      exchange.receives.assign(static_cast<size_t>(size_), at::Tensor());
      exchange.receives[static_cast<size_t>(root)] = std::move(received);
    }
    exchange.rest.result = output;
    return run(std::move(exchange), OpType::SCATTER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::all_to_all_v(
    const at::Tensor& output, at::IntArrayRef output_sizes, int64_t output_dim,
    const at::Tensor& input, at::IntArrayRef input_sizes, int64_t input_dim, VCall call) {
  return as_work(OpType::ALLTOALL, [&] {
    const bool is_gathered =
        compare_ == nullptr && !groups_calls_ && size_ > 1 && compares_by_gathering();
    Agreed agreed("all_to_all_v", compare_ != nullptr || is_gathered);
    CallCheck check(std::move(call.problem));
    if (check.are_sizes(input_sizes, size_, "input_sizes") &&
        check.are_sizes(output_sizes, size_, "output_sizes") &&
        check.has_extent(input, input_dim, sum(input_sizes), "the input") &&
        check.has_extent(output, output_dim, sum(output_sizes), "the output") &&
        check.are_of_one_kind(input, output) && check.have_equal_ndim(input, output)) {
      agreed.add(input, input_dim, output_dim);
      if (agreed.is_compared) {
        call.row.sent = elements_of(input, input_dim, input_sizes);
        call.row.expected = elements_of(output, output_dim, output_sizes);
      }
      if (moves_own(input_sizes, output_sizes, rank_)) {
        const auto own = static_cast<size_t>(rank_);
        check.require(
            is_one_shape(output, output_dim, output_sizes[own], input, input_dim, input_sizes[own]),
            [] { return "a rank's own slice has two shapes in the input and the output"; });
      }
    }
    call.row.call = "all_to_all_v";
    agree(agreed, call, check.take_problem());

    Exchange exchange = begin(output.device(), call);
    int skipped = rank_;
    if (moves_own(input_sizes, output_sizes, rank_)) {
      const auto own_size = static_cast<size_t>(input_sizes[static_cast<size_t>(rank_)]);
      const size_t own_bytes =
          input.nbytes() / static_cast<size_t>(input.size(input_dim)) * own_size;
      if (own_travels(exchange.stream_calls, own_bytes)) {
        skipped = -1;
      } else {
        copy_own(slice_of(output, output_sizes, output_dim, rank_),
                 slice_of(input, input_sizes, input_dim, rank_));
      }
    }
    const Slices sent(input, input_sizes, input_dim, skipped);
    sent.pack();
    exchange.sends = sent.bytes;
    exchange.receive_into({output, output_sizes, output_dim, skipped});
    exchange.rest.result = output;
    return run(std::move(exchange), OpType::ALLTOALL, call);
  });
}

}  // namespace meshrun
