// Traces of training steps: on ranks that train, and over a device that runs nothing.
#include "parallel/nn/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"
#include "tests/parallel/support/fake_streams.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;
using detail::StepTrace;
using detail::TraceFile;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSteps = 4;
// Microseconds since the epoch, as doubles.
constexpr double kRounding = 1;

std::string fresh_directory() {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "step_traces";
  std::filesystem::remove_all(path);
  return path;
}

struct Event {
  std::string name, row, kind;
  int64_t step = 0;
  double begin = 0, end = 0;
  int64_t bytes = -1;
};

std::vector<Event> read(const std::string& path) {
  json parsed;
  std::ifstream(path) >> parsed;
  std::map<int64_t, std::string> rows;
  for (const json& event : parsed) {
    if (event["name"] != "thread_name") continue;
    rows[event["tid"].get<int64_t>()] = event["args"]["name"].get<std::string>();
  }
  std::vector<Event> events;
  for (const json& event : parsed) {
    if (event["ph"] == "M") continue;
    const double begin = event["ts"].get<double>();
    events.push_back({.name = event["name"].get<std::string>(),
                      .row = rows.at(event["tid"].get<int64_t>()),
                      .kind = event["ph"].get<std::string>(),
                      .step = event["args"]["step"].get<int64_t>(),
                      .begin = begin,
                      .end = begin + event.value("dur", 0.0),
                      .bytes = event["args"].value("bytes", int64_t{-1})});
  }
  return events;
}

// The one event of that name.
Event the(const std::vector<Event>& events, const std::string& row, const std::string& name,
          int64_t step) {
  std::vector<Event> found;
  for (const Event& event : events) {
    if (event.row == row && event.name == name && event.step == step) found.push_back(event);
  }
  EXPECT_EQ(found.size(), 1u) << row << ", " << name << " of step " << step;
  return found.empty() ? Event() : found[0];
}

std::vector<Event> read_of_rank(const std::string& directory, int rank) {
  const std::string its = "-rank-" + std::to_string(rank) + "-";
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().string().find(its) != std::string::npos) return read(entry.path());
  }
  ADD_FAILURE() << "rank " << rank << " wrote no trace";
  return {};
}

// Returns the parameters after some steps.
std::vector<Tensor> train(const DistributedDataParallelOptions& options) {
  torch::manual_seed(0);
  FullyConnected network(
      FullyConnectedOptions().in_features(6).layer_size(16).out_features(3).num_layers(3));
  DistributedDataParallel model(network, options);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(1 + DistributedManager::get().rank());
  for (int step = 0; step < kSteps; ++step) {
    model->zero_grad();
    // Neither accumulation nor evaluation is a step. A static graph must not begin with either.
    if (!options.static_graph) {
      const NoSyncGuard guard = model->no_sync();
      model(torch::randn({5, 6})).square().mean().backward();
    }
    model(torch::randn({5, 6})).square().mean().backward();
    optimizer.step();
    const at::NoGradGuard no_grad;
    model(torch::randn({5, 6}));
  }
  return network->parameters();
}

// The traced training, and the same one without a trace. Returns the events.
std::vector<Event> train_twice(const DistributedDataParallelOptions& options,
                               const std::string& directory) {
  setenv("MESHRUN_TRACE_DIR", directory.c_str(), 1);
  const std::vector<Tensor> traced = train(options);
  unsetenv("MESHRUN_TRACE_DIR");
  const std::vector<Tensor> plain = train(options);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(traced[i], plain[i])) << i;
  return read_of_rank(directory, DistributedManager::get().rank());
}

// Number of parameters: 6 x 16, 16 x 16, 16 x 16 and 16 x 3 weights and their biases.
constexpr int64_t kParameters = 96 + 16 + 2 * (256 + 16) + 48 + 3;

void expect_step(const std::vector<Event>& events, int64_t step, int64_t element_bytes) {
  SCOPED_TRACE(step);
  const Event forward = the(events, "training", "forward", step);
  const Event backward = the(events, "training", "backward", step);
  const Event wait = the(events, "training", "wait for gradients", step);
  EXPECT_LE(forward.end, backward.begin + kRounding);
  EXPECT_LT(backward.begin, backward.end);
  EXPECT_LE(backward.end, wait.begin + kRounding);
  EXPECT_LE(wait.begin, wait.end);
  int64_t bytes = 0, buckets = 0;
  for (const Event& event : events) {
    if (event.step != step || event.name != "all-reduce") continue;
    const Event ready = the(events, event.row, "ready", step);
    EXPECT_EQ(event.kind, "X");
    EXPECT_EQ(ready.kind, "i");
    EXPECT_EQ(ready.begin, event.begin);
    EXPECT_EQ(ready.bytes, event.bytes);
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(backward.begin, event.begin + kRounding);
    EXPECT_LE(event.begin, wait.end + kRounding);
    if (event.row.rfind("bucket ", 0) != 0) continue;
    bytes += event.bytes;
    ++buckets;
  }
  EXPECT_EQ(bytes, kParameters * element_bytes);
  // The first iteration has one bucket, and then they are cut anew.
  EXPECT_TRUE(step == 1 ? buckets == 1 : buckets > 2) << buckets;
}

