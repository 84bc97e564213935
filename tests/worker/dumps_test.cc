// What is told of a process that stands still: the output of each tool, and real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/os/files.h"
#include "core/os/process.h"
#include "tests/worker/support/processes.h"
#include "worker/dumps/frames.h"
#include "worker/dumps/proc_files.h"
#include "worker/dumps/process_dump.h"
#include "worker/dumps/python_frames.h"

namespace meshrun::worker {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kPySpy[] = R"t(Process 12: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 17 (idle): "Thread-1 (wait)"
    Condition.wait (/usr/lib/python3.11/threading.py:327)
Thread 12 (active): "MainThread"
    all_reduce (/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2806)
    step (/home/me/my (old)/train.py:12)
    <module> (/home/me/my (old)/train.py:20)
)t";

TEST(FramesTest, OfPySpyAreThoseOfTheMainThread) {
  const std::vector<Frame> frames = FramesOfPySpy(kPySpy, 12);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[1].function, "step");
  EXPECT_EQ(frames[1].file, "/home/me/my (old)/train.py");
  EXPECT_EQ(PlaceOf(frames), "step (train.py:12), in all_reduce (distributed_c10d.py:2806)");
  EXPECT_THAT(FramesOfPySpy(kPySpy, 13), IsEmpty());
}

TEST(FramesTest, OfFaulthandlerAreThoseOfTheThreadThatTookTheSignal) {
  constexpr char kText[] = R"t(Thread 0x00007f6d8f4c56c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f6d90008b80 (most recent call first):
  File "train.py", line 3 in step
  File "train.py", line 9 in <module>
)t";
  const std::vector<Frame> frames = FramesOfFaulthandler(kText);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(PlaceOf(frames), "step (train.py:3)");
}

TEST(FramesTest, OfEuStackHaveInlinedFunctionsAndTheirLines) {
  constexpr char kText[] = R"t(PID 14 - process
TID 15:
#0  0x00007fdccd2b912b __GI___poll
TID 14:
#0  0x00007fdccd2b912b futex_wait
    ../sysdeps/nptl/futex-internal.h:146:13
#1  0x00007fdccd2bf482 ___pthread_mutex_lock
    ./nptl/pthread_mutex_lock.c:93:7
#2  0x000055b52449b175 std::mutex::lock()
    /usr/include/c++/12/bits/std_mutex.h:100:37
#3  0x000055b52449b175 demo::stand_still(int)
    /tmp/hang.cc:8
#4  0x000055b52449b18e main
    /tmp/hang.cc:11:31
)t";
  const std::vector<Frame> frames = FramesOfEuStack(kText, 14);
  ASSERT_THAT(frames, SizeIs(5));
  EXPECT_EQ(PlaceOf(frames),
            "demo::stand_still(int) (hang.cc:8), in futex_wait (futex-internal.h:146)");
}

TEST(FramesTest, OfGdbHaveNamesWithAndWithoutAddress) {
  constexpr char kText[] = R"t(Thread 2 (Thread 0x7fac9f838440 (LWP 15) "pool"):
#0  0x00007fac9f6a412b in poll () from /lib/x86_64-linux-gnu/libc.so.6

Thread 1 (Thread 0x7fac9fa38440 (LWP 14) "hang"):
#0  futex_wait (private=0, expected=2, futex_word=0x55 <m>) at ../sysdeps/nptl/futex-internal.h:146
#1  0x00005573943c6175 in std::function<void (int)>::operator()(int) const () at /usr/include/c++/12/bits/std_function.h:591
#2  (anonymous namespace)::wait (at="x at y:3") at src/hang.cc:8
#3  0x00005573943c618e in main () at hang.cc:11
[Inferior 1 (process 14) detached]
)t";
  const std::vector<Frame> frames = FramesOfGdb(kText, 14);
  ASSERT_THAT(frames, SizeIs(4));
  EXPECT_EQ(frames[0].function, "futex_wait");
  EXPECT_EQ(frames[1].function, "std::function<void (int)>::operator()(int) const");
  EXPECT_EQ(PlaceOf(frames),
            "(anonymous namespace)::wait (hang.cc:8), in futex_wait (futex-internal.h:146)");
  EXPECT_EQ(PlaceOf(FramesOfGdb(kText, 15)), "poll");
}

