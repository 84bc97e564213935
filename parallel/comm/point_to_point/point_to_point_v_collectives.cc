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
#include "parallel/comm/point_to_point/point_to_point_work.h"
#include "parallel/kernels/piece_kernels.h"

namespace meshrun {

using c10d::OpType;

namespace {

// The largest that every backend takes: out of the way of the caller's own sends.
constexpr int kTag = (1 << 30) - 1;
// Of what is packed: where 16-byte accesses can begin.
constexpr int64_t kAlignment = 16;

int64_t sum(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

int64_t aligned(int64_t elements, const at::Tensor& tensor) {
  const int64_t unit = std::max<int64_t>(kAlignment / tensor.element_size(), 1);
  return (elements + unit - 1) / unit * unit;
}

bool can_travel(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Of what can_travel(). A contiguous tensor of one element may have any stride, which view() keeps.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

at::Tensor slice_of(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int rank) {
  return tensor.narrow(dim, sum(sizes.slice(0, static_cast<size_t>(rank))),
                       sizes[static_cast<size_t>(rank)]);
}

// A rank's own slice, which may be there already.
void copy_own(const at::Tensor& output, const at::Tensor& input) {
  const bool is_there = output.const_data_ptr() == input.const_data_ptr() &&
                        output.strides() == input.strides() &&
                        output.is_conj() == input.is_conj() && output.is_neg() == input.is_neg();
  if (output.numel() > 0 && !is_there) output.copy_(input);
}

// Of all_to_all_v: else the caller has written it already, or reads it where it is.
bool moves_own(at::IntArrayRef input_sizes, at::IntArrayRef output_sizes, int rank) {
  const auto own = static_cast<size_t>(rank);
  return input_sizes[own] > 0 && output_sizes[own] > 0;
}

// The slices of a tensor, as bytes to send from or to receive into.
struct Slices {
  // Without slice `skipped`; -1: all.
  Slices(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int skipped)
      : tensor(tensor), dim(dim), bytes(sizes.size()) {
    std::vector<size_t> ranks;
    int64_t begin = 0, elements = 0;
    for (size_t rank = 0; rank < sizes.size(); begin += sizes[rank++]) {
      if (static_cast<int>(rank) == skipped) continue;
      const at::Tensor slice = tensor.narrow(dim, begin, sizes[rank]);
      if (slice.numel() == 0) continue;
      if (can_travel(slice)) {
        bytes[rank] = as_bytes(slice);
      } else {
        ranks.push_back(rank);
        packed.push_back({begin, sizes[rank], elements});
        elements += aligned(slice.numel(), tensor);
      }
    }
    if (packed.empty()) return;
    buffer = at::empty({elements}, tensor.options());
    const int64_t per_size = tensor.numel() / tensor.size(dim);
    for (size_t i = 0; i < packed.size(); ++i) {
      bytes[ranks[i]] = as_bytes(buffer.narrow(0, packed[i].offset, packed[i].size * per_size));
    }
  }

  void pack() const {
    if (!packed.empty()) pack_pieces(buffer, tensor, dim, packed);
  }
  void unpack() const {
    if (!packed.empty()) unpack_pieces(tensor, dim, buffer, packed);
  }

  at::Tensor tensor;
  int64_t dim;
  std::vector<at::Tensor> bytes;  // by rank; undefined: nothing travels
  at::Tensor buffer;              // undefined where nothing is packed
  std::vector<PackedPiece> packed;
};

// A tensor that travels whole.
Slices whole(const at::Tensor& tensor, int64_t dim) {
  return {tensor, {tensor.size(dim)}, dim, -1};
}

// The first thing that is wrong with a call, after what the caller has found.
struct Check {
  std::string problem;

  template <typename Text>
  bool require(bool holds, const Text& text) {
    if (problem.empty() && !holds) problem = text();
    return problem.empty();
  }
  bool sizes(at::IntArrayRef sizes, int group_size) {
    if (!problem.empty()) return false;
    const bool negative = std::any_of(sizes.begin(), sizes.end(), [](int64_t s) { return s < 0; });
    return require(sizes.size() == static_cast<size_t>(group_size) && !negative, [&] {
      return fmt::format("the sizes are [{}] in a group of {} ranks", fmt::join(sizes, ", "),
                         group_size);
    });
  }
  bool root(int root, int group_size) {
    return require(root >= 0 && root < group_size, [&] {
      return fmt::format("there is no root {} in a group of {} ranks", root, group_size);
    });
  }
  bool extent(const at::Tensor& tensor, int64_t dim, int64_t extent, const char* name) {
    if (!require(tensor.defined(), [&] { return fmt::format("the {} is undefined", name); })) {
      return false;
    }
    return require(dim >= 0 && dim < tensor.dim() && tensor.size(dim) == extent, [&] {
      return fmt::format("the {} is [{}], and must have {} along dim {}", name,
                         fmt::join(tensor.sizes(), ", "), extent, dim);
    });
  }
  // Extents beside `dim`, dtype and device.
  bool alike(const at::Tensor& output, const at::Tensor& input, int64_t dim) {
    if (!problem.empty()) return false;
    bool equal = output.dim() == input.dim();
    for (int64_t d = 0; equal && d < input.dim(); ++d) {
      equal = d == dim || output.size(d) == input.size(d);
    }
    require(equal, [&] {
      return fmt::format("input [{}] and output [{}] differ beside dim {}",
                         fmt::join(input.sizes(), ", "), fmt::join(output.sizes(), ", "), dim);
    });
    return same_kind(output, input);
  }
  bool same_kind(const at::Tensor& output, const at::Tensor& input) {
    return require(output.scalar_type() == input.scalar_type() && output.device() == input.device(),
                   [&] {
                     return fmt::format("the input is {} on {}, the output {} on {}",
                                        c10::toString(input.scalar_type()), input.device().str(),
                                        c10::toString(output.scalar_type()), output.device().str());
                   });
  }
};

}  // namespace

// What every rank must say alike, in words.
struct PointToPointVCollectives::Agreed {
  explicit Agreed(const char* name) : text(name) {}
  void add(const at::Tensor& tensor, int64_t dim, int64_t other_dim) {
    std::vector<int64_t> shape = tensor.sizes().vec();
    shape[static_cast<size_t>(dim)] = shape[static_cast<size_t>(other_dim)] = -1;
    text += fmt::format(" of {} [{}] along dim {}", c10::toString(tensor.scalar_type()),
                        fmt::join(shape, ", "), dim);
    if (other_dim != dim) text += fmt::format(" to {}", other_dim);
  }
  void add(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim) {
    add(tensor, dim, dim);
    text += fmt::format(", sizes [{}]", fmt::join(sizes, ", "));
  }

  std::string text;
};

// Who gets which bytes, and what is to be done when they are there.
struct PointToPointVCollectives::Exchange {
  explicit Exchange(int size)
      : sends(static_cast<size_t>(size)), receives(static_cast<size_t>(size)) {}

  std::vector<at::Tensor> sends;  // by peer; undefined: nothing
  std::vector<at::Tensor> receives;
  std::function<void()> finish;
  std::vector<at::Tensor> kept;  // of finish
  at::Tensor result;

  void receive_into(Slices slices) {
    receives = slices.bytes;
    if (slices.packed.empty()) return;
    kept.push_back(slices.buffer);
    finish = [slices = std::move(slices)] { slices.unpack(); };
  }
};

PointToPointVCollectives::PointToPointVCollectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                   Compare compare)
    : backend_(std::move(backend)),
      compare_(std::move(compare)),
      rank_(backend_->getRank()),
      size_(backend_->getSize()) {}

void PointToPointVCollectives::agree(const Agreed& agreed, VCall& call, std::string problem) const {
  if (compare_) {
    std::string text = agreed.text;
    text += fmt::format("{}{}", call.use_fp32 ? "" : ", not in float32",
                        call.requires_grad ? ", with a gradient" : "");
    VCall header;
    header.problem = problem;
    header.requires_grad = call.requires_grad;
    header.use_fp32 = call.use_fp32;
    header.timeout = call.timeout;
    const uint64_t digest = Fingerprint(text + fmt::format(" {}", call.agreed));
    if (call.details) text += call.details();
    compare_(std::move(text), digest, std::move(header))->wait();
  }
  if (!problem.empty()) throw CollectiveArgumentError(std::move(problem));
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
  if (!is_idle && backend_->supportsCoalescing()) {
    backend_->startCoalescing();
    try {
      start_all();
    } catch (...) {
      backend_->endCoalescing();
      throw;
    }
    parts.clear();
    if (WorkPtr all = backend_->endCoalescing()) parts.push_back(std::move(all));
  } else {
    start_all();
  }
  return c10::make_intrusive<PointToPointWork>(type, std::move(parts), std::move(exchange.finish),
                                               std::move(exchange.kept), std::move(exchange.result),
                                               call.timeout);
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
    Agreed agreed("all_gather_v");
    Check check{std::move(call.problem)};
    if (check.sizes(sizes, size_) &&
        check.extent(input, dim, sizes[static_cast<size_t>(rank_)], "input") &&
        check.extent(output, dim, sum(sizes), "output") && check.alike(output, input, dim)) {
      agreed.add(input, sizes, dim);
    }
    agree(agreed, call, std::move(check.problem));

    copy_own(slice_of(output, sizes, dim, rank_), input);
    Exchange exchange(size_);
    const Slices own = whole(input, dim);
    own.pack();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) exchange.sends[static_cast<size_t>(peer)] = own.bytes[0];
    }
    exchange.receive_into({output, sizes, dim, rank_});
    exchange.result = output;
    return run(std::move(exchange), OpType::ALLGATHER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::reduce_scatter_v(
    const at::Tensor& output, const at::Tensor& input, at::IntArrayRef sizes, int64_t dim,
    VCall call) {
  return as_work(OpType::REDUCE_SCATTER, [&] {
    Agreed agreed("reduce_scatter_v");
    Check check{std::move(call.problem)};
    if (check.sizes(sizes, size_) && check.extent(input, dim, sum(sizes), "input") &&
        check.extent(output, dim, sizes[static_cast<size_t>(rank_)], "output") &&
        check.alike(output, input, dim)) {
      agreed.add(input, sizes, dim);
    }
    agree(agreed, call, std::move(check.problem));

    Exchange exchange(size_);
    const Slices sent(input, sizes, dim, rank_);
    sent.pack();
    exchange.sends = sent.bytes;
    exchange.result = output;
    const int64_t elements = output.numel();
    if (elements > 0) {
      const at::Tensor parts =
          at::empty({size_, aligned(elements, output)}, output.options()).narrow(1, 0, elements);
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) {
          exchange.receives[static_cast<size_t>(peer)] = as_bytes(parts.select(0, peer));
        }
      }
      parts.select(0, rank_).view(output.sizes()).copy_(slice_of(input, sizes, dim, rank_));
      exchange.kept.push_back(parts);
      exchange.finish = [output, parts, use_fp32 = call.use_fp32] {
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
    Agreed agreed("gather_v");
    Check check{std::move(call.problem)};
    if (check.sizes(sizes, size_) && check.root(root, size_) &&
        check.extent(input, dim, sizes[static_cast<size_t>(rank_)], "input")) {
      agreed.add(input, sizes, dim);
      agreed.text += fmt::format(" to rank {}", root);
      if (rank_ == root && check.extent(output, dim, sum(sizes), "output")) {
        check.alike(output, input, dim);
      }
    }
    agree(agreed, call, std::move(check.problem));

    Exchange exchange(size_);
    if (rank_ == root) {
      copy_own(slice_of(output, sizes, dim, rank_), input);
      exchange.receive_into({output, sizes, dim, rank_});
      exchange.result = output;
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
    Agreed agreed("scatter_v");
    Check check{std::move(call.problem)};
    if (check.sizes(sizes, size_) && check.root(root, size_) &&
        check.extent(output, dim, sizes[static_cast<size_t>(rank_)], "output")) {
      agreed.add(output, sizes, dim);
      agreed.text += fmt::format(" from rank {}", root);
      if (rank_ == root && check.extent(input, dim, sum(sizes), "input")) {
        check.alike(output, input, dim);
      }
    }
    agree(agreed, call, std::move(check.problem));

    Exchange exchange(size_);
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
    exchange.result = output;
    return run(std::move(exchange), OpType::SCATTER, call);
  });
}

PointToPointVCollectives::WorkPtr PointToPointVCollectives::all_to_all_v(
    const at::Tensor& output, at::IntArrayRef output_sizes, int64_t output_dim,
    const at::Tensor& input, at::IntArrayRef input_sizes, int64_t input_dim, VCall call) {
  return as_work(OpType::ALLTOALL, [&] {
    Agreed agreed("all_to_all_v");
    Check check{std::move(call.problem)};
    if (check.sizes(input_sizes, size_) && check.sizes(output_sizes, size_) &&
        check.extent(input, input_dim, sum(input_sizes), "input") &&
        check.extent(output, output_dim, sum(output_sizes), "output") &&
        check.same_kind(output, input) && check.require(input.dim() == output.dim(), [&] {
          return fmt::format("the input has {} dims and the output {}", input.dim(), output.dim());
        })) {
      agreed.add(input, input_dim, output_dim);
      if (moves_own(input_sizes, output_sizes, rank_)) {
        check.require(
            slice_of(output, output_sizes, output_dim, rank_).sizes() ==
                slice_of(input, input_sizes, input_dim, rank_).sizes(),
            [] { return "a rank's own slice has two shapes in the input and the output"; });
      }
    }
    agree(agreed, call, std::move(check.problem));

    if (moves_own(input_sizes, output_sizes, rank_)) {
      copy_own(slice_of(output, output_sizes, output_dim, rank_),
               slice_of(input, input_sizes, input_dim, rank_));
    }
    Exchange exchange(size_);
    const Slices sent(input, input_sizes, input_dim, rank_);
    sent.pack();
    exchange.sends = sent.bytes;
    exchange.receive_into({output, output_sizes, output_dim, rank_});
    exchange.result = output;
    return run(std::move(exchange), OpType::ALLTOALL, call);
  });
}

}  // namespace meshrun
