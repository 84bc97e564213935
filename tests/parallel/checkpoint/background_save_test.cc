// One save alone, without a model.
#include "parallel/checkpoint/background_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "agent/background.h"

namespace meshrun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BackgroundSaveTest, ALimitThatIsOverIsSaidWithoutRounding) {
  std::promise<void> disk;
  SaveTask task;
  task.directory = ::testing::TempDir() + "background_save";
  task.manifest.step = 7;
  task.timeout = std::chrono::milliseconds(150);
  task.prepare = [answer = disk.get_future().share()] {
    answer.wait();
    return std::string();
  };
  task.say = [](const std::string&) {};
  BackgroundSave save(std::move(task), [](std::function<bool()> is_stopped) {
    return SaveMeeting(nullptr, "1", std::move(is_stopped));
  });
  while (!save.wait_for(std::chrono::seconds(1), /*most_left=*/0)) continue;
  const std::string problem = save.outcome().problem;
  disk.set_value();
  EXPECT_THAT(problem, HasSubstr("rank 0 writes step 7 for "));
  EXPECT_THAT(problem, HasSubstr(" s, 0 B of 0 B: the limit of 0.15 s for a checkpoint is over"));
  EXPECT_THAT(problem, Not(HasSubstr("for 0 s")));
}

// A store that notes on whose behalf its waits are.
class NotingStore : public c10d::HashStore {
 public:
  using c10d::HashStore::wait;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    ++waits;
    if (!agent::IsInBackground()) ++waits_of_the_training;
    c10d::HashStore::wait(keys, timeout);
  }

  std::atomic<int> waits = 0;
  std::atomic<int> waits_of_the_training = 0;
};

TEST(BackgroundSaveTest, TheTrainingDoesNotWaitWhereTheThreadOfASaveDoes) {
  const auto store = c10::make_intrusive<NotingStore>();
  SaveTask task;
  task.directory = ::testing::TempDir() + "background_save_waits";
  task.manifest.step = 8;
  task.say = [](const std::string&) {};
  BackgroundSave save(std::move(task), [&](std::function<bool()> is_stopped) {
    return SaveMeeting(store, "1", std::move(is_stopped));
  });
  save.close();
  while (!save.wait_for(std::chrono::seconds(1), /*most_left=*/0)) continue;
  EXPECT_GT(store->waits, 0);
  EXPECT_EQ(store->waits_of_the_training, 0);
}

}  // namespace
}  // namespace meshrun