TEST(FramesTest, OfGdbHaveCppNamesWhereItPrintsSymbols) {
  constexpr char kText[] =
      R"t(add symbol table from file "/lib/libtorch_cpu.so" with all sections offset by 0x7f
[New LWP 15]
[Thread debugging using libthread_db enabled]
Thread 1 (Thread 0x7fac9fa38440 (LWP 14) "hang"):
#0  0x00007f8c9f24d783 in _ZN4c10d7Reducer17finalize_backwardEv () from /lib/libtorch_cpu.so
#1  0x00007f8c9f24df3e in _ZN4absl7CondVar4WaitEPNS_5MutexE.cold ()
#2  0x00007f8c9f24df3e in my_Zero () at hang.cc:12
)t";
  const std::string text = TidyGdb(kText);
  EXPECT_THAT(text, StartsWith("Thread 1 (Thread 0x7fac9fa38440 (LWP 14) \"hang\"):\n#0 "));
  const std::vector<Frame> frames = FramesOfGdb(text, 14);
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[0].function, "c10d::Reducer::finalize_backward()");
  EXPECT_THAT(text, HasSubstr("absl::CondVar::Wait(absl::Mutex*) [clone .cold] ()"));
  EXPECT_EQ(PlaceOf(frames), "my_Zero (hang.cc:12), in c10d::Reducer::finalize_backward()");
}

TEST(FramesTest, OfGdbThatWasStoppedHaveNoTracebackOfItsPython) {
  constexpr char kText[] = R"t(Traceback (most recent call last):
  File "/usr/share/gdb/python/gdb/__init__.py", line 87, in _execute_unwinders
    for objfile in objfiles():
KeyboardInterrupt
ptrace: something else
)t";
  EXPECT_EQ(TidyGdb(kText), "ptrace: something else\n");
}

TEST(ProcFilesTest, LargeLibrariesAreFoundWithTheirPlace) {
  const testing::TemporaryDirectory directory;
  const std::string large = directory / "liblarge.so.1", small = directory / "libsmall.so";
  ASSERT_TRUE(os::WriteFileAtomically(large, std::string(5000, 'x')).ok());
  ASSERT_TRUE(os::WriteFileAtomically(small, "x").ok());
  struct stat file = {};
  ASSERT_EQ(::stat(large.c_str(), &file), 0);
  const std::string inode = std::to_string(file.st_ino);
  const std::string maps = "55d000000000-55d000001000 r--p 00000000 08:01 7 /bin/true\n" +
                           ("7f0000001000-7f0000002000 r--p 00000000 08:01 " + inode) +
                           "                 " + large + "\n" +
                           ("7f0000002000-7f0000003000 r-xp 00001000 08:01 " + inode) + " " +
                           large + "\n7f0000004000-7f0000005000 r--p 00000000 08:01 1 " + large +
                           "\n7f0000006000-7f0000007000 r--p 00000000 08:01 8 " + small +
                           "\n7f0000008000-7f0000009000 rw-p 00000000 00:00 0 \nnonsense\n";
  const std::vector<MappedLibrary> libraries = LargeLibraries(maps, 4096);
  ASSERT_THAT(libraries, SizeIs(1));
  EXPECT_EQ(libraries[0].path, large);
  EXPECT_EQ(libraries[0].address, 0x7f0000001000u);
}

TEST(FramesTest, TextOfNoToolHasNone) {
  for (const std::string text :
       {"", "\n\n", "#", "Thread", "Thread 1", "    a (b", "#1", "TID 1:\n#0",
        "Thread 1 (idle)\n    ) (x:)", "#0  0x", "ptrace: refused"}) {
    EXPECT_THAT(PlaceOf(FramesOfPySpy(text, 7)), IsEmpty()) << text;
    EXPECT_THAT(PlaceOf(FramesOfFaulthandler(text)), IsEmpty()) << text;
    EXPECT_THAT(PlaceOf(FramesOfEuStack(text, 7)), IsEmpty()) << text;
    EXPECT_THAT(PlaceOf(FramesOfGdb(text, 7)), IsEmpty()) << text;
  }
}

