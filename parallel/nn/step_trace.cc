#include "parallel/nn/step_trace.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "core/log.h"
#include "core/mutex.h"
#include "fmt/format.h"

namespace meshrun::detail {
namespace {

using at::Tensor;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<Tensor>;

// A future tells its waiters before its callbacks.
constexpr std::chrono::seconds kCallbackGrace{1};
constexpr const char* kDefaultSteps = "20";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<int64_t> bytes_of(const Tensor& tensor, at::ScalarType type) {
  if (tensor.layout() != at::kStrided) return std::nullopt;
  return tensor.numel() * static_cast<int64_t>(c10::elementSize(type));
}

// What the reducer calls of a group.
class TracedGroup final : public c10d::ProcessGroup {
 public:
  TracedGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<StepTrace> trace)
      : ProcessGroup(group->getRank(), group->getSize()),
        group_(std::move(group)),
        trace_(std::move(trace)) {
    // The reducer asks the default backend for the memory of its buckets.
    const BackendType type = group_->getBackendType();
    setDefaultBackend(type);
    for (const c10::Device device : group_->getDeviceTypes()) {
      const auto backend = group_->getBackend(device.type());
      if (backend == group_->getDefaultBackend()) setBackend(device.type(), type, backend);
    }
  }

  const std::string getBackendName() const override { return group_->getBackendName(); }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return group_->broadcast(tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (!trace_->is_tracing()) return group_->allreduce(tensors, options);
    StepTrace::Moment begin = trace_->now();
    WorkPtr work = group_->allreduce(tensors, options);
    // Whole numbers say which parameters were used.
    const at::ScalarType type = tensors[0].scalar_type();
    trace_->follow(std::move(begin),
                   c10::isIntegralType(type, /*includeBool=*/true) ? "used parameters" : "",
                   bytes_of(tensors[0], type), *work->getFuture());
    return work;
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::shared_ptr<StepTrace> trace_;
};

class TracedHook final : public c10d::CommHookInterface {
 public:
  TracedHook(std::unique_ptr<c10d::CommHookInterface> hook, at::ScalarType type,
             std::shared_ptr<StepTrace> trace)
      : hook_(std::move(hook)), type_(type), trace_(std::move(trace)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    if (!trace_->is_tracing()) return hook_->runHook(bucket);
    StepTrace::Moment begin = trace_->now();
    auto future = hook_->runHook(bucket);
    trace_->follow(std::move(begin), "", bytes_of(bucket.getBuffer(), type_), *future);
    return future;
  }
  Tensor parseHookResult(const c10::IValue& result) override {
    return hook_->parseHookResult(result);
  }

 private:
  const std::unique_ptr<c10d::CommHookInterface> hook_;
  const at::ScalarType type_;
  const std::shared_ptr<StepTrace> trace_;
};

}  // namespace

// Its moments are of the threads that train, which the engine orders; those of reductions are not.
struct StepTrace::Step {
  struct Reduction {
    std::string row;
    std::optional<int64_t> bytes;
    Moment begin;
    std::optional<Moment> end;
  };

  int64_t number = 0;
  Moment forward;
  std::optional<Moment> forward_end, backward, backward_end, end;
  int64_t buckets = 0;

