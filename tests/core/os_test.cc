#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "core/os/files.h"
#include "core/os/process.h"
#include "core/os/process_stat.h"
#include "core/os/routes.h"
#include "core/os/shared_memory.h"

namespace meshrun::os {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class OsTest : public ::testing::Test {
 protected:
  OsTest() : dir_(::testing::TempDir() + "/os_test." + std::to_string(::getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~OsTest() override { std::filesystem::remove_all(dir_); }

  std::string dir_;
};

TEST_F(OsTest, AtomicWriteReplacesTheWholeFileAndLeavesNothingBeside) {
  const std::string path = dir_ + "/state";
  ASSERT_TRUE(WriteFileAtomically(path, "old and long").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "new").ok());
  // As root one could replace it.
  EXPECT_TRUE(WriteFileAtomically("/dev/null", "lost").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(*ReadFile(path), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
  EXPECT_EQ(ReadFile(dir_ + "/absent").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(OsTest, DirectoriesAreMadeAlsoWhereSomebodyRemovesThemWhileTheyAreEmpty) {
  const std::string job = dir_ + "/job", generation = job + "/1";
  std::atomic<bool> ended{false};
  std::thread remover([&] {
    while (!ended) ::rmdir(job.c_str());
  });
  for (int i = 0; i < 1000; ++i) {
    const absl::Status made = MakeDirectories(generation);
    if (!made.ok()) ADD_FAILURE() << "round " << i << ": " << made;
    ::rmdir(generation.c_str());
  }
  ended = true;
  remover.join();
  std::ofstream(dir_ + "/file");
  EXPECT_THAT(std::string(MakeDirectories(dir_ + "/file/1").message()),
              HasSubstr("Not a directory"));
}

TEST_F(OsTest, SomebodyElsesFileIsNeitherFollowedNorWaitedFor) {
  const std::string file = dir_ + "/file", link = dir_ + "/link", pipe = dir_ + "/pipe";
  ASSERT_TRUE(WriteFileAtomically(file, "content").ok());
  std::filesystem::create_symlink(file, link);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(*ReadRegularFile(file, 7), "content");
  EXPECT_EQ(ReadRegularFile(file, 6).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadRegularFile(dir_ + "/absent", 7).status().code(), absl::StatusCode::kNotFound);
  for (const std::string& other : {link, pipe, dir_, std::string("/dev/zero")}) {
    EXPECT_EQ(ReadRegularFile(other, 7).status().code(), absl::StatusCode::kFailedPrecondition)
        << other;
  }
}

TEST_F(OsTest, CommandsAreFoundAsAShellFindsThem) {
  std::ofstream(dir_ + "/plain") << "text";
  std::ofstream(dir_ + "/tool") << "#!/bin/sh\n";
  ::chmod((dir_ + "/tool").c_str(), 0755);
  EXPECT_EQ(*FindCommand("tool", "/", dir_), dir_ + "/tool");
  EXPECT_EQ(*FindCommand("./tool", dir_, ""), dir_ + "/./tool");
  EXPECT_EQ(FindCommand("./absent", dir_, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(FindCommand("tool", dir_, "/bin").status().message()),
              HasSubstr("write ./tool"));
  std::filesystem::create_directories(dir_ + "/sub");
  for (const char* directory : {"./", ".", "..", "sub"}) {
    const absl::Status found = FindCommand(directory, dir_, "/bin").status();
    EXPECT_EQ(found.code(), absl::StatusCode::kInvalidArgument) << directory;
    EXPECT_THAT(std::string(found.message()), HasSubstr("is a directory, not a program"));
  }
  const auto plain = FindCommand("./plain", dir_, "");
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("chmod +x"));
}

TEST_F(OsTest, AChildKeepsTheNamedDescriptorsAndNoOthers) {
  int kept[2];
  int closed[2];
  ASSERT_EQ(::pipe2(kept, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(closed, O_CLOEXEC), 0);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c",
                  "test \"$GREETING\" = hi && test -e /proc/self/fd/" + std::to_string(kept[0]) +
                      " && ! test -e /proc/self/fd/" + std::to_string(closed[0])};
  options.env = {{"GREETING", "hi"}};
  options.keep_fds = {kept[0]};
  const auto pid = Spawn(options);
  ASSERT_TRUE(pid.ok()) << pid.status();
  int status = 0;
  ASSERT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(status, 0);
  for (const int fd : {kept[0], kept[1], closed[0], closed[1]}) ::close(fd);
}

// In a child: 0 and 2 are closed, 1 and a pipe of the parent's stay.
TEST_F(OsTest, ClosedStandardStreamsBecomeTheNullDevice) {
  for (const MissingOutput output : {MissingOutput::kDiscardWrites, MissingOutput::kRefuseWrites}) {
    const std::string path = dir_ + "/out";
    int kept[2];
    ASSERT_EQ(::pipe2(kept, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), 1);
      ::close(0);
      ::close(2);
      OpenMissingStandardStreams(output, nullptr);
      char byte;
      bool right = ::read(0, &byte, 1) == 0 && ::write(1, "x", 1) == 1;
      const ssize_t n = ::write(2, "x", 1);
      right = right && (output == MissingOutput::kDiscardWrites ? n == 1 : n < 0 && errno == EBADF);
      // The next one is above them; those that were open are as before.
      right = right && ::open("/dev/zero", O_RDONLY) > 2 && ::write(kept[1], "x", 1) == 1;
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(*ReadFile(path), "x");
    for (const int fd : kept) ::close(fd);
  }
}

TEST_F(OsTest, ALifelineTellsOfItsOtherEndsDeathOnce) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::promise<void> told;
  Lifeline lifeline(UniqueFd(ends[0]), [&] { told.set_value(); });
  ::close(ends[1]);
  EXPECT_EQ(told.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST_F(OsTest, ALifelineThatIsNeverCutEndsQuietly) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  {
    Lifeline lifeline(UniqueFd(ends[0]), [] { ADD_FAILURE() << "the other end is open"; });
  }
  ::close(ends[1]);
}

TEST(SocketPathTest, APathThatDoesNotFitNamesTheLimit) {
  EXPECT_TRUE(CheckSocketPath(std::string(107, 'a')).ok());
  EXPECT_THAT(std::string(CheckSocketPath(std::string(108, 'a')).message()), HasSubstr("107"));
}

TEST(ProcessStatTest, TheNameMayHoldAnything) {
  const std::string rest = " 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 98765 1000 2 3";
  for (const std::string name : {"sh", "a b", "a) S 1 (b", ") ", "((("}) {
    const auto stat = ParseProcessStat("123 (" + name + ") S 42" + rest);
    ASSERT_TRUE(stat.has_value()) << name;
    EXPECT_EQ(stat->pid, 123);
    EXPECT_EQ(stat->parent, 42) << name;
    EXPECT_EQ(stat->state, 'S');
    EXPECT_EQ(stat->threads, 3);
    EXPECT_EQ(stat->start_ticks, 98765u) << name;
  }
  EXPECT_FALSE(ParseProcessStat("123 (sh) T 42" + rest)->IsZombie());
  EXPECT_TRUE(ParseProcessStat("123 (sh) Z 42" + rest)->IsZombie());
  EXPECT_TRUE(ParseProcessStat("123 (sh) X 42" + rest)->IsZombie());
  EXPECT_FALSE(ParseProcessStat("123 (sh").has_value());
  EXPECT_FALSE(ParseProcessStat("123 (sh) S 42 7 7").has_value());
  EXPECT_FALSE(ParseProcessStat("").has_value());
  EXPECT_FALSE(ParseProcessStat("sh (sh) S 42" + rest).has_value());
  // Numbers that do not fit: 2^32 more than 123, and than 42.
  EXPECT_FALSE(ParseProcessStat("4294967419 (sh) S 42" + rest).has_value());
  EXPECT_FALSE(ParseProcessStat("123 (sh) S 4294967338" + rest).has_value());
  EXPECT_EQ(ParseProcessStat("123 (sh) S 42" + rest + "\n")->session, 7);
}

TEST(ProcessStatTest, SaysWhatThisProcessIs) {
  const auto self = ReadProcessStat(::getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->pid, ::getpid());
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_GE(self->threads, 1);
  EXPECT_GT(self->start_ticks, 0u);
  EXPECT_FALSE(ReadProcessStat(-1).has_value());
}

// The kernel lets no datagram socket connect to the broadcast address.
constexpr char kNoRoute[] = "255.255.255.255";

TEST(RoutesTest, TheWayToALoopbackIsALoopback) {
  EXPECT_THAT(SourceTowards("127.0.1.1"), StartsWith("127."));
  EXPECT_EQ(SourceTowards(kNoRoute), "");
  EXPECT_EQ(SourceTowards("a-name.example"), "") << "names are not looked up";
}

TEST(RoutesTest, TheFirstAddressWithARouteIsTaken) {
  EXPECT_EQ(FirstWithRoute({kNoRoute, "127.0.0.1", "127.0.0.2"}), "127.0.0.1");
  EXPECT_EQ(FirstWithRoute({kNoRoute, "a-name.example", "127.0.0.1"}), "a-name.example");
  EXPECT_EQ(FirstWithRoute({kNoRoute, "255.255.255.255"}), kNoRoute);
  EXPECT_EQ(FirstWithRoute({}), "");
}

TEST(SharedMemoryTest, RoomIsCountedInRanks) {
  SharedMemoryRoom room{uint64_t{64} << 20, uint64_t{64} << 20};
  EXPECT_EQ(room.ranks(), 15u) << "as Docker has it by default";
  room.free_bytes = kSharedMemoryPerRank;
  EXPECT_EQ(
      Describe(room),
      "/dev/shm has 64.0 MiB, of which 4.2 MiB are free: room for 1 more rank of 4.2 MiB each");
  room.free_bytes -= 1;
  EXPECT_EQ(room.ranks(), 0u);
  EXPECT_THAT(Describe(room), HasSubstr("room for 0 more ranks"));
}

}  // namespace
}  // namespace meshrun::os
