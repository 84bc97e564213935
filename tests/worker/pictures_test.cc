// Pictures of ranks: what of a rank's directory is seen, whatever the rank puts there, and how a
// daemon hands it out.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/os/files.h"
#include "core/picture_name.h"
#include "tests/worker/support/daemon_fixture.h"
#include "worker/pictures/picture_directory.h"
#include "worker/pictures/picture_paths.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;
using testing::DaemonTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kJob;
using testing::TemporaryDirectory;

TEST(PictureNameTest, ANameIsOneOfAFileThatABrowserShowsAndNothingElse) {
  EXPECT_EQ(PictureType("map.png"), "image/png");
  EXPECT_EQ(PictureType("a.b-c_D.jpeg"), "image/jpeg");
  EXPECT_EQ(PictureType("x.jpg"), "image/jpeg");
  EXPECT_EQ(PictureType("x.webp"), "image/webp");
  EXPECT_EQ(PictureType("x.gif"), "image/gif");
  EXPECT_EQ(PictureType(std::string(60, 'x') + ".png"), "image/png");
  for (const std::string& name :
       {std::string(), std::string("map"), std::string("map.svg"), std::string("map.png.svg"),
        std::string(".map.png"), std::string(".png"), std::string("../map.png"),
        std::string("a/b.png"), std::string("a b.png"), std::string("a\n.png"),
        std::string("m\xc3\xbc"
                    "de.png"),
        std::string("a\0.png", 6), std::string("map.PNG"), std::string(61, 'x') + ".png"}) {
    EXPECT_EQ(PictureType(name), "") << name;
  }
}

class PictureDirectoryTest : public ::testing::Test {
 protected:
  PictureDirectoryTest() {
    EXPECT_TRUE(PictureDirectory::Make(pictures_, nullptr).ok());
    EXPECT_TRUE(os::WriteFileAtomically(directory_ / "secret.png", "secret").ok());
  }
  std::string operator/(const std::string& name) const { return pictures_ + "/" + name; }
  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(os::WriteFileAtomically(*this / name, bytes).ok());
  }
  PictureDirectory Open() const { return *PictureDirectory::Open(pictures_); }
  std::vector<std::string> Names() const {
    std::vector<std::string> out;
    const std::vector<PictureFile> files = Open().List();
    for (const PictureFile& file : files) out.push_back(file.name);
    return out;
  }
  // Neither listed nor opened.
  void ExpectUnseen(const std::string& name) const {
    EXPECT_THAT(Names(), ElementsAre("good.png"));
    const absl::Status opened = Open().OpenPicture(name).status();
    EXPECT_TRUE(absl::IsNotFound(opened)) << opened;
  }

  TemporaryDirectory directory_;
  const std::string pictures_ = directory_ / "0.pictures";
};

TEST_F(PictureDirectoryTest, APictureIsListedWithItsSizeAndOpened) {
  Write("good.png", "bytes");
  const std::vector<PictureFile> files = Open().List();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "good.png");
  EXPECT_EQ(files[0].bytes, 5u);
  EXPECT_GT(files[0].modified.tv_sec, 0);
  const auto opened = Open().OpenPicture("good.png");
  ASSERT_TRUE(opened.ok()) << opened.status();
  // Replaced by another one: what was opened stays whole.
  Write("good.png", "other bytes");
  char buffer[16];
  EXPECT_EQ(::pread(opened->fd.get(), buffer, sizeof(buffer), 0), 5);
  EXPECT_EQ(opened->file.bytes, 5u);
}

TEST_F(PictureDirectoryTest, ALinkIsNotFollowed) {
  Write("good.png", "good");
  fs::create_symlink(directory_ / "secret.png", *this / "link.png");
  ExpectUnseen("link.png");
  fs::create_symlink("good.png", *this / "near.png");
  ExpectUnseen("near.png");
}

TEST_F(PictureDirectoryTest, APipeASocketAndADirectoryAreNotWaitedFor) {
  Write("good.png", "good");
  ASSERT_EQ(::mkfifo((*this / "pipe.png").c_str(), 0600), 0);
  ExpectUnseen("pipe.png");
  fs::create_directory(*this / "directory.png");
  ExpectUnseen("directory.png");
  const os::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  (*this / "socket.png").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectUnseen("socket.png");
}

TEST_F(PictureDirectoryTest, AnotherUsersFileIsNotSeenEvenAsAHardLink) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  Write("good.png", "good");
  ASSERT_EQ(::link((directory_ / "secret.png").c_str(), (*this / "hard.png").c_str()), 0);
  // The directory is a rank's, who has put a link to root's file there.
  ASSERT_EQ(::chown(pictures_.c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chown((*this / "good.png").c_str(), 12345, 12345), 0);
  ExpectUnseen("hard.png");
}

