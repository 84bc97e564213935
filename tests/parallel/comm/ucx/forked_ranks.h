// Ranks that are processes, for tests over UCX: forked before any call of UCX, which does not
// survive fork(). No test of the program may start UCX in the test process.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/ucx/engine/protocol/address_book.h"

namespace meshrun::ucx {

// The ranks' address records, in memory that they share.
struct Board {
  struct Record {
    std::array<char, 1024> bytes = {};
    std::atomic<size_t> length = 0;
  };
  std::array<Record, 8> records;
};

class BoardBook final : public AddressBook {
 public:
  explicit BoardBook(Board& board) : board_(board) {}
  ~BoardBook() override { stop(); }

  std::optional<std::string> publish(int rank, const AddressRecord& record) override {
    const std::string bytes = serialize(record);
    Board::Record& own = board_.records[rank];
    if (bytes.size() > own.bytes.size()) return "too long";
    std::memcpy(own.bytes.data(), bytes.data(), bytes.size());
    own.length = bytes.size();
    return std::nullopt;
  }
  void look_up(const std::vector<int>& ranks, Found found) override {
    const std::lock_guard lock(mu_);
    threads_.emplace_back([this, ranks, found] {
      for (const int rank : ranks) {
        const Board::Record& other = board_.records[rank];
        while (other.length == 0 && !stopped_) std::this_thread::yield();
        if (stopped_) return;
        found(rank, parse_address_record({other.bytes.data(), other.length}), "");
      }
    });
  }
  void stop() override {
    stopped_ = true;
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  Board& board_;
  std::atomic<bool> stopped_{false};
  std::mutex mu_;
  std::vector<std::thread> threads_;
};

// What is wrong on a rank; empty: nothing.
using ForkedRank = std::function<std::string(Board& board, int rank)>;

// What all ranks have to say, on stderr too: UCX warns there of what it was left with. A rank that
// lives for longer than `deadline` is killed, and that is said.
inline std::string run_forked(int size, std::chrono::seconds deadline, const ForkedRank& main) {
  void* const shared =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return "no memory to share";
  Board& board = *new (shared) Board;
  int output[2];
  if (pipe(output) != 0) return "no pipe";
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    dup2(output[1], STDERR_FILENO);
    close(output[0]);
    alarm(static_cast<unsigned>(deadline.count()));
    const std::string problem = main(board, rank);
    dprintf(STDERR_FILENO, "%s", problem.c_str());
    std::fflush(stdout);
    _exit(0);
  }
  close(output[1]);
  std::string said;
  std::array<char, 4096> part;
  for (ssize_t n; (n = read(output[0], part.data(), part.size())) > 0;) said.append(part.data(), n);
  close(output[0]);
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0) said += "ended with " + std::to_string(status) + "; ";
  }
  munmap(shared, sizeof(Board));
  return said;
}

}  // namespace meshrun::ucx
