// What leads a browser to an address that no command line may show.
#include "client/http/redirect_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "core/os/files.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using meshrun::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kAddress[] = "http://127.0.0.1:40001/?key=c0ffee#/jobs/geoid-k3x9w2";

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

// Sets a variable of the environment (nullptr: unsets it) until its end.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    Set(value);
  }
  ~Variable() { Set(before_ ? before_->c_str() : nullptr); }

 private:
  void Set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* const name_;
  std::optional<std::string> before_;
};

TEST(RedirectPageTest, AnAddressStaysInItsAttribute) {
  const std::string page = RedirectPage("/\"><script>evil()</script>&x");
  EXPECT_THAT(page, HasSubstr("href=\"/&quot;>&lt;script>evil()&lt;/script>&amp;x\""));
  EXPECT_THAT(page, Not(HasSubstr("<script>evil")));
}

TEST(RedirectPageTest, TheScriptIsTheSameForAllAddresses) {
  const auto script = [](const std::string& page) { return page.substr(page.find("<script>")); };
  EXPECT_EQ(script(RedirectPage("/a")), script(RedirectPage("/b")));
}

TEST(RedirectFileTest, OnlyItsUserCanReadIt) {
  const TemporaryDirectory directory;
  const mode_t before = ::umask(0);
  {
    const auto file = RedirectFile::Write(kAddress, {directory.path()});
    ::umask(before);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(ModeOf(file->path()), 0600u);
    const auto parent = std::filesystem::path(file->path()).parent_path();
    EXPECT_EQ(ModeOf(parent), 0700u);
    EXPECT_EQ(parent.parent_path(), directory.path());
    EXPECT_THAT(*os::ReadFile(file->path()), HasSubstr(std::string("\"") + kAddress + "\""));
    EXPECT_THAT(file->path(), Not(HasSubstr("c0ffee")));
    file->Remove();
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
    file->Remove();
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(RedirectFileTest, IsRemovedAtItsEnd) {
  const TemporaryDirectory directory;
  {
    const auto file = RedirectFile::Write(kAddress, {directory.path()});
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_FALSE(std::filesystem::is_empty(directory.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(RedirectFileTest, TakesTheNextPlaceWhereAnotherUserCouldChangeIt) {
  const TemporaryDirectory open;
  const TemporaryDirectory own;
  ASSERT_EQ(::chmod(open.path().c_str(), 0777), 0);
  const auto alone = RedirectFile::Write(kAddress, {open.path()});
  EXPECT_TRUE(absl::IsPermissionDenied(alone.status())) << alone.status();
  const auto file = RedirectFile::Write(kAddress, {open / "nowhere", open.path(), own.path()});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->path(), StartsWith(own.path()));
  // As /tmp is.
  ASSERT_EQ(::chmod(open.path().c_str(), 01777), 0);
  EXPECT_TRUE(RedirectFile::Write(kAddress, {open.path()}).ok());
}

TEST(RedirectFileTest, LiesWhereTheBrowserCanReadIt) {
  const TemporaryDirectory home;
  const Variable home_is("HOME", home.path().c_str());
  const Variable temporary("TMPDIR", "/var/tmp");
  {
    const Variable runtime("XDG_RUNTIME_DIR", "/run/user/1000");
    EXPECT_THAT(RedirectFile::Parents(), ElementsAre("/run/user/1000", "/var/tmp", "/tmp"));
    std::filesystem::create_directory(home / "snap");
    EXPECT_THAT(RedirectFile::Parents(),
                ElementsAre(home.path(), "/run/user/1000", "/var/tmp", "/tmp"));
  }
  const Variable runtime("XDG_RUNTIME_DIR", nullptr);
  const Variable relative("TMPDIR", "here");
  EXPECT_THAT(RedirectFile::Parents(), ElementsAre(home.path(), "/tmp"));
}

}  // namespace
}  // namespace meshrun::client