TEST(TracingAdviceTest, ARefusalOfTheKernelSaysWhatToDo) {
  EXPECT_THAT(TracingAdvice("ptrace: Operation not permitted.\n", "1\n"),
              HasSubstr("sysctl kernel.yama.ptrace_scope=0"));
  EXPECT_THAT(TracingAdvice("Error: Permission Denied: Try running again", "2"),
              HasSubstr("only root may trace"));
  EXPECT_THAT(TracingAdvice("Operation not permitted", "3"), HasSubstr("nobody may trace"));
  for (const char* scope : {"0\n", ""}) {
    EXPECT_THAT(TracingAdvice("Operation not permitted", scope), HasSubstr("SYS_PTRACE")) << scope;
  }
  EXPECT_EQ(TracingAdvice("#0  poll\n", "1"), "");
}

class DumpTest : public ::testing::Test {
 protected:
  ~DumpTest() override {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t Start(std::vector<std::string> argv) {
    os::SpawnOptions spawn;
    spawn.argv = std::move(argv);
    spawn.env = {{"READY", directory_ + "/ready"}};
    pid_ = os::Spawn(spawn).value_or(-1);
    return pid_;
  }
  // A Python program that stands in step() at line 4 once the file "ready" is there.
  pid_t StartPython(const std::string& before) {
    program_ = directory_ + "/train.py";
    EXPECT_TRUE(
        os::WriteFileAtomically(program_,
                                "import faulthandler, os, threading\n" + before +
                                    "\ndef step(lock):\n"
                                    "    open(os.environ['READY'], 'w').close(); lock.acquire()\n"
                                    "lock = threading.Lock()\nlock.acquire()\nstep(lock)\n",
                                0600, /*sync=*/false)
            .ok());
    const auto python = os::FindCommand("python3", "/", "/usr/local/bin:/usr/bin:/bin");
    EXPECT_TRUE(python.ok());
    const pid_t pid = Start({*python, program_});
    EXPECT_TRUE(
        testing::Eventually([&] { return std::filesystem::exists(directory_ + "/ready"); }));
    return pid;
  }

  const testing::TemporaryDirectory temporary_;
  const std::string directory_ = temporary_.path();
  std::string program_;
  pid_t pid_ = -1;
};

TEST_F(DumpTest, ShowsAStoppedProcessAndGivesUpInTime) {
  const pid_t pid = Start({"/bin/sleep", "1000"});
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  const std::string text = DescribeThreads(pid);
  EXPECT_THAT(text, HasSubstr("sleep 1000"));
  EXPECT_THAT(text, HasSubstr("state T (stopped)"));
  EXPECT_THAT(StackOf(pid, "", std::chrono::seconds(10)).text, StartsWith("call stacks"));
  // It was stopped, and is left so.
  EXPECT_THAT(NativeStack(pid, std::chrono::milliseconds(1)).text,
              HasSubstr("no more within 1 ms"));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  pid_ = -1;
  EXPECT_THAT(DescribeThreads(pid), HasSubstr("is gone"));
}

TEST_F(DumpTest, ARankThatHasRegisteredItsHandlerTellsItsPythonFrames) {
  const std::string file = directory_ + "/frames";
  const pid_t pid =
      StartPython("faulthandler.register(44, file=open('" + file + "', 'a'), all_threads=True)");
  ASSERT_TRUE(RunsPython(pid));
  for (int i = 0; i < 2; ++i) {
    const ProcessStack frames = FramesOfPython(pid, file, std::chrono::seconds(10));
    EXPECT_EQ(frames.place, "step (train.py:4)") << frames.text;
  }
  EXPECT_EQ(::kill(pid, 0), 0);
}

TEST_F(DumpTest, AStoppedRankIsSaidToBeStoppedAndOnlyOnce) {
  const std::string file = directory_ + "/frames";
  const pid_t pid =
      StartPython("faulthandler.register(44, file=open('" + file + "', 'a'), all_threads=True)");
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  const ProcessStack stack = FramesOfPython(pid, file, std::chrono::seconds(10));
  if (stack.place.empty()) {
    EXPECT_THAT(stack.problem,
                EndsWith("the process is stopped (as by SIGSTOP); SIGCONT lets it go on"));
    EXPECT_THAT(stack.text, HasSubstr(stack.problem));
    EXPECT_EQ(TextBesidesProblem(stack), "");
    ProcessStack native = stack;
    native.text += "call stacks (gdb):\nframes\n";
    EXPECT_EQ(TextBesidesProblem(native), "call stacks (gdb):\nframes\n");
  }
  ::kill(pid, SIGCONT);
}

TEST_F(DumpTest, ARankWithoutAHandlerIsLeftAloneAndPySpyIsAdvised) {
  const pid_t pid = StartPython("");
  const ProcessStack stack = StackOf(pid, directory_ + "/frames", std::chrono::seconds(10));
  if (stack.place.empty()) {
    EXPECT_THAT(stack.problem, HasSubstr("pip install py-spy"));
    EXPECT_THAT(stack.problem, HasSubstr("imported meshrun"));
    EXPECT_THAT(stack.text, HasSubstr(stack.problem));
  }
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0) << "the signal would have ended it";
}

