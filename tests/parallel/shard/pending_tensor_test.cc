// A tensor whose transfer goes on, read from several threads: autograd's and the program's.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

struct Seen {
  std::atomic<int> waits{0};
  std::atomic<int> inside{0};
  std::atomic<int> freed{0};
  std::atomic<bool> freed_in_use{false};
};

// Writes ones, slowly. One that fails throws.
class SlowWork : public c10d::Work {
 public:
  SlowWork(std::shared_ptr<Seen> seen, at::Tensor written, bool fails = false)
      : seen_(std::move(seen)), written_(std::move(written)), fails_(fails) {}
  ~SlowWork() override {
    if (seen_->inside > 0) seen_->freed_in_use = true;
    ++seen_->freed;
  }

  bool wait(std::chrono::milliseconds) override {
    const std::shared_ptr<Seen> seen = seen_;
    ++seen->waits;
    ++seen->inside;
    for (int turn = 0; turn < 20; ++turn) std::this_thread::yield();
    if (!fails_) written_.fill_(1);
    --seen->inside;
    if (fails_) throw std::runtime_error("the peer is gone");
    return true;
  }

 private:
  const std::shared_ptr<Seen> seen_;
  const at::Tensor written_;
  const bool fails_;
};

at::Tensor pending(const SpecPtr& spec, const std::shared_ptr<Seen>& seen, bool fails = false) {
  const at::Tensor local = at::zeros(spec->local_shape());
  return wrap(local, spec, c10::make_intrusive<SlowWork>(seen, local, fails));
}

void wait_once(const SpecPtr& spec) {
  const auto seen = std::make_shared<Seen>();
  const at::Tensor x = pending(spec, seen);
  const at::Tensor copy = x.tensor_data();
  EXPECT_EQ(seen->waits, 0);
  EXPECT_EQ(local_of(copy).sum().item<double>(), 6);
  EXPECT_EQ(local_of(x).sum().item<double>(), 6);
  EXPECT_EQ(seen->waits, 1) << "each copy waited";
  EXPECT_EQ(seen->freed, 1) << "the work outlives its wait";
}

void read_at_once(const SpecPtr& spec) {
  for (int round = 0; round < 150; ++round) {
    const auto seen = std::make_shared<Seen>();
    const at::Tensor x = pending(spec, seen);
    std::atomic<int> ready{0};
    std::atomic<int> right{0};
    const auto read = [&] {
      ++ready;
      while (ready < 3) std::this_thread::yield();
      const at::Tensor copy = x.tensor_data();
      right += local_of(x).sum().item<double>() == 6;
      right += local_of(copy).sum().item<double>() == 6;
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back(read);
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(right, 6);
    ASSERT_EQ(seen->waits, 1);
    ASSERT_EQ(seen->freed, 1);
    ASSERT_FALSE(seen->freed_in_use);
  }
}

void fail_in_every_reader(const SpecPtr& spec) {
  const auto seen = std::make_shared<Seen>();
  const at::Tensor x = pending(spec, seen, /*fails=*/true);
  const at::Tensor copy = x.tensor_data();
  for (const at::Tensor& tensor : {x, copy, x}) {
    EXPECT_THROW(local_of(tensor), std::runtime_error);
  }
}

const bool kRegistered = register_rank_function("read pending tensors", [] {
  const JoinedWorld world;
  const SpecPtr spec = replicated_spec(mesh_of_world({1}), {2, 3});
  wait_once(spec);
  fail_in_every_reader(spec);
  read_at_once(spec);
});

TEST(PendingTensorTest, IsWaitedForOnceByAllOfItsReaders) {
  run_in_worlds("read pending tensors", {1}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
