#include "worker/files/file_tasks.h"

#include <deque>
#include <map>
#include <thread>
#include <utility>

namespace meshrun::worker {

// Outlives the FileTasks as long as a thread of it works.
struct FileTasks::Shared {
  struct Task {
    std::function<void()> work;
    EventLoop::Task done;
  };
  struct Queue {
    std::deque<Task> tasks;
    bool has_thread = false;
  };

  // Starts threads for keys that have work and none.
  void StartThreads(const std::shared_ptr<Shared>& self) MESHRUN_REQUIRES(mu);
  void Work(const std::string& key) MESHRUN_EXCLUDES(mu);

  Mutex mu;
  CondVar idle;
  // Null once the FileTasks is gone.
  EventLoop* loop MESHRUN_GUARDED_BY(mu) = nullptr;
  std::map<std::string, Queue> queues MESHRUN_GUARDED_BY(mu);
  std::deque<std::string> without_thread MESHRUN_GUARDED_BY(mu);
  size_t threads MESHRUN_GUARDED_BY(mu) = 0;
};

void FileTasks::Shared::StartThreads(const std::shared_ptr<Shared>& self) {
  while (threads < kMostThreads && !without_thread.empty()) {
    const std::string key = std::move(without_thread.front());
    without_thread.pop_front();
    queues.at(key).has_thread = true;
    ++threads;
    std::thread([self, key] {
      self->Work(key);
      MutexLock lock(self->mu);
      --self->threads;
      self->StartThreads(self);
    }).detach();
  }
}

void FileTasks::Shared::Work(const std::string& key) {
  while (true) {
    Task task;
    {
      MutexLock lock(mu);
      const auto queue = queues.find(key);
      if (loop == nullptr || queue->second.tasks.empty()) {
        queues.erase(queue);
        idle.NotifyAll();
        return;
      }
      task = std::move(queue->second.tasks.front());
      queue->second.tasks.pop_front();
    }
    task.work();
    // What the work held is let go here, and not under the lock.
    task.work = nullptr;
    MutexLock lock(mu);
    if (loop != nullptr && task.done) loop->Post(std::move(task.done));
  }
}

FileTasks::FileTasks(EventLoop& loop) : shared_(std::make_shared<Shared>()) {
  MutexLock lock(shared_->mu);
  shared_->loop = &loop;
}

FileTasks::~FileTasks() {
  MutexLock lock(shared_->mu);
  shared_->loop = nullptr;
  shared_->without_thread.clear();
}

void FileTasks::Run(const std::string& key, std::function<void()> work, EventLoop::Task done) {
  MutexLock lock(shared_->mu);
  Shared::Queue& queue = shared_->queues[key];
  if (queue.tasks.empty() && !queue.has_thread) shared_->without_thread.push_back(key);
  queue.tasks.push_back({std::move(work), std::move(done)});
  shared_->StartThreads(shared_);
}

bool FileTasks::Drain(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(shared_->mu);
  while (!shared_->queues.empty()) {
    if (!shared_->idle.WaitUntil(shared_->mu, deadline)) return shared_->queues.empty();
  }
  return true;
}

}  // namespace meshrun::worker