TEST_F(PictureDirectoryTest, WhatIsTooLargeOrEmptyIsNotSeen) {
  Write("good.png", std::string(kMostPictureBytes, 'x'));
  Write("large.png", "x");
  fs::resize_file(*this / "large.png", kMostPictureBytes + 1);
  ExpectUnseen("large.png");
  fs::resize_file(*this / "large.png", uint64_t{1} << 40);
  ExpectUnseen("large.png");
  Write("empty.png", "");
  ExpectUnseen("empty.png");
}

TEST_F(PictureDirectoryTest, WhatHasNoPicturesNameIsNotSeen) {
  Write("good.png", "good");
  for (const char* name : {".good.png", "good.svg", "good", "g d.png", "good.html"}) {
    Write(name, "bad");
    ExpectUnseen(name);
  }
  ExpectUnseen("../secret.png");
  ExpectUnseen(".");
  ExpectUnseen("");
}

TEST_F(PictureDirectoryTest, TheNewestSixteenAreListed) {
  for (int i = 0; i < 20; ++i) {
    const std::string name = std::string(1, static_cast<char>('a' + i)) + ".png";
    Write(name, "x");
    const timespec times[] = {{1000 - i, 0}, {1000 - i, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (*this / name).c_str(), times, 0), 0);
  }
  const std::vector<std::string> names = Names();
  ASSERT_EQ(names.size(), PictureDirectory::kMostPictures);
  EXPECT_EQ(names.front(), "a.png");
  EXPECT_EQ(names.back(), "p.png");
  // The others can still be opened by whoever knows them.
  EXPECT_TRUE(Open().OpenPicture("t.png").ok());
}

TEST_F(PictureDirectoryTest, ALinkInPlaceOfTheDirectoryIsNotFollowed) {
  Write("good.png", "good");
  fs::create_directory_symlink(pictures_, directory_ / "link");
  EXPECT_TRUE(absl::IsFailedPrecondition(PictureDirectory::Open(directory_ / "link").status()));
  EXPECT_TRUE(absl::IsNotFound(PictureDirectory::Open(directory_ / "absent").status()));
  v1::RankUser user;
  user.set_uid(::geteuid());
  user.set_gid(::getegid());
  EXPECT_FALSE(PictureDirectory::Make(directory_ / "link", &user).ok());
}

TEST_F(PictureDirectoryTest, PicturesOfADirectoryThatGoesAreKept) {
  const std::string ranks = directory_ / "ranks";
  const std::string logs = directory_ / "logs";
  ASSERT_TRUE(os::MakeDirectories(logs + "/7").ok());
  const std::string from = PicturesPath(ranks, logs + "/7", 3, 7);
  EXPECT_EQ(from, ranks + "/p3.7");
  EXPECT_EQ(PicturesPath("", logs + "/7", 3, 7), KeptPicturesPath(logs + "/7", 3));
  for (const std::string& path : {from, PicturesPath(ranks, logs + "/8", 3, 8), ranks + "/px.7",
                                  ranks + "/p3.7.8", ranks + "/other"}) {
    ASSERT_TRUE(os::MakeDirectories(path).ok());
    ASSERT_TRUE(os::WriteFileAtomically(path + "/map.png", "of 7").ok());
  }
  fs::create_symlink(directory_ / "secret.png", from + "/link.png");
  const timespec times[] = {{1000, 5}, {1000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (from + "/map.png").c_str(), times, 0), 0);
  KeepPictures(ranks, logs);
  const auto kept = PictureDirectory::Open(KeptPicturesPath(logs + "/7", 3));
  ASSERT_TRUE(kept.ok()) << kept.status();
  const std::vector<PictureFile> files = kept->List();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "map.png");
  EXPECT_EQ(files[0].modified.tv_sec, 1000);
  EXPECT_FALSE(fs::exists(from) || fs::exists(PicturesPath(ranks, "", 3, 8)));
  EXPECT_TRUE(fs::exists(ranks + "/other/map.png"));
  // The logs of generation 8 have been removed: nothing comes back.
  EXPECT_FALSE(fs::exists(logs + "/8"));
  EXPECT_EQ(std::distance(fs::directory_iterator(logs), {}), 1);
}

