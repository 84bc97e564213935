#include "worker/supervisor/output_copier.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "core/os/files.h"

namespace meshrun::worker {
namespace {

constexpr size_t kPiece = size_t{64} << 10;
// Pieces of one stream that are copied before the others have their turn.
constexpr int kPiecesPerTurn = 16;
constexpr uint32_t kStopped = UINT32_MAX;

// What the owner says to the thread; descriptors change hands.
struct Command {
  enum class Kind { kAdd, kDrain, kStop } kind = Kind::kStop;
  uint32_t stream = 0;
  int pipe = -1;
  int file = -1;
  uint64_t limit = 0;
};
// Written at once.
static_assert(sizeof(Command) <= 512 && sizeof(OutputCopier::Event) <= 512);

// One file of a rank, which only this process writes.
class Sink {
 public:
  Sink(os::UniqueFd file, uint64_t limit) : limit_(limit), file_(std::move(file)) {
    struct stat info = {};
    if (::fstat(file_.get(), &info) == 0) {
      end_ = static_cast<uint64_t>(info.st_size);
      block_ = static_cast<uint64_t>(std::max<blksize_t>(info.st_blksize, 4096));
    }
  }

  // Returns the errno of what was not written; 0: all was.
  int Append(const char* data, size_t size) {
    bool made_room = false;
    while (size > 0) {
      const ssize_t n = ::pwrite(file_.get(), data, size, static_cast<off_t>(end_));
      if (n > 0) {
        end_ += static_cast<uint64_t>(n);
        unchecked_ += static_cast<uint64_t>(n);
        data += n;
        size -= static_cast<size_t>(n);
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      const int error = n < 0 ? errno : EIO;
      const bool full = error == ENOSPC || error == EDQUOT;
      if (full && limit_ > 0 && !std::exchange(made_room, true) && DropHalf()) continue;
      Skip(size);
      return error;
    }
    return Bound();
  }

 private:
  uint64_t Filled() const {
    constexpr uint64_t kSector = 512;
    struct stat info = {};
    return ::fstat(file_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * kSector : 0;
  }

  // The oldest bytes become a hole, up to the last `kept`. False where nothing could be freed.
  bool Keep(uint64_t kept) {
    const uint64_t to = (end_ - std::min(end_, kept)) / block_ * block_;
    if (to <= hole_) return false;
    if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(to)) != 0) {
      return false;
    }
    hole_ = to;
    return true;
  }
  bool DropHalf() { return Keep(Filled() / 2); }

  int Bound() {
    // Asked rarely: what the disk holds beyond the limit meanwhile is small beside it.
    if (limit_ == 0 || unchecked_ < std::max(limit_ / 16, block_)) return 0;
    unchecked_ = 0;
    if (Filled() <= limit_ || Keep(limit_ / 2)) return 0;
    const int error = errno;
    // The file system knows no holes: the file grows, which is said once.
    limit_ = 0;
    return error;
  }

  // Bytes that are lost: a hole up to where the next block begins, so that no byte of it is taken
  // for one that was written.
  void Skip(size_t size) {
    end_ = (end_ + size + block_ - 1) / block_ * block_;
    (void)!::ftruncate(file_.get(), static_cast<off_t>(end_));
  }

  uint64_t limit_;
  os::UniqueFd file_;
  uint64_t block_ = 4096;
  uint64_t end_ = 0;
  uint64_t hole_ = 0;
  uint64_t unchecked_ = 0;
};

class Copying {
 public:
  Copying(os::UniqueFd commands, os::UniqueFd events)
      : commands_(std::move(commands)), events_(std::move(events)) {}

