// Unix sockets as addresses: who may listen, whom one may trust, and where the default lies.
#include "core/rpc/unix_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/rpc/default_address.h"
#include "tests/worker/support/processes.h"

namespace meshrun::rpc {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr uid_t kSomebodyElse = 65534;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

unsigned ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

// Bound, and listening where asked for.
os::UniqueFd Bound(const std::string& path, bool listening) {
  os::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, path.size());
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  if (listening) {
    EXPECT_EQ(::listen(fd.get(), 1), 0);
  }
  return fd;
}

TEST(PrivateDirectoryTest, IsMadeWithWhatIsMissingAboveForThisUserAlone) {
  const TemporaryDirectory base;
  ASSERT_TRUE(os::MakePrivateDirectory(base / "a/b").ok());
  EXPECT_EQ(ModeOf(base / "a"), 0700u);
  EXPECT_EQ(ModeOf(base / "a/b"), 0700u);
  EXPECT_TRUE(os::MakePrivateDirectory(base / "a/b").ok());
}

TEST(PrivateDirectoryTest, OneThatOthersCanEnterIsRefusedAndLeftAsItIs) {
  const TemporaryDirectory base;
  for (const mode_t mode : {0701, 0710, 0750, 0755, 0777}) {
    ASSERT_EQ(::chmod(base.path().c_str(), mode), 0);
    const absl::Status status = os::MakePrivateDirectory(base.path());
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(Text(status), HasSubstr("chmod 700 " + base.path()));
    EXPECT_EQ(ModeOf(base.path()), mode);
  }
}

TEST(PrivateDirectoryTest, ALinkIsRefused) {
  const TemporaryDirectory base;
  ASSERT_TRUE(os::MakePrivateDirectory(base / "real").ok());
  fs::create_symlink(base / "real", base / "link");
  EXPECT_EQ(os::CheckPrivateDirectory(base / "link").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(os::CheckPrivateDirectory(base / "absent").code(), absl::StatusCode::kNotFound);
}

TEST(PrivateDirectoryTest, NobodyIsToldToCloseTheDirectoryForTemporaryFiles) {
  const TemporaryDirectory base;
  ASSERT_EQ(::chmod(base.path().c_str(), 01777), 0);
  const absl::Status status = os::CheckPrivateDirectory(base.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("is for all users"),
                               ::testing::Not(::testing::HasSubstr("chmod"))));
}

TEST(PrivateDirectoryTest, AnotherUsersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const TemporaryDirectory base;
  ASSERT_TRUE(os::MakePrivateDirectory(base / "theirs").ok());
  if (::chown((base / "theirs").c_str(), kSomebodyElse, kSomebodyElse) != 0) {
    GTEST_SKIP() << "this user namespace has one user";
  }
  const absl::Status status = os::MakePrivateDirectory(base / "theirs");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Text(status), HasSubstr("belongs to user 65534"));
}

TEST(UnixPathTest, IsWhatFollowsTheScheme) {
  EXPECT_EQ(UnixPath("unix:/a/b"), "/a/b");
  EXPECT_EQ(UnixPath("unix:///a/b"), "/a/b");
  EXPECT_EQ(UnixPath("unix:b"), "b");
  for (const char* other : {"unix-abstract:b", "127.0.0.1:1", "/a/b", "unix"}) {
    EXPECT_EQ(UnixPath(other), std::nullopt) << other;
  }
}

TEST(SocketClaimTest, ALiveHoldersPathIsTaken) {
  const TemporaryDirectory base;
  const std::string path = base / "c.sock";
  auto first = SocketClaim::Take(path);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = SocketClaim::Take(path).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Text(second), HasSubstr("unix:" + path + " is taken"));
  *first = SocketClaim();
  EXPECT_TRUE(SocketClaim::Take(path).ok());
}

TEST(SocketClaimTest, ADeadHoldersSocketIsReplaced) {
  const TemporaryDirectory base;
  const std::string path = base / "c.sock";
  const pid_t child = ::fork();
  if (child == 0) {
    const auto claim = SocketClaim::Take(path);
    const os::UniqueFd socket = Bound(path, true);
    // Without a word, as SIGKILL ends a process.
    ::_exit(claim.ok() ? 0 : 1);
  }
  EXPECT_EQ(testing::AwaitExit(child), 0);
  ASSERT_TRUE(fs::is_socket(path));
  EXPECT_TRUE(SocketClaim::Take(path).ok());
  EXPECT_FALSE(fs::exists(path));
}

