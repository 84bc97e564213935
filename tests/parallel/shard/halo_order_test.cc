// What a convolution computes while its halos travel: in which order it starts the exchange,
// computes, and waits. One process is the middle one of three ranks, without wire.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/record_function.h"
#include "fmt/format.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/support/loopback_backend.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using Events = std::vector<std::string>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int kRank = 1;
constexpr int kRanks = 3;

class NotingWork : public c10d::Work {
 public:
  NotingWork(Events& events, WorkPtr work) : events_(events), work_(std::move(work)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (!std::exchange(is_waited_for_, true)) events_.emplace_back("waits for rows");
    return work_->wait(timeout);
  }

 private:
  Events& events_;
  const WorkPtr work_;
  bool is_waited_for_ = false;
};

class NotingBackend : public LoopbackBackend {
 public:
  explicit NotingBackend(Events& events) : LoopbackBackend(kRank, kRanks), events_(events) {}

  WorkPtr run(const at::Tensor& output, const at::Tensor& input, CollectiveSpec spec) override {
    if (spec.kind != CollectiveSpec::Kind::kAllToAllV) {
      return LoopbackBackend::run(output, input, std::move(spec));
    }
    events_.emplace_back("sends rows");
    return c10::make_intrusive<NotingWork>(events_,
                                           LoopbackBackend::run(output, input, std::move(spec)));
  }

 private:
  Events& events_;
};

ShardMesh::Ptr mesh_that_notes(Events& events) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(kRank, kRanks);
  group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::CUSTOM,
                    c10::make_intrusive<NotingBackend>(events));
  const DeviceMesh mesh(MeshLayout{{"domain"}, {kRanks}, {0, 1, 2}}, kRank);
  return c10::make_intrusive<ShardMesh>(mesh, std::vector<ShardMesh::Group>{group}, group);
}

// While it lives: which convolutions of local tensors this thread starts, of how many rows.
class NotedConvolutions {
 public:
  explicit NotedConvolutions(Events& events) {
    events_ = &events;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&NotedConvolutions::start)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~NotedConvolutions() { at::removeCallback(handle_); }
  NotedConvolutions(const NotedConvolutions&) = delete;
  NotedConvolutions& operator=(const NotedConvolutions&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    const std::string_view name(call.name());
    const bool is_backward = name == "aten::convolution_backward";
    if (!is_backward && name != "aten::convolution") return nullptr;
    const at::Tensor input = call.inputs()[is_backward ? 1 : 0].toTensor();
    if (is_shard_tensor(input)) return nullptr;
    events_->push_back(
        fmt::format("{} {} rows", is_backward ? "derives from" : "convolves", input.size(2)));
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
  inline static Events* events_ = nullptr;
};

class HaloOrderTest : public testing::Test {
 protected:
  // 16 x 16 channels, 3 x 3 kernel: enough work for the inner part to be computed by itself.
  // [1, 16, 96, 16], of which this rank has rows 32 to 63; it needs one more on either side.
  HaloOrderTest()
      : mesh_(mesh_that_notes(events_)),
        field_(make_spec(mesh_, ShardLayout::split({kRanks}, {Shard(2)}, {1, 16, 96, 16}))),
        weight_(replicated_spec(mesh_, {16, 16, 3, 3})),
        x_(at::ones(field_->local_shape()), field_, true),
        w_(at::ones(weight_->local_shape()), weight_, true) {}

  Events events_;
  const ShardMesh::Ptr mesh_;
  const SpecPtr field_;
  const SpecPtr weight_;
  const ShardTensor x_;
  const ShardTensor w_;
};

TEST_F(HaloOrderTest, TheInnerPartIsConvolvedBeforeTheHalosAreWaitedFor) {
  const NotedConvolutions noted(events_);
  at::conv2d(x_, w_, {}, 1, 1);
  // The own 32 rows give the 30 inner ones of the result; a border is one row, from three.
  EXPECT_EQ(events_, (Events{"sends rows", "convolves 32 rows", "waits for rows",
                             "convolves 3 rows", "convolves 3 rows"}));
}

TEST_F(HaloOrderTest, TheWeightsGradientIsComputedBeforeTheHalosGradientsAreWaitedFor) {
  const at::Tensor y = at::conv2d(x_, w_, {}, 1, 1);
  const ShardTensor gradient(at::ones(field_->local_shape()), field_);
  events_.clear();
  const NotedConvolutions noted(events_);
  torch::autograd::backward({y}, {gradient});
  // First the input's gradient, part of which is the neighbours'.
  EXPECT_EQ(events_, (Events{"derives from 34 rows", "sends rows", "derives from 34 rows",
                             "waits for rows"}));
}

}  // namespace
}  // namespace meshrun