  void Run() {
    std::vector<pollfd> fds;
    while (!stopping_) {
      fds.assign(1, {commands_.get(), POLLIN, 0});
      for (const auto& [number, stream] : streams_) fds.push_back({stream.pipe.get(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), -1);
      size_t i = 1;
      for (auto stream = streams_.begin(); stream != streams_.end(); ++i) {
        const bool open =
            fds[i].revents == 0 || Copy(stream->first, stream->second, kPiecesPerTurn);
        stream = open ? std::next(stream) : streams_.erase(stream);
      }
      if (fds[0].revents != 0) ReadCommands();
    }
    for (auto& [number, stream] : streams_) Copy(number, stream, kPiecesPerTurn);
    Tell({kStopped, 0});
  }

 private:
  struct Stream {
    explicit Stream(const Command& add) : pipe(add.pipe), sink(os::UniqueFd(add.file), add.limit) {}
    os::UniqueFd pipe;
    Sink sink;
    bool error_told = false;
  };

  void Tell(const OutputCopier::Event& event) {
    (void)!::write(events_.get(), &event, sizeof(event));
  }

  // False at the end of the pipe.
  bool Copy(uint32_t number, Stream& stream, int pieces) {
    while (pieces-- > 0) {
      const ssize_t n = ::read(stream.pipe.get(), buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      // EIO: nobody has the terminal open any more.
      if (n <= 0) return n < 0 && errno != EIO;
      const int error = stream.sink.Append(buffer_.data(), static_cast<size_t>(n));
      if (error != 0 && !std::exchange(stream.error_told, true)) Tell({number, error});
    }
    return true;
  }

  void ReadCommands() {
    Command command;
    const ssize_t n = ::read(commands_.get(), &command, sizeof(command));
    if (n < 0 && errno == EINTR) return;
    if (n != sizeof(command) || command.kind == Command::Kind::kStop) {
      stopping_ = true;
    } else if (command.kind == Command::Kind::kAdd) {
      streams_.try_emplace(command.stream, command);
    } else {
      const auto stream = streams_.find(command.stream);
      // What a rank's end left in the pipe: its children may go on writing, without end.
      constexpr int kPiecesOfAPipe = (1 << 20) / kPiece + 1;
      if (stream != streams_.end() && !Copy(command.stream, stream->second, kPiecesOfAPipe)) {
        streams_.erase(stream);
      }
      Tell({command.stream, 0});
    }
  }

  const os::UniqueFd commands_;
  const os::UniqueFd events_;
  std::map<uint32_t, Stream> streams_;
  std::array<char, kPiece> buffer_;
  bool stopping_ = false;
};

absl::Status MakePipe(os::UniqueFd* read_end, os::UniqueFd* write_end) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return os::ErrnoStatus(errno, "pipe");
  read_end->reset(pipe[0]);
  write_end->reset(pipe[1]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputCopier>> OutputCopier::Start() {
  std::unique_ptr<OutputCopier> copier(new OutputCopier);
  os::UniqueFd commands;
  os::UniqueFd events;
  if (absl::Status made = MakePipe(&commands, &copier->commands_); !made.ok()) return made;
  if (absl::Status made = MakePipe(&copier->events_, &events); !made.ok()) return made;
  ::fcntl(copier->events_.get(), F_SETFL, O_NONBLOCK);
  copier->thread_ = std::thread([copying = std::make_shared<Copying>(
                                     std::move(commands), std::move(events))] { copying->Run(); });
  return copier;
}

OutputCopier::~OutputCopier() {
  if (!thread_.joinable()) return;
  const Command stop;
  (void)!::write(commands_.get(), &stop, sizeof(stop));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    for (const Event& event : TakeEvents()) {
      if (event.stream != kStopped) continue;
      thread_.join();
      return;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{fd(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) break;
  }
  thread_.detach();
}

absl::StatusOr<os::UniqueFd> OutputCopier::Add(uint32_t number, os::UniqueFd file, uint64_t limit,
                                               const std::optional<TerminalSize>& terminal) {
  os::UniqueFd read_end;
  os::UniqueFd write_end;
  if (absl::Status made = terminal ? OpenTerminal(*terminal, &read_end, &write_end)
                                   : MakePipe(&read_end, &write_end);
      !made.ok()) {
    return made;
  }
  if (!terminal) ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const Command add = {.kind = Command::Kind::kAdd,
                       .stream = number,
                       .pipe = read_end.get(),
                       .file = file.get(),
                       .limit = limit};
  if (::write(commands_.get(), &add, sizeof(add)) != sizeof(add)) {
    return os::ErrnoStatus(errno, "the thread that copies output");
  }
  read_end.release();
  file.release();
  return write_end;
}

void OutputCopier::Drain(uint32_t number) {
  const Command drain = {.kind = Command::Kind::kDrain, .stream = number};
  (void)!::write(commands_.get(), &drain, sizeof(drain));
}

std::vector<OutputCopier::Event> OutputCopier::TakeEvents() {
  std::vector<Event> events;
  Event event;
  while (::read(events_.get(), &event, sizeof(event)) == sizeof(event)) events.push_back(event);
  return events;
}

}  // namespace meshrun::worker