TEST_F(DumpTest, AShellThatWaitsIsNotTheRanksWork) {
  const pid_t pid = Start({"/bin/sh", "-c", "sleep 1000 && true"});
  // Between fork and exec, and within exec, it is none of the two.
  EXPECT_TRUE(testing::Eventually([&] {
    const pid_t works = WorkingProcess(pid);
    return works != pid && DescribeThreads(works).find("sleep 1000") != std::string::npos;
  }));
}

TEST_F(DumpTest, TheHelperThatARankHasStartedIsNotTheRanksWork) {
  const auto python = os::FindCommand("python3", "/", "/usr/local/bin:/usr/bin:/bin");
  ASSERT_TRUE(python.ok());
  const std::string rank = std::filesystem::absolute("tests/worker/fake_rank");
  const std::vector<std::string> helper = {"child", *python, "-c",
                                           "import os, time; print(os.getpid(), file=open('" +
                                               directory_ +
                                               "/helper', 'w'), flush=True); time.sleep(1000)"};
  std::vector<std::string> argv = {rank};
  argv.insert(argv.end(), helper.begin(), helper.end());
  const pid_t pid = Start(argv);
  ASSERT_GT(testing::AwaitPid(directory_ + "/helper"), 0);
  EXPECT_EQ(WorkingProcess(pid), pid);
}

TEST_F(DumpTest, TheHelperOfARankThatAShellHasStartedIsNotTheRanksWork) {
  const auto python = os::FindCommand("python3", "/", "/usr/local/bin:/usr/bin:/bin");
  ASSERT_TRUE(python.ok());
  const std::string rank = std::filesystem::absolute("tests/worker/fake_rank");
  const pid_t pid =
      Start({"/bin/sh", "-c",
             rank + " child " + *python + " -c \"import os, time; print(os.getpid(), file=open('" +
                 directory_ + "/helper', 'w'), flush=True); time.sleep(1000)\" && true"});
  ASSERT_GT(testing::AwaitPid(directory_ + "/helper"), 0);
  EXPECT_THAT(DescribeThreads(WorkingProcess(pid)), HasSubstr("fake_rank child"));
}

// Debuggers that do not come to an end by themselves.
class DebuggerTest : public DumpTest {
 protected:
  DebuggerTest() {
    const char* const path = std::getenv("PATH");
    path_ = path == nullptr ? "" : path;
    std::filesystem::create_directory(directory_ + "/bin");
    std::filesystem::create_symlink(std::filesystem::absolute("tests/worker/fake_debugger"),
                                    directory_ + "/bin/gdb");
    ::setenv("PATH", (directory_ + "/bin").c_str(), 1);
  }
  ~DebuggerTest() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("FAKE_DEBUGGER");
  }
  pid_t StartRank(std::vector<std::string> argv) {
    argv.insert(argv.begin(), std::filesystem::absolute("tests/worker/fake_rank"));
    const pid_t pid = Start(std::move(argv));
    EXPECT_TRUE(
        testing::Eventually([&] { return std::filesystem::exists(directory_ + "/ready"); }));
    return pid;
  }
  ProcessStack Look(pid_t pid, const char* mode,
                    std::chrono::milliseconds timeout = std::chrono::milliseconds(200)) {
    ::setenv("FAKE_DEBUGGER", mode, 1);
    return NativeStack(pid, timeout);
  }
  static std::string State(pid_t pid) {
    return StatusField(ReadProcFile("/proc/" + std::to_string(pid) + "/status"), "State");
  }
  static bool IsTraced(pid_t pid) {
    const std::string status = ReadProcFile("/proc/" + std::to_string(pid) + "/status");
    return StatusField(status, "TracerPid") != "0";
  }
  // For a debugger that must have begun by its end.
  static constexpr std::chrono::seconds kLongTimeout{3};
  // A process that is stopped takes no SIGTERM.
  void ExpectThatItRuns(pid_t pid) {
    ::kill(pid, SIGTERM);
    const int status = testing::AwaitExit(pid);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
    pid_ = -1;
  }

  std::string path_;
};

