// `meshrun page` with a browser: what its command line shows to other users of this machine, and
// what is left of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/os/files.h"
#include "tests/client/command_fixture.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using meshrun::testing::Eventually;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class PageCommandTest : public CommandTest {
 protected:
  // A program that keeps what xdg-open would get: its arguments, and the file.
  void SetUp() override {
    std::filesystem::create_directories(directory_ + "/bin");
    std::filesystem::create_directory(Temporary());
    ::chmod(Temporary().c_str(), 0700);
    Script(directory_ + "/bin/xdg-open",
           "cp -p \"$1\" " + directory_ + "/copy\n" +                            //
               "tr '\\0' '\\n' < /proc/$$/cmdline > " + directory_ + "/new\n" +  //
               "mv " + directory_ + "/new " + directory_ + "/shown\n");
    DevUp(1);
  }
  std::string Temporary() const { return directory_ + "/temporary"; }
  static void Script(const std::string& path, const std::string& text) {
    std::ofstream(path) << "#!/bin/sh\n" << text;
    ::chmod(path.c_str(), 0755);
  }
  // On a screen.
  pid_t StartPage(const std::string& path, const std::string& job = "") {
    std::filesystem::remove(directory_ + "/shown");
    // In a directory of its own: a program of that name there is not the system's.
    std::vector<std::string> argv = {"/bin/sh", "-c",
                                     "cd " + directory_ + " && exec \"$0\" page $1", Meshrun()};
    if (!job.empty()) argv.push_back(job);
    return StartProgram(
        std::move(argv),
        {{"DISPLAY", ":0"}, {"HOME", directory_}, {"PATH", path}, {"TMPDIR", Temporary()}});
  }
  pid_t StartPage() { return StartPage(directory_ + "/bin:/usr/bin:/bin"); }
  // The command line that all users could read, a line for each argument.
  std::string Shown() {
    std::string out;
    EXPECT_TRUE(Eventually([&] {
      out = os::ReadFile(directory_ + "/shown").value_or("");
      return !out.empty();
    }));
    return out;
  }
  // The address in the file that the browser reads.
  std::string AddressInFile() {
    const std::string page = os::ReadFile(directory_ + "/copy").value_or("");
    const size_t begin = page.find("href=\"http") + 6;
    return page.substr(begin, page.find('"', begin) - begin);
  }
};

TEST_F(PageCommandTest, NoKeyStandsOnTheBrowsersCommandLine) {
  const Result submitted = Run({"submit", "--name", "quick", "--", "true"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const std::string job = submitted.out.substr(0, submitted.out.find('\n'));
  const pid_t page = StartPage(directory_ + "/bin:/usr/bin:/bin", job);
  const std::string shown = Shown();
  EXPECT_THAT(shown, HasSubstr(Temporary() + "/meshrun-page-"));
  EXPECT_THAT(shown, Not(HasSubstr("http")));
  EXPECT_THAT(shown, Not(HasSubstr("key")));
  struct stat info = {};
  ASSERT_EQ(::stat((directory_ + "/copy").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);

  const std::string address = AddressInFile();
  ASSERT_THAT(address, StartsWith("http://127."));
  EXPECT_THAT(address, ::testing::EndsWith("#/jobs/" + job));
  const size_t path = address.find("/?key=");
  const std::string key = address.substr(path + 6, 32);
  EXPECT_THAT(shown, Not(HasSubstr(key)));
  EXPECT_THAT(os::ReadFile(directory_ + "/out").value_or(""), Not(HasSubstr(key)));

  // The browser comes: the file is gone, and nobody can come after it.
  EXPECT_FALSE(std::filesystem::is_empty(Temporary()));
  httplib::Client browser(address.substr(0, path).c_str());
  const auto first = browser.Get("/?key=" + key);
  ASSERT_TRUE(first) << httplib::to_string(first.error());
  EXPECT_EQ(first->status, 200);
  EXPECT_TRUE(std::filesystem::is_empty(Temporary()));
  EXPECT_EQ(browser.Get("/?key=" + key)->status, 403);
  ::kill(page, SIGTERM);
  EXPECT_EQ(Wait(page).code, 0);
}

// As the error of a port that is taken advises.
TEST_F(PageCommandTest, Port0IsAnyFreeOne) {
  const pid_t page = StartPage("/nowhere", "--port=0");
  EXPECT_TRUE(Eventually([&] {
    return os::ReadFile(directory_ + "/out").value_or("").find("/?key=") != std::string::npos;
  }));
  ::kill(page, SIGTERM);
  EXPECT_EQ(Wait(page).code, 0);
  const Result wrong = Run({"page", "--port", "65536"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--port 65536: write a whole number from 0 to 65535"));
}

TEST_F(PageCommandTest, TheFileGoesWithTheCommand) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t page = StartPage();
    Shown();
    EXPECT_FALSE(std::filesystem::is_empty(Temporary())) << signal;
    ::kill(page, signal);
    EXPECT_EQ(Wait(page).code, 0) << signal;
    EXPECT_TRUE(std::filesystem::is_empty(Temporary())) << signal;
  }
}

TEST_F(PageCommandTest, WithoutXdgOpenThePersonIsTold) {
  // Not a program of the directory that this person happens to be in.
  Script(directory_ + "/xdg-open", "touch " + directory_ + "/shown\n");
  const pid_t page = StartPage("/nowhere");
  EXPECT_TRUE(Eventually([&] {
    return os::ReadFile(directory_ + "/err").value_or("").find("no xdg-open here") !=
           std::string::npos;
  }));
  EXPECT_TRUE(std::filesystem::is_empty(Temporary()));
  ::kill(page, SIGTERM);
  const Result result = Wait(page);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("/?key="));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/shown"));
}

}  // namespace
}  // namespace meshrun::client