// A recursion would have a descriptor open for each level.
TEST_F(PictureDirectoryTest, WhatARankHasNestedIsRemovedWithFewDescriptors) {
  constexpr int kDepth = 500;
  Write("map.png", "x");
  fs::create_symlink(directory_ / "secret.png", *this / "link.png");
  os::UniqueFd at(::open(pictures_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < kDepth; ++i) {
    // Names that a removal may itself use.
    for (const char* name : {"raised-1", "deeper"}) {
      ASSERT_EQ(::mkdirat(at.get(), name, 0700), 0) << i;
    }
    at = os::UniqueFd(
        ::openat(at.get(), i % 2 == 0 ? "raised-1" : "deeper", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(at);
  }
  at.reset();
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {.rlim_cur = 32, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const absl::Status removed = RemovePictures(pictures_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_FALSE(fs::exists(pictures_));
  EXPECT_EQ(os::ReadFile(directory_ / "secret.png").value_or(""), "secret");
}

class DaemonPicturesTest : public DaemonTest {
 protected:
  using Upload = testing::FakeCoordinator::Upload;
  Upload Ask(const std::string& name, const std::vector<int>& ranks) {
    v1::OpenSessionResponse message;
    v1::OpenPictures& open = *message.mutable_open_pictures();
    open.set_stream_id("pictures " + std::to_string(++asked_));
    open.set_job_id(job_);
    open.set_name(name);
    for (const int rank : ranks) {
      v1::PictureSource& source = *open.add_sources();
      // As after ranks have been numbered anew.
      source.set_rank(rank + 10);
      source.set_process_generation(1);
      source.set_process_rank(rank);
    }
    coordinator_->Send(message, kJob, 1);
    return coordinator_->AwaitUpload(open.stream_id(), [](const auto& u) { return u.ended; });
  }
  void RunRanks(const std::string& script, int ranks) {
    StartDaemon();
    AwaitHello();
    Prepare(PrepareFor(script, ranks));
    Start();
  }

  std::string job_ = kJob;
  int asked_ = 0;
};

TEST_F(DaemonPicturesTest, OneQuestionListsThePicturesOfAllRanks) {
  RunRanks(
      "cd $MESHRUN_PICTURES && echo half >.map.png && echo map of $RANK >m && mv m map.png && "
      "ln -s /etc/passwd passwd.png && mkfifo pipe.png; "
      "echo done; exec sleep 600",
      3);
  ASSERT_TRUE(testing::Eventually([&] {
    for (int rank = 0; rank < 3; ++rank) {
      if (os::ReadFile(Stdout(rank)).value_or("") != "done\n") return false;
    }
    return true;
  }));
  const Upload listed = Ask("", {0, 1, 2, 7});
  EXPECT_EQ(listed.error, "");
  ASSERT_EQ(listed.pictures.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(listed.pictures[rank].rank(), rank + 10);
    EXPECT_EQ(listed.pictures[rank].name(), "map.png");
    EXPECT_EQ(listed.pictures[rank].bytes(), 9u);
    EXPECT_GT(listed.pictures[rank].modified_at().seconds(), 0);
  }
  const Upload map = Ask("map.png", {1});
  EXPECT_EQ(map.data, "map of 1\n");
  ASSERT_EQ(map.pictures.size(), 1u);
  EXPECT_EQ(map.pictures[0].rank(), 11);
  for (const char* name :
       {"passwd.png", "pipe.png", ".map.png", "absent.png", "../1/0.stdout.log"}) {
    const Upload none = Ask(name, {1});
    EXPECT_EQ(none.data, "") << name;
    EXPECT_TRUE(none.gone) << name;
    EXPECT_THAT(none.error, HasSubstr("rank 11 has no picture ")) << name;
  }
}

TEST_F(DaemonPicturesTest, ALargePictureComesInPiecesAndAfterTheEndOfItsRank) {
  RunRanks("cd $MESHRUN_PICTURES && head -c 1000000 /dev/zero >large.png", 1);
  AwaitRankExit();
  const Upload large = Ask("large.png", {0});
  EXPECT_EQ(large.data, std::string(1'000'000, '\0'));
  EXPECT_LE(large.largest, size_t{1} << 16);
}

TEST_F(DaemonPicturesTest, AJobThatHasNoLogsHereHasNoPictures) {
  RunRanks("cd $MESHRUN_PICTURES && echo map >map.png", 1);
  AwaitRankExit();
  ASSERT_EQ(Ask("", {0}).pictures.size(), 1u);
  job_ = "absent-k3x9w2";
  EXPECT_THAT(Ask("", {0}).pictures, IsEmpty());
}

}  // namespace
}  // namespace meshrun::worker
