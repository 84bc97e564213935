#include "parallel/comm/point_to_point/point_to_point_work.h"

#include <algorithm>
#include <utility>

#include "c10/core/DeviceGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace meshrun {
namespace {

c10::Stream current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CPU));
  }
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

}  // namespace

PointToPointWork::PointToPointWork(c10d::OpType type, Parts parts, std::function<void()> finish,
                                   std::vector<at::Tensor> kept, at::Tensor result,
                                   std::chrono::milliseconds timeout)
    : Work(-1, type),
      parts_(std::move(parts)),
      finish_(std::move(finish)),
      kept_(std::move(kept)),
      result_(std::move(result)),
      timeout_(timeout),
      stream_(current_stream(result_)) {
  if (parts_.empty() && !finish_) Work::finish();
}

PointToPointWork::PointToPointWork(c10d::OpType type, std::exception_ptr error)
    : Work(-1, type), timeout_(kNoTimeout), stream_(current_stream({})) {
  Work::finish(std::move(error));
}

PointToPointWork::~PointToPointWork() {
  if (waiter_.joinable()) waiter_.join();
}

bool PointToPointWork::is_settled() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool PointToPointWork::isCompleted() {
  if (is_settled()) return true;
  if (stream_.device_type() != c10::DeviceType::CPU) {
    std::unique_lock settling(settling_, std::try_to_lock);
    if (!settling.owns_lock()) return false;
    const bool done = std::all_of(parts_.begin(), parts_.end(),
                                  [](const auto& part) { return part->isCompleted(); });
    if (done) settle(kNoTimeout);
    return done;
  }
  const std::lock_guard lock(mutex_);
  if (!completed_ && !waiter_.joinable()) {
    waiter_ = std::thread([this] {
      const std::lock_guard settling(settling_);
      settle(kNoTimeout);
    });
  }
  return completed_;
}

bool PointToPointWork::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::vector<at::Tensor> PointToPointWork::result() {
  if (!result_.defined()) return {};
  return {result_};
}

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard settling(settling_);
    settle(timeout);
  }
  const std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void PointToPointWork::settle(std::chrono::milliseconds timeout) {
  if (is_settled()) return;
  std::exception_ptr error;
  try {
    // A timeout makes NCCL's wait block this thread, where the stream alone should wait.
    if (timeout == kNoTimeout && timeout_.count() > 0 && stream_.device_type() == c10::kCPU) {
      timeout = timeout_;
    }
    for (const auto& part : parts_) part->wait(timeout);
    if (finish_) {
      const c10::OptionalDeviceGuard guard(stream_.device());
      const c10::Stream current = current_stream(result_);
      if (current != stream_) {
        for (const at::Tensor& tensor : kept_) tensor.record_stream(current);
      }
      finish_();
    }
  } catch (...) {
    error = std::current_exception();
  }
  parts_.clear();
  finish_ = nullptr;
  kept_.clear();
  Work::finish(error);
}

}  // namespace meshrun
