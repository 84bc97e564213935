#include "parallel/comm/point_to_point/point_to_point_work.h"

#include <algorithm>
#include <utility>

#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace meshrun {
namespace {

c10::Stream current_stream(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// As Tensor::record_stream, which is an operator.
void record(const at::Tensor& tensor, const c10::Stream& stream) {
  if (!tensor.defined()) return;
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace

PointToPointWork::PointToPointWork(c10d::OpType type, Parts parts, Rest rest)
    : Work(-1, type),
      parts_(std::move(parts)),
      rest_(std::move(rest)),
      exceptions_(std::uncaught_exceptions()),
      called_on_(current_stream(rest_.device)) {
  if (!is_on_cpu()) {
    if (rest_.finish) queue();
  } else if (parts_.empty()) {
    settle(kNoTimeout);
  }
}

PointToPointWork::PointToPointWork(c10d::OpType type, std::exception_ptr error)
    : Work(-1, type),
      exceptions_(std::uncaught_exceptions()),
      called_on_(current_stream(rest_.device)) {
  Work::finish(std::move(error));
}

PointToPointWork::~PointToPointWork() {
  if (waiter_.joinable()) waiter_.join();
  // The peers count on what is sent here, and the result may be read. After an exception they do
  // not come any more, perhaps.
  if (is_on_cpu() && std::uncaught_exceptions() <= exceptions_) settle(kNoTimeout);
}

bool PointToPointWork::is_settled() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool PointToPointWork::isCompleted() {
  if (is_settled()) return true;
  if (!is_on_cpu()) {
    if (!queue_error_ && !has_passed()) return false;
    std::exception_ptr error = queue_error_;
    for (const auto& part : parts_) {
      if (!error) error = part->exception();
    }
    Work::finish(error);
    return true;
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
  if (!rest_.result.defined()) return {};
  return {rest_.result};
}

bool PointToPointWork::wait(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard settling(settling_);
    is_on_cpu() ? settle(timeout) : join(timeout);
  }
  const std::lock_guard lock(mutex_);
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void PointToPointWork::settle(std::chrono::milliseconds timeout) {
  if (is_settled()) return;
  std::exception_ptr error;
  try {
    if (timeout == kNoTimeout && rest_.timeout.count() > 0) timeout = rest_.timeout;
    for (const auto& part : parts_) part->wait(timeout);
    if (rest_.finish) rest_.finish();
  } catch (...) {
    error = std::current_exception();
  }
  parts_.clear();
  rest_.finish = nullptr;
  rest_.kept.clear();
  Work::finish(error);
}

void PointToPointWork::queue() {
  try {
    const c10::impl::VirtualGuardImpl guard(rest_.device.type());
    const bool apart = rest_.async && !parts_.empty();
    finished_on_ = apart ? guard.getStreamFromGlobalPool(rest_.device) : called_on_;
    const c10::StreamGuard on(*finished_on_);
    for (const auto& part : parts_) part->wait(kNoTimeout);
    if (apart) {
      // The parts hold what they send and receive only until they are waited for, which was here.
      for (const at::Tensor& tensor : rest_.kept) record(tensor, *finished_on_);
      record(rest_.result, *finished_on_);
    }
    rest_.finish();
    if (apart) {
      finished_.emplace(rest_.device.type());
      finished_->record(*finished_on_);
    }
  } catch (...) {
    queue_error_ = std::current_exception();
  }
  rest_.finish = nullptr;
  rest_.kept.clear();
}

void PointToPointWork::join(std::chrono::milliseconds timeout) {
  std::exception_ptr error = queue_error_;
  try {
    if (!error) {
      if (!finished_on_ || timeout != kNoTimeout) {
        for (const auto& part : parts_) part->wait(timeout);
      }
      const c10::Stream current = current_stream(rest_.device);
      if (finished_) {
        finished_->block(current);
      } else if (current != called_on_ && (finished_on_ || parts_.empty())) {
        // Without parts everything is on the stream of the call: a copy, or NCCL without a Work.
        c10::Event finished(rest_.device.type());
        finished.record(called_on_);
        finished.block(current);
      }
      if (current != called_on_) {
        record(rest_.result, current);
        // NCCL lets go of them when a part is waited for, the allocator when this Work is dropped.
        for (const at::Tensor& tensor : rest_.kept) record(tensor, current);
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  // Without an error it is complete when the GPU is through, which only isCompleted() asks.
  if (error) Work::finish(error);
}

bool PointToPointWork::has_passed() const {
  const bool done = std::all_of(parts_.begin(), parts_.end(),
                                [](const auto& part) { return part->isCompleted(); });
  if (!done || !finished_on_) return done;
  if (finished_) return finished_->query();
  return c10::impl::VirtualGuardImpl(rest_.device.type()).queryStream(*finished_on_);
}

}  // namespace meshrun