TEST(SocketClaimTest, AnotherProgramsSocketIsTakenOnlyWhileItListens) {
  const TemporaryDirectory base;
  const std::string path = base / "c.sock";
  os::UniqueFd other = Bound(path, true);
  EXPECT_EQ(SocketClaim::Take(path).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(fs::is_socket(path));
  other.reset();
  EXPECT_TRUE(SocketClaim::Take(path).ok());
}

TEST(SocketClaimTest, AFileThatIsNotASocketIsNeverRemoved) {
  const TemporaryDirectory base;
  std::ofstream(base / "c.sock") << "letters";
  EXPECT_EQ(SocketClaim::Take(base / "c.sock").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(*os::ReadFile(base / "c.sock"), "letters");
}

TEST(SocketClaimTest, TheLongestPathFitsAndOneMoreByteIsNamed) {
  const TemporaryDirectory base;
  const std::string directory = base.path() + "/";
  const std::string longest = directory + std::string(107 - directory.size(), 'x');
  EXPECT_TRUE(SocketClaim::Take(longest).ok());
  EXPECT_TRUE(CheckSocketDirectory(longest).ok());
  for (const absl::Status& status :
       {SocketClaim::Take(longest + "x").status(), CheckSocketDirectory(longest + "x")}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(status),
                AllOf(HasSubstr(longest + "x"), HasSubstr("108 bytes"), HasSubstr("107")));
  }
}

class DefaultAddressTest : public ::testing::Test {
 protected:
  const GetVariable get_ = [this](const char* name) -> const char* {
    const auto found = variables_.find(name);
    return found == variables_.end() ? nullptr : found->second.c_str();
  };
  void SetUp() override {
    if (os::CheckPrivateDirectory("/run/user/" + std::to_string(::geteuid())).ok()) {
      GTEST_SKIP() << "this host has a /run/user directory of its own for this user";
    }
  }
  std::string Host() const {
    char name[256] = {};
    ::gethostname(name, sizeof(name) - 1);
    return name;
  }

  TemporaryDirectory base_;
  std::map<std::string, std::string> variables_;
};

TEST_F(DefaultAddressTest, IsInTheRuntimeDirectoryWhereThatIsTheUsersOwn) {
  ASSERT_TRUE(os::MakePrivateDirectory(base_ / "run").ok());
  variables_ = {{"XDG_RUNTIME_DIR", base_ / "run"}, {"HOME", base_ / "home"}};
  EXPECT_EQ(*DefaultListenAddress(get_), "unix:" + (base_ / "run/meshrun/coordinator.sock"));
  // As `sudo -E` leaves another user's.
  ASSERT_EQ(::chmod((base_ / "run").c_str(), 0755), 0);
  EXPECT_EQ(*DefaultListenAddress(get_),
            "unix:" + (base_ / "home/.local/state/meshrun/") + Host() + "/coordinator.sock");
  variables_["XDG_STATE_HOME"] = base_ / "state";
  EXPECT_EQ(*DefaultListenAddress(get_),
            "unix:" + (base_ / "state/meshrun/") + Host() + "/coordinator.sock");
}

TEST_F(DefaultAddressTest, ThoseWhoConnectFindTheSocketWhereverItLies) {
  ASSERT_TRUE(os::MakePrivateDirectory(base_ / "run").ok());
  variables_ = {{"HOME", base_ / "home"}};
  const std::string without = *DefaultListenAddress(get_);
  variables_["XDG_RUNTIME_DIR"] = base_ / "run";
  const std::string with = *DefaultListenAddress(get_);
  EXPECT_EQ(*DefaultConnectAddress(get_), with);
  ASSERT_TRUE(MakeSocketDirectory(*UnixPath(without)).ok());
  const os::UniqueFd socket = Bound(*UnixPath(without), true);
  EXPECT_EQ(*DefaultConnectAddress(get_), without);
  ASSERT_TRUE(MakeSocketDirectory(*UnixPath(with)).ok());
  const os::UniqueFd nearer = Bound(*UnixPath(with), true);
  EXPECT_EQ(*DefaultConnectAddress(get_), with);
}

TEST_F(DefaultAddressTest, WithoutAPlaceItSaysWhatToSet) {
  variables_ = {{"HOME", "relative"}};
  const absl::Status status = DefaultListenAddress(get_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(status), HasSubstr("XDG_RUNTIME_DIR"));
  variables_ = {{"XDG_STATE_HOME", "/" + std::string(100, 'x')}};
  EXPECT_THAT(Text(DefaultListenAddress(get_).status()),
              AllOf(HasSubstr(" bytes"), HasSubstr("set XDG_RUNTIME_DIR")));
}

TEST(SocketDirectoryTest, IsTheStateDirectoryWherePathsFitElseAShortOne) {
  EXPECT_EQ(*SocketDirectory("/var/lib/x", 20), "/var/lib/x");
  const std::string state = "/" + std::string(100, 'x');
  const auto directory = SocketDirectory(state, 36);
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_LE(directory->size() + 36, os::kLongestSocketPath);
  EXPECT_EQ(*SocketDirectory(state, 36), *directory);
  // As another user would have left it there.
  ASSERT_EQ(::chmod(directory->c_str(), 0777), 0);
  EXPECT_EQ(SocketDirectory(state, 36).status().code(), absl::StatusCode::kPermissionDenied);
  fs::remove_all(*directory);
}

}  // namespace
}  // namespace meshrun::rpc
