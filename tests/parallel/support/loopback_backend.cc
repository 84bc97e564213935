#include "tests/parallel/support/loopback_backend.h"

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "parallel/base/collective_errors.h"

namespace meshrun {
namespace {

class LoopbackWork : public c10d::Work {
 public:
  explicit LoopbackWork(std::exception_ptr error = nullptr) : error_(std::move(error)) {}

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return error_ == nullptr; }
  std::exception_ptr exception() const override { return error_; }
  bool wait(std::chrono::milliseconds) override {
    if (error_) std::rethrow_exception(error_);
    return true;
  }

 private:
  const std::exception_ptr error_;
};

at::Tensor slice(const at::Tensor& tensor, const Cut& cut, int rank) {
  const int64_t begin = std::accumulate(cut.sizes.begin(), cut.sizes.begin() + rank, int64_t{0});
  return tensor.narrow(cut.dim, begin, cut.of(rank));
}

}  // namespace

LoopbackBackend::LoopbackBackend(int rank, int size)
    : Backend(rank, size), done_(c10::make_intrusive<LoopbackWork>()) {}

c10::intrusive_ptr<c10d::ProcessGroup> LoopbackBackend::make_group(int rank, int size) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM,
                    c10::make_intrusive<LoopbackBackend>(rank, size));
  return group;
}

LoopbackBackend& LoopbackBackend::of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return dynamic_cast<LoopbackBackend&>(*group->getBackend(c10::DeviceType::CPU));
}

void LoopbackBackend::copy(const at::Tensor& to, const at::Tensor& from) {
  if (!by_operators_ && to.is_contiguous() && from.is_contiguous() && to.sizes() == from.sizes()) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
  bytes_copied_ += static_cast<int64_t>(to.nbytes());
}

void LoopbackBackend::write_own(const at::Tensor& to, const Cut& cut, const at::Tensor& from) {
  const int64_t dim = cut.dim;
  const Extents& sizes = cut.sizes;
  int64_t inner = static_cast<int64_t>(to.element_size());
  bool is_outermost = true;
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (d > dim) inner *= to.size(d);
    if (d < dim && to.size(d) != 1) is_outermost = false;
  }
  if (!is_outermost || !to.is_contiguous() || !from.is_contiguous()) {
    to.zero_();
    return copy(slice(to, cut, rank_), from);
  }
  // Without a tensor operator, whose cost would be measured as the collective's.
  const int64_t before = std::accumulate(sizes.begin(), sizes.begin() + rank_, int64_t{0}) * inner;
  const int64_t own = sizes[static_cast<size_t>(rank_)] * inner;
  auto* const bytes = static_cast<char*>(to.data_ptr());
  if (to.numel() == 0) return;
  std::memset(bytes, 0, static_cast<size_t>(before));
  if (own > 0) std::memcpy(bytes + before, from.const_data_ptr(), static_cast<size_t>(own));
  std::memset(bytes + before + own, 0, to.nbytes() - static_cast<size_t>(before + own));
  bytes_copied_ += own;
}

LoopbackBackend::WorkPtr LoopbackBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                    const c10d::AllreduceOptions&) {
  ++num_calls_;
  for (const at::Tensor& tensor : tensors) bytes_reduced_ += static_cast<int64_t>(tensor.nbytes());
  return done_;
}

void LoopbackBackend::exchange(const at::Tensor& output, const at::Tensor& input,
                               const CollectiveSpec& spec) {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const at::Tensor from_other = slice(output, spec.received, r).zero_();
    bytes_received_ += static_cast<int64_t>(from_other.nbytes());
    bytes_sent_ += static_cast<int64_t>(slice(input, spec.cut, r).nbytes());
  }
  if (spec.cut.of(rank_) > 0 && spec.received.of(rank_) > 0) {
    copy(slice(output, spec.received, rank_), slice(input, spec.cut, rank_));
  }
}

LoopbackBackend::WorkPtr LoopbackBackend::run(const at::Tensor& output, const at::Tensor& input,
                                              CollectiveSpec spec) {
  using Kind = CollectiveSpec::Kind;
  ++num_calls_;
  last_call_ = std::move(spec);
  const CollectiveSpec& call = last_call_;
  if (!call.problem.empty()) {
    return c10::make_intrusive<LoopbackWork>(
        std::make_exception_ptr(CollectiveArgumentError(call.problem)));
  }
  switch (call.kind) {
    case Kind::kGatherV:
      if (call.root != rank_) break;
      [[fallthrough]];
    case Kind::kAllGatherV:
      write_own(output, call.cut, input);
      bytes_received_ += static_cast<int64_t>(output.nbytes() - input.nbytes());
      break;
    case Kind::kReduceScatterV:
      copy(output, slice(input, call.cut, rank_));
      bytes_received_ += (size_ - 1) * static_cast<int64_t>(output.nbytes());
      break;
    case Kind::kScatterV:
      if (call.root == rank_) {
        copy(output, slice(input, call.cut, rank_));
      } else {
        output.zero_();
        bytes_received_ += static_cast<int64_t>(output.nbytes());
      }
      break;
    case Kind::kAllToAllV:
      exchange(output, input, call);
      break;
    default:
      throw std::logic_error(name_of(call.kind));
  }
  return done_;
}

}  // namespace meshrun