  Mutex mu;
  CondVar ended;
  std::vector<Reduction> reductions MESHRUN_GUARDED_BY(mu);
  size_t under_way MESHRUN_GUARDED_BY(mu) = 0;
};

std::shared_ptr<StepTrace> StepTrace::from_environment(int rank, c10::Device device,
                                                       std::string& problem) {
  const std::string directory = variable("MESHRUN_TRACE_DIR");
  if (directory.empty()) return nullptr;
  const std::string wanted = variable("MESHRUN_TRACE_STEPS");
  const auto steps = parse_traced_steps(wanted.empty() ? kDefaultSteps : wanted);
  if (!steps) {
    problem = fmt::format(
        "MESHRUN_TRACE_STEPS is \"{}\"; write a number of steps, such as 20, or the first and the "
        "last one, such as 100-119",
        wanted);
    return nullptr;
  }
  try {
    auto file = std::make_unique<TraceFile>(directory, rank);
    if (rank == 0) {
      log::Info("training steps are traced",
                {{"first", steps->first}, {"last", steps->second}, {"file", file->path()}});
    }
    return std::make_shared<StepTrace>(std::move(file), *steps, device);
  } catch (const std::exception& error) {
    log::Warning("training steps are not traced", {{"error", error.what()}});
    return nullptr;
  }
}

StepTrace::StepTrace(std::unique_ptr<TraceFile> file, TracedSteps steps, c10::Device device)
    : file_(std::move(file)),
      steps_(steps),
      device_(device),
      to_epoch_(std::chrono::system_clock::now().time_since_epoch() -
                std::chrono::steady_clock::now().time_since_epoch()) {}

StepTrace::~StepTrace() = default;

StepTrace::Moment StepTrace::now() const {
  Moment moment;
  if (!device_.is_cpu()) {
    moment.event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    moment.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  const std::chrono::nanoseconds host =
      std::chrono::steady_clock::now().time_since_epoch() + to_epoch_;
  moment.host = host.count();
  return moment;
}

int64_t StepTrace::time_of(const Step& step, const Moment& moment) const {
  if (!moment.event) return moment.host;
  moment.event->synchronize();
  const double milliseconds = step.forward.event->elapsedTime(*moment.event);
  return step.forward.host + static_cast<int64_t>(milliseconds * 1e6);
}

void StepTrace::begin_forward() {
  current_ = nullptr;
  if (++number_ < steps_.first || number_ > steps_.second || is_broken_) return;
  const auto step = std::make_shared<Step>();
  step->number = number_;
  step->forward = now();
  if (step->forward.event) {
    // Both clocks at one moment.
    step->forward.event->synchronize();
    const Moment passed = now();
    step->forward.host = passed.host;
  }
  current_ = step;
}

void StepTrace::end_forward(const std::vector<Tensor*>& outputs) {
  if (!current_) return;
  current_->forward_end = now();
  for (Tensor* const output : outputs) {
    if (!output->defined() || !output->grad_fn()) continue;
    output->register_hook([trace = shared_from_this(), step = current_](const Tensor&) {
      trace->begin_backward(step);
    });
  }
}

void StepTrace::begin_backward(const StepPtr& step) {
  if (step->backward || !step->forward_end || step != current_) return;
  step->backward = now();
  auto& engine = torch::autograd::Engine::get_default_engine();
  // Before the reducer's callback, which waits; the next one comes after it.
  engine.queue_callback([trace = shared_from_this(), step, &engine] {
    step->backward_end = trace->now();
    engine.queue_callback([trace, step] { trace->finish(step); });
  });
}

void StepTrace::follow(Moment begin, std::string row, std::optional<int64_t> bytes,
                       c10::ivalue::Future& future) {
  const StepPtr step = current_;
  begin_backward(step);
  if (row.empty()) row = fmt::format("bucket {}", step->buckets++);
  size_t index = 0;
  {
    const MutexLock lock(step->mu);
    index = step->reductions.size();
    step->reductions.push_back({std::move(row), bytes, std::move(begin), std::nullopt});
    ++step->under_way;
  }
  // On an accelerator the streams that are current in the callback wait for the result.
  future.addCallback([trace = shared_from_this(), step, index](c10::ivalue::Future&) {
    Moment end = trace->now();
    const MutexLock lock(step->mu);
    if (index < step->reductions.size()) step->reductions[index].end = std::move(end);
    if (--step->under_way == 0) step->ended.NotifyAll();
  });
}

void StepTrace::finish(const StepPtr& step) {
  if (step != current_) return;
  step->end = now();
  current_ = nullptr;
  std::vector<Step::Reduction> reductions;
  {
    const MutexLock lock(step->mu);
    const auto deadline = std::chrono::steady_clock::now() + kCallbackGrace;
    while (step->under_way > 0 && step->ended.WaitUntil(step->mu, deadline)) {
    }
    reductions.swap(step->reductions);
  }
  try {
    const auto at = [&](const Moment& moment) { return time_of(*step, moment); };
    const auto span = [&](const char* name, const Moment& begin, const Moment& end) {
      return TraceEvent{"training", name, step->number, at(begin), at(end), std::nullopt};
    };
    std::vector<TraceEvent> events = {
        span("forward", step->forward, *step->forward_end),
        span("backward", *step->backward, *step->backward_end),
        span("wait for gradients", *step->backward_end, *step->end),
    };
    for (const Step::Reduction& reduction : reductions) {
      const int64_t begin = at(reduction.begin);
      events.push_back(
          {reduction.row, "ready", step->number, begin, std::nullopt, reduction.bytes});
      if (!reduction.end) continue;
      events.push_back(
          {reduction.row, "all-reduce", step->number, begin, at(*reduction.end), reduction.bytes});
    }
    file_->add(events);
  } catch (const std::exception& error) {
    is_broken_ = true;
    log::Warning("training steps are not traced any more", {{"error", error.what()}});
  }
}

c10::intrusive_ptr<c10d::ProcessGroup> StepTrace::traced(
    c10::intrusive_ptr<c10d::ProcessGroup> group) {
  return c10::make_intrusive<TracedGroup>(std::move(group), shared_from_this());
}

std::unique_ptr<c10d::CommHookInterface> StepTrace::traced(
    std::unique_ptr<c10d::CommHookInterface> hook, at::ScalarType type) {
  return std::make_unique<TracedHook>(std::move(hook), type, shared_from_this());
}

}  // namespace meshrun::detail