TEST_F(DebuggerTest, OneThatIsKilledLeavesTheProcessRunning) {
  const pid_t pid = StartRank({"waits"});
  EXPECT_THAT(Look(pid, "deaf").text, HasSubstr("no more within 200 ms"));
  ExpectThatItRuns(pid);
}

TEST_F(DebuggerTest, OneThatFailsLeavesTheProcessRunning) {
  const pid_t pid = StartRank({"waits"});
  EXPECT_THAT(Look(pid, "fails", kLongTimeout).problem, HasSubstr("found no frames"));
  ExpectThatItRuns(pid);
}

TEST_F(DebuggerTest, OneThatIsOutOfTimeMayLetTheProcessGo) {
  const pid_t pid = StartRank({"waits"});
  EXPECT_THAT(Look(pid, "detaches", kLongTimeout).text, HasSubstr("detached"));
  ExpectThatItRuns(pid);
}

TEST_F(DebuggerTest, AThreadInTheKernelDoesNotStopLater) {
  const std::string end = directory_ + "/end";
  const pid_t pid = StartRank({"in-kernel", end});
  ASSERT_TRUE(testing::Eventually([&] { return State(pid).starts_with('D'); }));
  Look(pid, "deaf");
  ASSERT_TRUE(os::WriteFileAtomically(end, "", 0600, /*sync=*/false).ok());
  ExpectThatItRuns(pid);
}

TEST_F(DebuggerTest, AProcessThatWasStoppedBeforeStaysSo) {
  const pid_t pid = StartRank({"waits"});
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, WUNTRACED), pid);
  for (const char* mode : {"deaf", "fails", "detaches"}) {
    Look(pid, mode);
    EXPECT_TRUE(testing::Eventually([&] { return State(pid) == "T (stopped)"; })) << mode;
  }
}

TEST_F(DebuggerTest, AProcessThatIsStoppedMeanwhileStaysSo) {
  const pid_t pid = StartRank({"waits"});
  std::thread user([&] {
    EXPECT_TRUE(testing::Eventually([&] { return IsTraced(pid); }));
    ::kill(pid, SIGSTOP);
  });
  ::setenv("FAKE_DEBUGGER", "deaf", 1);
  NativeStack(pid, std::chrono::seconds(1));
  user.join();
  EXPECT_TRUE(testing::Eventually([&] { return State(pid) == "T (stopped)"; }));
}

TEST_F(DebuggerTest, AnotherOneThatIsThereIsNamed) {
  // PR_SET_PTRACER, as for a rank.
  const pid_t pid = StartPython(
      "import ctypes\nctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)");
  ::setenv("FAKE_DEBUGGER", "deaf", 1);
  os::SpawnOptions spawn;
  spawn.argv = {directory_ + "/bin/gdb", "-p", std::to_string(pid)};
  const pid_t other = os::Spawn(spawn).value_or(-1);
  ASSERT_TRUE(testing::Eventually([&] { return IsTraced(pid); }));
  for (const ProcessStack& stack :
       {Look(pid, "fails"), StackOf(pid, "", std::chrono::milliseconds(200))}) {
    EXPECT_THAT(stack.problem, HasSubstr("gdb (process " + std::to_string(other) + ") traces it"));
    EXPECT_THAT(stack.text, HasSubstr(stack.problem));
    EXPECT_EQ(stack.place, "");
  }
  EXPECT_TRUE(IsTraced(pid));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace meshrun::worker