const bool kTraced = register_rank_function("trace_steps", [] {
  DistributedManager::initialize();
  at::set_num_threads(1);
  const std::vector<Event> events =
      train_twice({.bucket_cap_mb = 1e-4}, std::getenv("MESHRUN_TRACE_DIR"));
  for (const Event& event : events) EXPECT_TRUE(event.step == 1 || event.step == 2);
  for (const int64_t step : {1, 2}) expect_step(events, step, 4);
  // Communication begins while gradients are still computed.
  EXPECT_LT(the(events, "bucket 0", "all-reduce", 2).begin,
            the(events, "training", "backward", 2).end);
  DistributedManager::cleanup(/*barrier=*/true);
});

const bool kOptions = register_rank_function("trace_options", [] {
  DistributedManager::initialize();
  at::set_num_threads(1);
  const std::string directory = std::getenv("MESHRUN_TRACE_DIR");
  const auto traced = [&](const char* name, DistributedDataParallelOptions options) {
    SCOPED_TRACE(name);
    options.bucket_cap_mb = 1e-4;
    const std::vector<Event> events = train_twice(options, directory + "/" + name);
    // With a static graph the second step has one bucket, too.
    expect_step(events, 3, options.bfloat16_gradients ? 2 : 4);
    return events;
  };
  traced("bfloat16", {.bfloat16_gradients = true});
  traced("static", {.static_graph = true});
  traced("views", {.gradient_as_bucket_view = true});
  const std::vector<Event> unused = traced("unused", {.find_unused_parameters = true});
  the(unused, "used parameters", "all-reduce", 3);
  DistributedManager::cleanup(/*barrier=*/true);
});

std::vector<Variables> traced_ranks(const std::string& directory, const std::string& steps) {
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& rank : ranks) {
    rank["MESHRUN_TRACE_DIR"] = directory;
    rank["MESHRUN_TRACE_STEPS"] = steps;
  }
  return ranks;
}

TEST(StepTraceTest, ShowsBackwardBucketsAndWaitsOfEachStepAndChangesNoBit) {
  for (const char* const backend : {"ucx", "gloo"}) {
    SCOPED_TRACE(backend);
    std::vector<Variables> ranks = traced_ranks(fresh_directory(), "2");
    for (Variables& rank : ranks) rank["MESHRUN_BACKEND"] = backend;
    expect_success(run_ranks("trace_steps", ranks));
  }
}

TEST(StepTraceTest, GoesWithEveryOptionOfDistributedDataParallel) {
  expect_success(run_ranks("trace_options", traced_ranks(fresh_directory(), "2-3")));
}

const bool kWrongSteps = register_rank_function("trace_wrong_steps", [] {
  DistributedManager::initialize();
  try {
    train({});
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("MESHRUN_TRACE_STEPS is \"ten\""), HasSubstr("rank 1")));
  }
  DistributedManager::cleanup(true);
});

TEST(StepTraceTest, WrongStepsOnOneRankAreAnErrorOnAll) {
  std::vector<Variables> ranks = traced_ranks(fresh_directory(), "10");
  ranks[1]["MESHRUN_TRACE_STEPS"] = "ten";
  expect_success(run_ranks("trace_wrong_steps", ranks));
}

const bool kNoDirectory = register_rank_function("trace_no_directory", [] {
  DistributedManager::initialize();
  train({});
  DistributedManager::cleanup(true);
});

TEST(StepTraceTest, TrainingGoesOnWithoutATraceThatCannotBeWritten) {
  const auto results = run_ranks("trace_no_directory", traced_ranks("/proc/none", "10"));
  expect_success(results);
  EXPECT_THAT(results[1].output, HasSubstr("/proc/none/meshrun-trace-rank-1-"));
}

// Events of a fake device pass a millisecond after one another, whatever the host's clock says.
TEST(StepTraceTest, OnADeviceTimesAreThoseOfItsStreams) {
  FakeStreams& streams = FakeStreams::install();
  streams.use(3);
  const c10::Device device(c10::DeviceType::Meta, 0);
  auto file = std::make_unique<TraceFile>(fresh_directory(), 0);
  const std::string path = file->path();
  const auto trace =
      std::make_shared<StepTrace>(std::move(file), detail::TracedSteps{1, 9}, device);
  const auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get(),
                                                               std::vector<c10::Device>{device});
  future->markCompleted(1);

  trace->begin_forward();
  const Tensor input = at::ones({2}).requires_grad_();
  Tensor output = input * 2;
  trace->end_forward({&output});
  input.register_hook([&](const Tensor&) { trace->follow(trace->now(), "", 16, *future); });
  output.sum().backward();

  const std::vector<Event> events = read(path);
  const Event forward = the(events, "training", "forward", 1);
  const Event backward = the(events, "training", "backward", 1);
  const Event reduction = the(events, "bucket 0", "all-reduce", 1);
  const Event wait = the(events, "training", "wait for gradients", 1);
  constexpr double kMillisecond = 1000;
  EXPECT_NEAR(backward.begin - forward.end, kMillisecond, 1);
  EXPECT_NEAR(reduction.begin - backward.begin, kMillisecond, 1);
  EXPECT_NEAR(reduction.end - reduction.begin, kMillisecond, 1);
  EXPECT_NEAR(backward.end - reduction.end, kMillisecond, 1);
  EXPECT_NEAR(wait.end - wait.begin, kMillisecond, 1);
  EXPECT_EQ(streams.current(), 3);
}

}  // namespace
}  // namespace meshrun
