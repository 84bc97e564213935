#include "parallel/comm/point_to_point/point_to_point_v_collectives.h"

#include <algorithm>
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

// From one rank's part to the next: where 16-byte accesses can begin.
int64_t pitch_of(int64_t elements, const at::Tensor& tensor) {
  const int64_t unit = std::max<int64_t>(16 / tensor.element_size(), 1);
  return (elements + unit - 1) / unit * unit;
}

at::Tensor whole_in_bytes(const at::Tensor& tensor) {
  return memory_view(tensor, at::kByte, 0, static_cast<int64_t>(tensor.nbytes()));
}

// Whether an all_to_all_v moves this rank's own slice: else the caller has written it already, or
// reads it where it is.
bool moves_own(const CollectiveSpec& spec, int rank) {
  return spec.cut.of(rank) > 0 && spec.received.of(rank) > 0;
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

// How many elements each slice of `tensor` has.
std::vector<int64_t> elements_of(const at::Tensor& tensor, const Cut& cut) {
  const int64_t of_one = slice_elements(tensor, cut.dim);
  std::vector<int64_t> elements;
  for (const int64_t extent : cut.sizes) elements.push_back(extent * of_one);
  return elements;
}

bool own_travels(const StreamCalls* stream_calls, size_t bytes) {
  return stream_calls != nullptr && bytes <= kOwnAmongOthers;
}

// Whether a rank's own slice has one shape in both.
bool is_one_shape(const CollectiveSpec& spec, int rank, const at::Tensor& output,
                  const at::Tensor& input) {
  for (int64_t d = 0; d < input.dim(); ++d) {
    if ((d == spec.received.dim ? spec.received.of(rank) : output.size(d)) !=
        (d == spec.cut.dim ? spec.cut.of(rank) : input.size(d))) {
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
Options options_of(const CollectiveSpec& spec) {
  Options options;
  options.timeout = spec.timeout;
  options.asyncOp = spec.async;
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

// What every rank must say alike, in words. `tensor`: undefined where the call is wrong.
std::string words_of(const CollectiveSpec& spec, const at::Tensor& tensor) {
  std::string text = name_of(spec.kind);
  if (tensor.defined()) {
    const bool is_all_to_all = spec.kind == CollectiveSpec::Kind::kAllToAllV;
    const int64_t other_dim = is_all_to_all ? spec.received.dim : spec.cut.dim;
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[static_cast<size_t>(spec.cut.dim)] = shape[static_cast<size_t>(other_dim)] = -1;
    text += fmt::format(" of {} [{}] along dim {}", c10::toString(tensor.scalar_type()),
                        fmt::join(shape, ", "), spec.cut.dim);
    if (other_dim != spec.cut.dim) text += fmt::format(" to {}", other_dim);
    if (!is_all_to_all) text += fmt::format(", sizes [{}]", fmt::join(spec.cut.sizes, ", "));
    if (spec.kind == CollectiveSpec::Kind::kGatherV) text += fmt::format(" to rank {}", spec.root);
    if (spec.kind == CollectiveSpec::Kind::kScatterV) {
      text += fmt::format(" from rank {}", spec.root);
    }
  }
  return text + fmt::format("{}{}", spec.use_fp32 ? "" : ", not in float32",
                            spec.requires_grad ? ", with a gradient" : "");
}

}  // namespace

// Who gets which bytes, and what is to be done when they are there.
struct PointToPointVCollectives::Transfer {
  Transfer(int size, c10::Device device, StreamCalls* stream_calls)
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

void PointToPointVCollectives::check(CollectiveSpec& spec, const at::Tensor& output,
                                     const at::Tensor& input) const {
  using Kind = CollectiveSpec::Kind;
  const bool is_all_to_all = spec.kind == Kind::kAllToAllV;
  CallCheck check(std::move(spec.problem));
  const bool has_both =
      (spec.kind != Kind::kGatherV && spec.kind != Kind::kScatterV) || rank_ == spec.root;
  check.fits(spec, rank_, size_, output, input);
  if (has_both) check.are_of_one_kind(input, output);
  const bool is_gathered = is_all_to_all && compare_ == nullptr && !groups_calls_ && size_ > 1 &&
                           compares_by_gathering();
  Comparison comparison;
  if (is_all_to_all && !check.is_wrong() && moves_own(spec, rank_)) {
    check.require(is_one_shape(spec, rank_, output, input),
                  [] { return "a rank's own slice has two shapes in the input and the output"; });
  }
  if (compare_ || is_gathered) {
    // Undefined where the call is wrong: sizes need not fit it.
    const at::Tensor tensor = check.is_wrong()               ? at::Tensor()
                              : spec.kind == Kind::kScatterV ? output
                                                             : input;
    std::string text = words_of(spec, tensor);
    comparison.digest = Fingerprint(text + fmt::format(" {}", spec.agreed));
    if (spec.words) text += (*spec.words)();
    comparison.what = std::move(text);
    comparison.problem = check.problem();
    comparison.timeout = spec.timeout;
    if (is_all_to_all) {
      comparison.row.call = name_of(spec.kind);
      if (!check.is_wrong()) {
        comparison.row.sent = elements_of(input, spec.cut);
        comparison.row.expected = elements_of(output, spec.received);
      }
    }
    if (compare_) {
      compare_(std::move(comparison))->wait();
    } else {
      compare_by_gathering(*backend_, comparison);
    }
  }
  if (check.is_wrong()) throw CollectiveArgumentError(check.take_problem());
}

PointToPointVCollectives::Transfer PointToPointVCollectives::begin(
    c10::Device device, const CollectiveSpec& spec) const {
  const bool is_taken =
      stream_calls_ != nullptr && !spec.async && stream_calls_->takes_calls(device);
  return Transfer(size_, device, is_taken ? stream_calls_ : nullptr);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::send_and_receive(
    Transfer transfer, const CollectiveSpec& spec) const {
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
      start(transfer.receives[static_cast<size_t>(from)], from, false);
      start(transfer.sends[static_cast<size_t>(to)], to, true);
    }
  };
  const auto is_there = [](const at::Tensor& bytes) { return bytes.defined(); };
  const bool is_idle = std::none_of(transfer.sends.begin(), transfer.sends.end(), is_there) &&
                       std::none_of(transfer.receives.begin(), transfer.receives.end(), is_there);
  if (is_idle) {
    // Nothing to start.
  } else if (transfer.stream_calls != nullptr) {
    transfer.stream_calls->send_and_receive(transfer.rest.device, pieces_of(transfer.sends),
                                            pieces_of(transfer.receives));
  } else if (groups_calls_) {
    parts = grouped(*backend_, start_all);
  } else {
    start_all();
  }
  return work_of(std::move(parts), std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::work_of(
    std::vector<WorkPtr> parts, Transfer transfer, const CollectiveSpec& spec) const {
  PointToPointWork::Rest& rest = transfer.rest;
  for (const auto* messages : {&transfer.sends, &transfer.receives}) {
    for (const at::Tensor& bytes : *messages) {
      if (bytes.defined()) rest.kept.push_back(bytes);
    }
  }
  rest.timeout = spec.timeout;
  rest.async = spec.async;
  return c10::make_intrusive<PointToPointWork>(op_type_of(spec.kind), std::move(parts),
                                               std::move(rest));
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather_equal(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(output.device(), spec);
  transfer.rest.result = output;
  Slices slices(output, spec.cut, -1, Slices::Place::kOneBlock);
  at::Tensor own = slices.bytes[static_cast<size_t>(rank_)];
  if (!own.defined()) return send_and_receive(std::move(transfer), spec);
  if (slices.packed.empty() && point_to_point::can_travel(input)) {
    own = whole_in_bytes(input);
  } else {
    copy_own_into_bytes(own, input);
  }
  std::vector<WorkPtr> parts;
  if (StreamCalls* const calls = transfer.stream_calls) {
    calls->all_gather(output.device(), slices.block.data_ptr(), {own.data_ptr(), own.nbytes()});
    transfer.receives = {own, slices.block};
  } else {
    at::Tensor all = memory_view(slices.block, at::kByte, 0, static_cast<int64_t>(output.nbytes()));
    const auto options = options_of<c10d::AllgatherOptions>(spec);
    if (WorkPtr work = backend_->_allgather_base(all, own, options)) {
      parts.push_back(std::move(work));
    }
    transfer.receives = {own, all};
  }
  transfer.unpack(std::move(slices));
  return work_of(std::move(parts), std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather_by_broadcasts(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(output.device(), spec);
  transfer.rest.result = output;
  Slices slices(output, spec.cut, -1);
  transfer.receives = slices.bytes;
  const at::Tensor& own = transfer.receives[static_cast<size_t>(rank_)];
  StreamCalls* const calls = transfer.stream_calls;
  // A broadcast of NCCL's may begin in one memory and end in another.
  const bool is_copied = own.defined() && !(calls && point_to_point::can_travel(input));
  if (is_copied) copy_own_into_bytes(own, input);
  const std::vector<at::Tensor>& pieces = transfer.receives;
  if (std::none_of(pieces.begin(), pieces.end(), [](const auto& b) { return b.defined(); })) {
    return send_and_receive(std::move(transfer), spec);
  }
  std::vector<WorkPtr> parts;
  if (calls != nullptr) {
    const void* const source = (is_copied ? own : input).const_data_ptr();
    calls->broadcast_each(output.device(), pieces_of(pieces), source);
  } else {
    auto options = options_of<c10d::BroadcastOptions>(spec);
    parts = grouped(*backend_, [&] {
      for (int rank = 0; rank < size_; ++rank) {
        std::vector<at::Tensor> piece = {pieces[static_cast<size_t>(rank)]};
        if (!piece[0].defined()) continue;  // on no rank
        options.rootRank = rank;
        backend_->broadcast(piece, options);
      }
    });
  }
  transfer.unpack(std::move(slices));
  return work_of(std::move(parts), std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::reduce_scatter_equal(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(output.device(), spec);
  transfer.rest.result = output;
  if (output.numel() == 0) return send_and_receive(std::move(transfer), spec);
  const Slices slices(input, spec.cut, -1, Slices::Place::kOneBlock);
  slices.pack();
  const at::Tensor sum =
      point_to_point::can_travel(output) ? output : at::empty(output.sizes(), output.options());
  // Complex numbers are added as pairs.
  const at::ScalarType type = c10::toRealValueType(output.scalar_type());
  const int64_t numbers = output.is_complex() ? 2 : 1;
  at::Tensor from = memory_view(slices.block, type, 0, numbers * input.numel());
  at::Tensor to = memory_view(sum, type, 0, numbers * output.numel());
  std::vector<WorkPtr> parts;
  if (StreamCalls* const calls = transfer.stream_calls) {
    calls->reduce_scatter(output.device(), to.data_ptr(), from.const_data_ptr(),
                          static_cast<size_t>(to.numel()), type);
  } else {
    const auto options = options_of<c10d::ReduceScatterOptions>(spec);
    if (WorkPtr work = backend_->_reduce_scatter_base(to, from, options)) {
      parts.push_back(std::move(work));
    }
  }
  transfer.receives = {from, to};
  if (!sum.is_same(output)) transfer.rest.finish = [output, sum] { output.copy_(sum); };
  return work_of(std::move(parts), std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::all_gather(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  const Extents& sizes = spec.cut.sizes;
  switch (groups_calls_ ? choose_gather_route({sizes.data(), sizes.size()}) : GatherRoute::kSends) {
    case GatherRoute::kAllGather:
      return gather_equal(output, input, spec);
    case GatherRoute::kBroadcasts:
      return gather_by_broadcasts(output, input, spec);
    case GatherRoute::kSends:
      break;
  }
  Transfer transfer = begin(output.device(), spec);
  const int skipped = own_travels(transfer.stream_calls, input.nbytes()) ? -1 : rank_;
  const Slices own = whole(input, spec.cut.dim);
  own.pack();
  // Packed before: the input may be a conjugate view of that slice.
  if (skipped == rank_) copy_own(slice_of(output, spec.cut, rank_), input);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != skipped) transfer.sends[static_cast<size_t>(peer)] = own.bytes[0];
  }
  transfer.receive_into({output, spec.cut, skipped});
  transfer.rest.result = output;
  return send_and_receive(std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::reduce_scatter(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  if (groups_calls_ && size_ > 1 && are_equal(spec.cut.sizes) &&
      is_added_by_backend(output.scalar_type(), spec.use_fp32)) {
    return reduce_scatter_equal(output, input, spec);
  }
  Transfer transfer = begin(output.device(), spec);
  const Slices sent(input, spec.cut, rank_);
  sent.pack();
  transfer.sends = sent.bytes;
  transfer.rest.result = output;
  const int64_t elements = output.numel();
  if (elements > 0) {
    const int64_t pitch = pitch_of(elements, output) * output.element_size();
    const at::Tensor parts =
        at::empty({size_, pitch_of(elements, output)}, output.options()).narrow(1, 0, elements);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        transfer.receives[static_cast<size_t>(peer)] =
            memory_view(parts, at::kByte, peer * pitch, static_cast<int64_t>(output.nbytes()));
      }
    }
    parts.select(0, rank_).view(output.sizes()).copy_(slice_of(input, spec.cut, rank_));
    transfer.rest.kept.push_back(parts);
    transfer.rest.finish = [output, parts, use_fp32 = spec.use_fp32] {
      sum_in_order(output, parts, use_fp32);
    };
  }
  return send_and_receive(std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::gather(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(input.device(), spec);
  if (rank_ == spec.root) {
    copy_own(slice_of(output, spec.cut, rank_), input);
    transfer.receive_into({output, spec.cut, rank_});
    transfer.rest.result = output;
  } else {
    const Slices own = whole(input, spec.cut.dim);
    own.pack();
    transfer.sends[static_cast<size_t>(spec.root)] = own.bytes[0];
  }
  return send_and_receive(std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::scatter(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(output.device(), spec);
  if (rank_ == spec.root) {
    const Slices sent(input, spec.cut, rank_);
    sent.pack();
    transfer.sends = sent.bytes;
    copy_own(output, slice_of(input, spec.cut, rank_));
  } else {
    transfer.receive_into(whole(output, spec.cut.dim));
    at::Tensor received = transfer.receives[0];
    transfer.receives.assign(static_cast<size_t>(size_), at::Tensor());
    transfer.receives[static_cast<size_t>(spec.root)] = std::move(received);
  }
  transfer.rest.result = output;
  return send_and_receive(std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::all_to_all(
    const at::Tensor& output, const at::Tensor& input, const CollectiveSpec& spec) const {
  Transfer transfer = begin(output.device(), spec);
  int skipped = rank_;
  if (moves_own(spec, rank_)) {
    const size_t own_bytes = input.nbytes() / static_cast<size_t>(input.size(spec.cut.dim)) *
                             static_cast<size_t>(spec.cut.of(rank_));
    if (own_travels(transfer.stream_calls, own_bytes)) {
      skipped = -1;
    } else {
      copy_own(slice_of(output, spec.received, rank_), slice_of(input, spec.cut, rank_));
    }
  }
  const Slices sent(input, spec.cut, skipped);
  sent.pack();
  transfer.sends = sent.bytes;
  transfer.receive_into({output, spec.received, skipped});
  transfer.rest.result = output;
  return send_and_receive(std::move(transfer), spec);
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::run(const at::Tensor& output,
                                                                const at::Tensor& input,
                                                                CollectiveSpec spec) {
  using Kind = CollectiveSpec::Kind;
  const at::NoGradGuard no_grad;
  try {
    check(spec, output, input);
    switch (spec.kind) {
      case Kind::kAllGatherV:
        return all_gather(output, input, spec);
      case Kind::kReduceScatterV:
        return reduce_scatter(output, input, spec);
      case Kind::kGatherV:
        return gather(output, input, spec);
      case Kind::kScatterV:
        return scatter(output, input, spec);
      case Kind::kAllToAllV:
        return all_to_all(output, input, spec);
      default:
        throw CollectiveArgumentError(fmt::format("{} is not on pieces", name_of(spec.kind)));
    }
  } catch (...) {
    // Errors belong to the Work.
    return c10::make_intrusive<PointToPointWork>(op_type_of(spec.kind), std::current_exception());
  }
}

}  // namespace meshrun
