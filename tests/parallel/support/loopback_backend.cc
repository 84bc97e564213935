#include "tests/parallel/support/loopback_backend.h"

#include <cstring>
#include <numeric>
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

at::Tensor slice(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t dim, int rank) {
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
  return tensor.narrow(dim, begin, sizes[static_cast<size_t>(rank)]);
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

LoopbackBackend::WorkPtr LoopbackBackend::refuse(VCall call) {
  ++num_calls_;
  last_call_ = std::move(call);
  if (last_call_.problem.empty()) return nullptr;
  return c10::make_intrusive<LoopbackWork>(
      std::make_exception_ptr(CollectiveArgumentError(last_call_.problem)));
}

void LoopbackBackend::copy(const at::Tensor& to, const at::Tensor& from) {
  if (!by_operators_ && to.is_contiguous() && from.is_contiguous() && to.sizes() == from.sizes()) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
  bytes_copied_ += static_cast<int64_t>(to.nbytes());
}

void LoopbackBackend::write_own(const at::Tensor& to, at::IntArrayRef sizes, int64_t dim,
                                const at::Tensor& from) {
  int64_t inner = static_cast<int64_t>(to.element_size());
  bool is_outermost = true;
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (d > dim) inner *= to.size(d);
    if (d < dim && to.size(d) != 1) is_outermost = false;
  }
  if (!is_outermost || !to.is_contiguous() || !from.is_contiguous()) {
    to.zero_();
    return copy(slice(to, sizes, dim, rank_), from);
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

LoopbackBackend::WorkPtr LoopbackBackend::all_gather_v(const at::Tensor& output,
                                                       const at::Tensor& input,
                                                       at::IntArrayRef sizes, int64_t dim,
                                                       VCall call) {
  if (WorkPtr error = refuse(std::move(call))) return error;
  write_own(output, sizes, dim, input);
  bytes_received_ += static_cast<int64_t>(output.nbytes() - input.nbytes());
  return done_;
}

LoopbackBackend::WorkPtr LoopbackBackend::allreduce(std::vector<at::Tensor>&,
                                                    const c10d::AllreduceOptions&) {
  ++num_calls_;
  return done_;
}

LoopbackBackend::WorkPtr LoopbackBackend::reduce_scatter_v(const at::Tensor& output,
                                                           const at::Tensor& input,
                                                           at::IntArrayRef sizes, int64_t dim,
                                                           VCall call) {
  if (WorkPtr error = refuse(std::move(call))) return error;
  copy(output, slice(input, sizes, dim, rank_));
  bytes_received_ += (size_ - 1) * static_cast<int64_t>(output.nbytes());
  return done_;
}

LoopbackBackend::WorkPtr LoopbackBackend::gather_v(const at::Tensor& output,
                                                   const at::Tensor& input, at::IntArrayRef sizes,
                                                   int64_t dim, int root, VCall call) {
  if (WorkPtr error = refuse(std::move(call))) return error;
  if (root == rank_) {
    write_own(output, sizes, dim, input);
    bytes_received_ += static_cast<int64_t>(output.nbytes() - input.nbytes());
  }
  return done_;
}

LoopbackBackend::WorkPtr LoopbackBackend::scatter_v(const at::Tensor& output,
                                                    const at::Tensor& input, at::IntArrayRef sizes,
                                                    int64_t dim, int root, VCall call) {
  if (WorkPtr error = refuse(std::move(call))) return error;
  if (root == rank_) {
    copy(output, slice(input, sizes, dim, rank_));
  } else {
    output.zero_();
    bytes_received_ += static_cast<int64_t>(output.nbytes());
  }
  return done_;
}

LoopbackBackend::WorkPtr LoopbackBackend::all_to_all_v(const at::Tensor& output,
                                                       at::IntArrayRef output_sizes,
                                                       int64_t output_dim, const at::Tensor& input,
                                                       at::IntArrayRef input_sizes,
                                                       int64_t input_dim, VCall call) {
  if (WorkPtr error = refuse(std::move(call))) return error;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const at::Tensor from_other = slice(output, output_sizes, output_dim, r).zero_();
    bytes_received_ += static_cast<int64_t>(from_other.nbytes());
    bytes_sent_ += static_cast<int64_t>(slice(input, input_sizes, input_dim, r).nbytes());
  }
  const auto own = static_cast<size_t>(rank_);
  if (input_sizes[own] > 0 && output_sizes[own] > 0) {
    copy(slice(output, output_sizes, output_dim, rank_),
         slice(input, input_sizes, input_dim, rank_));
  }
  return done_;
}

}  // namespace meshrun
