#include "worker/event_files/event_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/os/files.h"

namespace meshrun::worker {
namespace {

// What one message of the socket holds at most: a report has a few KiB.
constexpr size_t kLargestMessage = size_t{64} << 10;

// A message to the thread begins with this; a path or records follow.
struct Head {
  enum class Kind : uint32_t { kOpen, kRecords } kind = Kind::kOpen;
  uint32_t process = 0;
};
// From the thread; the path follows.
struct ProblemHead {
  uint32_t process = 0;
  int error = 0;
};

template <typename Struct>
std::string Message(const Struct& head, std::string_view body) {
  std::string out(sizeof(head), '\0');
  std::memcpy(out.data(), &head, sizeof(head));
  out += body.substr(0, kLargestMessage - sizeof(head));
  return out;
}

template <typename Struct>
std::string_view Split(std::string_view message, Struct* head) {
  std::memcpy(head, message.data(), sizeof(*head));
  return message.substr(sizeof(*head));
}

// The calls of the C library would change all threads of the process.
bool BecomeOnThisThread(const v1::RankUser& user) {
  const std::vector<gid_t> groups(user.groups().begin(), user.groups().end());
  return ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0 &&
         ::syscall(SYS_setresgid, user.gid(), user.gid(), user.gid()) == 0 &&
         ::syscall(SYS_setresuid, user.uid(), user.uid(), user.uid()) == 0;
}

class Writing {
 public:
  explicit Writing(os::UniqueFd end) : end_(std::move(end)) {}

  void Run() {
    std::string buffer(kLargestMessage, '\0');
    while (true) {
      const ssize_t size = ::recv(end_.get(), buffer.data(), buffer.size(), 0);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return;
      Head head;
      if (static_cast<size_t>(size) < sizeof(head)) continue;
      const std::string_view body =
          Split(std::string_view(buffer.data(), static_cast<size_t>(size)), &head);
      if (head.kind == Head::Kind::kOpen) {
        Open(head.process, std::string(body));
      } else {
        Append(head.process, body);
      }
    }
  }

  void Fail(uint32_t process, int error, const std::string& path) {
    const std::string message = Message(ProblemHead{process, error}, path);
    ::send(end_.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  struct File {
    std::string path;
    os::UniqueFd fd;
  };

  void Open(uint32_t process, const std::string& path) {
    File& file = files_[process];
    file.path = path;
    const std::string directory = path.substr(0, path.rfind('/'));
    errno = 0;
    if (!os::MakeDirectories(directory, 0777).ok()) {
      return Fail(process, errno == 0 ? EIO : errno, directory);
    }
    file.fd.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file.fd) Fail(process, errno, path);
  }

  void Append(uint32_t process, std::string_view records) {
    File& file = files_[process];
    while (file.fd && !records.empty()) {
      const ssize_t written = ::write(file.fd.get(), records.data(), records.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        Fail(process, written < 0 ? errno : EIO, file.path);
        // Half a record would make a reader stop there: nothing follows it.
        file.fd.reset();
        return;
      }
      records.remove_prefix(static_cast<size_t>(written));
    }
  }

  const os::UniqueFd end_;
  std::map<uint32_t, File> files_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EventFiles>> EventFiles::Start(const v1::RankUser* user) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return os::ErrnoStatus(errno, "a socket for event files");
  }
  std::unique_ptr<EventFiles> files(new EventFiles);
  files->owner_end_.reset(ends[0]);
  std::optional<v1::RankUser> as;
  if (user != nullptr) as = *user;
  files->thread_ = std::thread([end = ends[1], as = std::move(as)] {
    Writing writing((os::UniqueFd(end)));
    if (as && !BecomeOnThisThread(*as)) {
      return writing.Fail(0, errno, "the rights of " + as->name());
    }
    writing.Run();
  });
  return files;
}

void EventFiles::Close() {
  broken_ = true;
  DropWaiting();
  owner_end_.reset();
  if (thread_.joinable()) thread_.join();
}

void EventFiles::DropWaiting() {
  lost_ += waiting_.size();
  waiting_.clear();
  waiting_bytes_ = 0;
}

EventFiles::~EventFiles() {
  if (!owner_end_) return;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  const auto left = [&until] {
    const auto time =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    return static_cast<int>(std::max<int64_t>(time.count(), 0));
  };
  pollfd room = {owner_end_.get(), POLLOUT, 0};
  while (!waiting_.empty() && ::poll(&room, 1, left()) == 1 && (room.revents & POLLOUT) != 0) {
    OnWritable();
  }
  ::shutdown(owner_end_.get(), SHUT_WR);
  // Its end closes when the thread has written all.
  pollfd end = {owner_end_.get(), 0, 0};
  if (::poll(&end, 1, left()) == 1) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void EventFiles::Add(uint32_t process, const std::string& directory, const std::string& tag,
                     const v1::Progress& report, WallNanos now) {
  const bool is_new = !curves_.contains(process);
  const std::string records = curves_[process].Add(report, now);
  if (records.empty()) {
    if (is_new) curves_.erase(process);
    return;
  }
  if (is_new && !broken_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    Send(Message(Head{Head::Kind::kOpen, process},
                 fmt::format("{}/events.out.tfevents.{:010}.{}", directory, seconds, tag)));
    Send(Message(Head{Head::Kind::kRecords, process}, RankCurve::Header(now)));
  }
  if (broken_ || waiting_bytes_ + records.size() > kMostWaiting) {
    ++lost_;
    return;
  }
  Send(Message(Head{Head::Kind::kRecords, process}, records));
}

void EventFiles::Send(std::string message) {
  if (broken_) return;
  waiting_bytes_ += message.size();
  waiting_.push_back(std::move(message));
  OnWritable();
}

void EventFiles::OnWritable() {
  while (!waiting_.empty()) {
    const std::string& next = waiting_.front();
    const ssize_t sent =
        ::send(owner_end_.get(), next.data(), next.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return;
    if (sent < 0) {
      // The thread has ended; its last word may wait in the socket.
      broken_ = true;
      DropWaiting();
      return;
    }
    waiting_bytes_ -= next.size();
    waiting_.pop_front();
  }
}

std::vector<EventFiles::Problem> EventFiles::TakeProblems() {
  std::vector<Problem> problems;
  std::string buffer(kLargestMessage, '\0');
  while (true) {
    const ssize_t size = ::recv(owner_end_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < static_cast<ssize_t>(sizeof(ProblemHead))) return problems;
    ProblemHead head;
    const std::string_view path =
        Split(std::string_view(buffer.data(), static_cast<size_t>(size)), &head);
    problems.push_back({head.process, head.error, std::string(path)});
  }
}

}  // namespace meshrun::worker
