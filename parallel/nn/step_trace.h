// When the gradients of a DistributedDataParallel travel beside its backward pass, as a trace.
//
//   MESHRUN_TRACE_DIR=traces        each rank writes a file there (trace_file.h); unset: nothing
//   MESHRUN_TRACE_STEPS=100-119     which forward calls with an averaging backward pass, from 1 on;
//                                   "20", the default, is 1-20
//
//   training  [forward]  [backward                        ][wait for gradients]
//   bucket 0                      ready [all-reduce          ]
//   bucket 1                              ready [all-reduce            ]
//
// "backward" begins with the gradient of an output and ends when the last gradient of this rank is
// computed; "wait for gradients" ends when all are averaged and in place. A bucket is ready when
// its last gradient is there and all buckets before it are ready. A trace changes no gradient.
//
// On the CPU times are the host's. On an accelerator they are those of events on the streams, and
// the host waits for the device at both ends of a traced step: a graph cannot capture such a step.
//
// Threads: those of the module; ends of all-reduces come from any thread. Errors: the log says that
// a trace cannot be written, and training goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "parallel/nn/trace_file.h"

namespace meshrun::detail {

class StepTrace : public std::enable_shared_from_this<StepTrace> {
 public:
  // Null where the environment asks for none, or asks wrongly: `problem` then says how.
  static std::shared_ptr<StepTrace> from_environment(int rank, c10::Device device,
                                                     std::string& problem);
  StepTrace(std::unique_ptr<TraceFile> file, TracedSteps steps, c10::Device device);
  ~StepTrace();

  // Around the module's forward call, of which the backward pass averages gradients.
  void begin_forward();
  void end_forward(const std::vector<at::Tensor*>& outputs);

  // The same group and the same hook, whose all-reduces are in the trace. A hook's span begins
  // before it packs what travels, in `type`.
  c10::intrusive_ptr<c10d::ProcessGroup> traced(c10::intrusive_ptr<c10d::ProcessGroup> group);
  std::unique_ptr<c10d::CommHookInterface> traced(std::unique_ptr<c10d::CommHookInterface> hook,
                                                  at::ScalarType type);

  // A moment on this thread; on an accelerator also of its current stream.
  struct Moment {
    int64_t host = 0;
    std::optional<c10::Event> event;
  };
  bool is_tracing() const { return current_ != nullptr; }
  Moment now() const;
  // Gradients began to travel at `begin`, and arrive with `future`. `row` empty: the next bucket.
  void follow(Moment begin, std::string row, std::optional<int64_t> bytes,
              c10::ivalue::Future& future);

 private:
  struct Step;
  using StepPtr = std::shared_ptr<Step>;

  void begin_backward(const StepPtr& step);
  // Writes what is known of the step, once all of it has ended.
  void finish(const StepPtr& step);
  int64_t time_of(const Step& step, const Moment& moment) const;

  const std::unique_ptr<TraceFile> file_;
  const TracedSteps steps_;
  const c10::Device device_;
  // Wall-clock time minus steady-clock time.
  const std::chrono::nanoseconds to_epoch_;
  int64_t number_ = 0;
  bool is_broken_ = false;
  StepPtr current_;  // null: this step is not traced
};

}  // namespace meshrun::detail
