// What scripts and odd surroundings meet: bytes that are not UTF-8, exit codes, what is on which
// stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/client/command_fixture.h"
#include "tests/worker/support/processes.h"

namespace meshrun::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class ScriptsTest : public CommandTest {};

TEST_F(ScriptsTest, BytesThatAreNotUtf8ReachTheRanksAsTheyAre) {
  const std::string place = directory_ + "/d\xe9 \xc3\xa9%41";
  std::filesystem::create_directories(place);
  const Result result = Wait(StartProgram(
      {Meshrun(), "run", "--working-dir", place, "--env", "OWN=\xfe\xc3", "--", "sh", "-c",
       "printf '%s|%s|%s|%s\\n' \"$BAD\" \"$OWN\" \"$1\" \"$(pwd)\"", "sh", "arg\xff"},
      {{"BAD", "caf\xe9"}}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "caf\xe9|\xfe\xc3|arg\xff|" + std::filesystem::canonical(place).string() + "\n");
  EXPECT_THAT(result.err, Not(HasSubstr("libprotobuf")));
}

TEST_F(ScriptsTest, TheClustersOwnDirectoryMayBeAnyBytes) {
  const std::string place = sockets_ + "/t\xe9 %41";
  std::filesystem::create_directories(place);
  const Result result = Wait(StartProgram(
      {Meshrun(), "run", "--", "sh", "-c", "echo $MESHRUN_AGENT"}, {{"TMPDIR", place}}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(place));
}

TEST_F(ScriptsTest, SentencesAndJsonWriteOtherBytesAsEscapes) {
  const Result missing = Run({"run", "--", "/no\xe9"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "meshrun: /no\\xe9: no such file\n");
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const Result submit = Run({"submit", "--hold", "-o", "json", "--working-dir", "/d\xe9", "--env",
                             "N\xe9=1", "--", "./train", "caf\xe9", "h\xc3\xa9"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  const json job = json::parse(submit.out);
  const json spec = job.at("spec");
  EXPECT_EQ(spec.at("command"), json({"./train", "caf\\xe9", "h\xc3\xa9"}));
  EXPECT_EQ(spec.at("workingDir"), "/d\\xe9");
  EXPECT_EQ(spec.at("env"), json({{"N\\xe9", "(hidden)"}}));
  const Result text = Run({"describe", job.at("jobId").get<std::string>()});
  EXPECT_THAT(text.out, HasSubstr("./train $'caf\\xe9' h\xc3\xa9\n"));
  EXPECT_THAT(text.out, HasSubstr("/d\\xe9\n"));
  const Result wrong = Run({"describe", "caf\xe9"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("'caf\\xe9' is not UTF-8 text"));
  EXPECT_THAT(wrong.err, Not(HasSubstr("libprotobuf")));
}

TEST_F(ScriptsTest, SubmitPrintsTheIdAloneAndWaitAndLogsEndAsTheJobDoes) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const auto submit = [&](const std::string& script) {
    const Result result = Run({"submit", "--", "sh", "-c", script});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out.find_first_of(" \n"), result.out.size() - 1) << result.out;
    return result.out.substr(0, result.out.size() - 1);
  };
  const std::string good = submit("echo fine");
  const std::string bad = submit("echo broken; exit 3");
  const std::string never = submit("exit 93");
  const Result waited = Run({"wait", good});
  EXPECT_EQ(waited.code, 0) << waited.err;
  EXPECT_EQ(waited.out, good + "  SUCCEEDED\n");
  EXPECT_EQ(Run({"wait", bad}).code, 1);
  EXPECT_EQ(Run({"wait", good, bad, never}).code, 93)
      << Run({"describe", bad}).out << Run({"describe", never}).out;
  const Result followed = Run({"logs", "-f", bad});
  EXPECT_EQ(followed.code, 1) << followed.err;
  EXPECT_EQ(followed.out, "broken\n") << Run({"describe", bad}).out;
  EXPECT_EQ(Run({"logs", "-f", good}).code, 0);
  EXPECT_EQ(Run({"logs", bad}).code, 0);
  const Result none = Run({"logs", "--tail", "0", bad});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_EQ(none.out, "");
  const json ended = json::parse(Run({"wait", "-o", "json", bad}).out).at("jobs").at(0);
  EXPECT_EQ(ended.at("failure").at("exit").at("exitCode"), 3);
  EXPECT_TRUE(ended.at("generation").is_number());
  EXPECT_EQ(ended.at("finishedAt").get<std::string>().back(), 'Z');
  EXPECT_EQ(Run({"wait", "nobody"}).code, 2);
}

TEST_F(ScriptsTest, EveryCommandThatTellsSomethingHasJson) {
  // Names in the lists of commands of a help text: a list's lines begin with two blanks and a word
  // of small letters.
  const auto commands = [&](std::vector<std::string> call) {
    call.emplace_back("--help");
    std::vector<std::string> names;
    std::istringstream help(Run(call).out);
    bool in_list = false;
    for (std::string line; std::getline(help, line);) {
      if (line.empty() || line[0] != ' ') in_list = line.find(':') != std::string::npos;
      if (line.starts_with("Examples")) in_list = false;
      const size_t end = line.find(' ', 2);
      if (!in_list || !line.starts_with("  ") || line[2] < 'a' || line[2] > 'z') continue;
      names.push_back(line.substr(2, end - 2));
    }
    return names;
  };
  const std::vector<std::string> all = commands({});
  EXPECT_THAT(all, ::testing::IsSupersetOf({"run", "submit", "logs", "ca", "dev", "version"}));
  for (const std::string& name : all) {
    // They print a script, nothing, an address, a screen and where a picture is.
    if (name == "completion" || name == "leave" || name == "page" || name == "top" ||
        name == "trace") {
      continue;
    }
    std::vector<std::vector<std::string>> calls;
    const std::string help = Run({name, "--help"}).out;
    if (help.find("--output") == std::string::npos) {
      for (const std::string& below : commands({name})) calls.push_back({name, below, "--help"});
    } else {
      calls.push_back({name, "--help"});
    }
    EXPECT_FALSE(calls.empty()) << help;
    for (const auto& call : calls) {
      EXPECT_THAT(Run(call).out, HasSubstr("-o, --output")) << ::testing::PrintToString(call);
    }
  }
}

TEST_F(ScriptsTest, RunPrintsItsJobAsJsonAloneOnStdout) {
  const Result good =
      Run({"run", "-o", "json", "--nproc", "2", "--", "sh", "-c", "echo out; echo error >&2"});
  EXPECT_EQ(good.code, 0) << good.err;
  const json job = json::parse(good.out);
  EXPECT_EQ(job.at("state"), "JOB_STATE_SUCCEEDED");
  EXPECT_EQ(job.at("worldSize"), 2);
  for (const char* line : {"0: out\n", "1: out\n", "0: error\n", "1: error\n"})
    EXPECT_THAT(good.err, HasSubstr(line));
  const Result bad = Run({"run", "-o", "json", "--", "sh", "-c", "exit 3"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_EQ(json::parse(bad.out).at("failure").at("exit").at("exitCode"), 3);
  EXPECT_THAT(bad.err, HasSubstr("exit code 3"));
  const Result never = Run({"run", "-o", "json", "--", "/nowhere"});
  EXPECT_EQ(never.code, 2);
  EXPECT_EQ(never.out, "");
  const Result full =
      Wait(StartProgram({"/bin/sh", "-c", "exec $0 run -o json -- true >/dev/full", Meshrun()}));
  EXPECT_EQ(full.code, 74);
  EXPECT_THAT(full.err,
              HasSubstr("meshrun: standard output cannot be written: No space left on device\n"));
}

TEST_F(ScriptsTest, LogsAndAFollowedSubmitSpeakJson) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  // The end of one is the end of both.
  const std::string written = directory_ + "/written";
  const Result submit =
      Run({"submit", "--follow", "-o", "json", "--nproc", "2", "--", "sh", "-c",
           "echo rank $RANK; printf \"caf\\351 $RANK\" >&2; : > " + written + "$RANK; until [ -e " +
               written + "0 -a -e " + written + "1 ]; do sleep 0.01; done; exit 4"});
  EXPECT_EQ(submit.code, 1) << submit.err;
  const json job = json::parse(submit.out);
  EXPECT_EQ(job.at("state"), "JOB_STATE_FAILED");
  EXPECT_THAT(submit.err, HasSubstr("0: rank 0\n"));
  const std::string id = job.at("jobId");
  const auto lines = [&](std::vector<std::string> flags, int code) {
    flags.insert(flags.begin(), {"logs", "-o", "json", id});
    const Result result = Run(flags);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.err, "");
    std::map<std::string, std::string> texts;
    std::istringstream in(result.out);
    for (std::string line; std::getline(in, line);) {
      const json one = json::parse(line);
      EXPECT_EQ(one.at("jobId"), id);
      EXPECT_EQ(one.at("generation"), job.at("generation"));
      EXPECT_EQ(one.at("readAt").get<std::string>().back(), 'Z');
      texts[one.at("stream").get<std::string>() + one.at("rank").dump()] = one.at("text");
    }
    return texts;
  };
  const std::map<std::string, std::string> all = {{"stdout0", "rank 0"},
                                                  {"stderr0", "caf\\xe9 0"},
                                                  {"stdout1", "rank 1"},
                                                  {"stderr1", "caf\\xe9 1"}};
  EXPECT_EQ(lines({}, 0), all);
  EXPECT_EQ(lines({"-f"}, 1), all);
  EXPECT_EQ(lines({"--ranks", "1", "--stream", "stdout"}, 0),
            (std::map<std::string, std::string>{{"stdout1", "rank 1"}}));
}

TEST_F(ScriptsTest, DevDownSaysAsJsonWhatItHasStopped) {
  ASSERT_NO_FATAL_FAILURE(DevUp(2));
  const json before = json::parse(Run({"dev", "status", "-o", "json"}).out);
  ASSERT_EQ(::kill(before.at("workers").at(0).at("pid").get<pid_t>(), SIGKILL), 0);
  const Result down = Run({"dev", "down", "-o", "json"});
  EXPECT_EQ(down.code, 0) << down.err;
  EXPECT_EQ(down.err, "");
  const json stopped = json::parse(down.out);
  EXPECT_FALSE(stopped.at("running").get<bool>());
  EXPECT_EQ(stopped.at("address"), before.at("address"));
  EXPECT_EQ(stopped.at("coordinator").at("pid"), before.at("coordinator").at("pid"));
  ASSERT_EQ(stopped.at("workers").size(), 1u) << stopped;
  EXPECT_EQ(stopped.at("workers").at(0).at("pid"), before.at("workers").at(1).at("pid"));
  EXPECT_FALSE(stopped.at("workers").at(0).at("running").get<bool>());
  const json again = json::parse(Run({"dev", "down", "-o", "json"}).out);
  EXPECT_TRUE(again.at("coordinator").is_null());
  EXPECT_EQ(again.at("workers"), json::array());
}

TEST_F(ScriptsTest, CaSaysAsJsonWhatItHasWritten) {
  const std::string authority = directory_ + "/ca";
  const auto said = [&](std::vector<std::string> call) {
    call.insert(call.begin(), "ca");
    for (const std::string& word :
         {std::string("--ca"), authority, std::string("-o"), std::string("json")})
      call.push_back(word);
    const Result result = Run(call);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  const auto expect_there = [](const json& made) {
    for (const json& path : made.at("files"))
      EXPECT_TRUE(std::filesystem::exists(path.get<std::string>())) << path;
  };
  const json init = said({"init", "--name", "trial"});
  EXPECT_EQ(init.at("name"), "trial");
  EXPECT_EQ(init.at("files"), json({authority + "/ca.key", authority + "/ca.crt"}));
  expect_there(init);
  const std::string ada = directory_ + "/ada";
  const json issue = said({"issue", "--role", "submit", "--user", "ada", "--out", ada});
  EXPECT_EQ(issue.at("directory"), ada);
  EXPECT_EQ(issue.at("name"), "ada");
  EXPECT_EQ(issue.at("files"), json({ada + "/tls.key", ada + "/tls.crt", ada + "/ca.crt"}));
  EXPECT_EQ(issue.at("notAfter").get<std::string>().size(),
            std::string("2027-01-15T08:00:00Z").size());
  expect_there(issue);
  // Those before one that fails have been renewed, and are told.
  const Result renew =
      Run({"ca", "renew", ada, directory_ + "/nobody", "--ca", authority, "-o", "json"});
  EXPECT_EQ(renew.code, 2);
  EXPECT_THAT(renew.err, HasSubstr("nobody"));
  const json renewed = json::parse(renew.out).at("certificates");
  ASSERT_EQ(renewed.size(), 1u);
  EXPECT_EQ(renewed.at(0).at("files"), json({ada + "/tls.crt", ada + "/ca.crt"}));
}

TEST_F(ScriptsTest, WaitGivesUpInTimeAndASignalReachesTheRanks) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const std::string fifo = Fifo();
  const Result submit = Run({"submit", "--nproc", "2", "--", "sh", "-c",
                             "trap 'echo got; exit 5' USR1; [ $RANK = 1 ] || echo $$ > " + fifo +
                                 "; while :; do sleep 0.05; done"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  const std::string id = submit.out.substr(0, submit.out.size() - 1);
  EXPECT_GT(ReadPid(fifo), 0);
  // A rank may run before the coordinator has heard of it.
  ASSERT_TRUE(testing::Eventually([&] {
    const json job = json::parse(Run({"describe", "-o", "json", id}).out).at("job");
    return job.at("state") == "JOB_STATE_RUNNING";
  }));
  const Result late = Run({"wait", "--at-most", "2s", id});
  EXPECT_EQ(late.code, 124);
  EXPECT_THAT(late.err, HasSubstr(id + " is RUNNING after 2s"));
  EXPECT_EQ(Run({"signal", id, "NOTHING"}).code, 2);
  const Result absent = Run({"signal", id, "USR1", "--ranks", "2"});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("has no rank 2: its ranks are 0 to 1"));
  const Result sent = Run({"signal", id, "USR1", "--ranks", "0"});
  EXPECT_THAT(Run({"events", id}).out, HasSubstr("SIGUSR1 to rank 0 (by "));
  EXPECT_EQ(sent.code, 0) << sent.err;
  EXPECT_EQ(sent.out, id + "  SIGUSR1 sent\n");
  EXPECT_EQ(Run({"wait", id}).code, 1);
  EXPECT_THAT(Run({"logs", "--ranks", "0", id}).out, HasSubstr("got\n"));
  const json exit =
      json::parse(Run({"describe", "-o", "json", id}).out).at("job").at("failure").at("exit");
  EXPECT_EQ(exit.at("exitCode"), 5);
  const json other =
      json::parse(Run({"describe", "-o", "json", id}).out).at("job").at("ranks").at(1).at("exit");
  EXPECT_NE(other.at("signal"), 0);
  EXPECT_FALSE(other.contains("exitCode")) << other;
  EXPECT_EQ(Run({"signal", id, "USR1"}).code, 2);
}

TEST_F(ScriptsTest, AKilledCoordinatorComesBackAsItsHintSaysAndTheJobGoesOn) {
  ASSERT_NO_FATAL_FAILURE(DevUp(2));
  const std::string fifo = Fifo();
  const std::string go = directory_ + "/go";
  const Result submit = Run({"submit", "--nodes", "2", "--", "sh", "-c",
                             "[ $RANK = 1 ] || echo $$ > " + fifo + "; until [ -e " + go +
                                 " ]; do sleep 0.05; done; echo $$"});
  ASSERT_EQ(submit.code, 0) << submit.err;
  const std::string id = submit.out.substr(0, submit.out.size() - 1);
  const pid_t rank = ReadPid(fifo);
  const json before = json::parse(Run({"dev", "status", "-o", "json"}).out);
  ASSERT_EQ(::kill(before.at("coordinator").at("pid").get<pid_t>(), SIGKILL), 0);
  const Result lost = Run({"ps"});
  EXPECT_EQ(lost.code, 75);
  EXPECT_THAT(lost.err, HasSubstr("start one with 'meshrun dev up'"));
  const Result up = Run({"dev", "up"});
  EXPECT_EQ(up.code, 0) << up.err;
  const json after = json::parse(Run({"dev", "status", "-o", "json"}).out);
  EXPECT_TRUE(after.at("running").get<bool>());
  EXPECT_EQ(after.at("workers"), before.at("workers"));
  EXPECT_EQ(after.at("address"), before.at("address"));
  std::ofstream(go) << "go";
  EXPECT_EQ(Run({"wait", id}).code, 0);
  EXPECT_THAT(Run({"logs", "--ranks", "0", id}).out, HasSubstr(std::to_string(rank)));
  EXPECT_EQ(Run({"dev", "up", "--port", "1"}).code, 2);
  const Result fewer = Run({"dev", "up", "-n", "1"});
  EXPECT_EQ(fewer.code, 2);
  EXPECT_THAT(fewer.err, HasSubstr("2 workers run and 1 is asked for"));
  EXPECT_EQ(Run({"dev", "up", "--slots", "3"}).code, 2);
}

TEST_F(ScriptsTest, ADeadWorkerComesBackWithItsNumberAndSlots) {
  ASSERT_NO_FATAL_FAILURE(DevUp(2));
  const json before = json::parse(Run({"dev", "status", "-o", "json"}).out);
  ASSERT_EQ(::kill(before.at("workers").at(1).at("pid").get<pid_t>(), SIGKILL), 0);
  EXPECT_EQ(Run({"dev", "up"}).code, 0);
  const json after = json::parse(Run({"dev", "status", "-o", "json"}).out);
  EXPECT_EQ(after.at("workers").at(0), before.at("workers").at(0));
  EXPECT_EQ(after.at("coordinator"), before.at("coordinator"));
  EXPECT_NE(after.at("workers").at(1), before.at("workers").at(1));
  const json nodes = json::parse(Run({"nodes", "-o", "json"}).out).at("nodes");
  ASSERT_EQ(nodes.size(), 2u);
  for (const json& node : nodes) EXPECT_EQ(node.at("resources").at("slots"), 2);
}

TEST_F(ScriptsTest, AJobThatIsTooBigWaitsAndSaysSo) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const Result big = Run({"submit", "--nproc", "100", "--", "true"});
  EXPECT_EQ(big.code, 0);
  EXPECT_THAT(big.err, HasSubstr("the present nodes cannot run it"));
  EXPECT_THAT(big.err, HasSubstr("--must-fit"));
  EXPECT_EQ(Run({"submit", "--must-fit", "--nproc", "100", "--", "true"}).code, 2);
  const Result fits = Run({"submit", "--nproc", "2", "--", "true"});
  EXPECT_THAT(fits.err, Not(HasSubstr("cannot run it")));
}

TEST_F(ScriptsTest, TheSubmittersEnvironmentGoesWithTheJobWhereAskedFor) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const auto out = [&](std::vector<std::string> flags) {
    std::vector<std::string> call = {Meshrun(), "submit"};
    call.insert(call.end(), flags.begin(), flags.end());
    for (const char* word : {"--", "sh", "-c", "echo \"$OWN|$OTHER|$RANK|$MASTER_PORT\""})
      call.emplace_back(word);
    const Result result = Wait(
        StartProgram(std::move(call),
                     {{"OWN", "mi\xe9ne"}, {"OTHER", "x"}, {"RANK", "77"}, {"MASTER_PORT", "1"}}));
    EXPECT_EQ(result.code, 0) << result.err;
    const std::string id = result.out.substr(0, result.out.find('\n'));
    EXPECT_EQ(Run({"wait", id}).code, 0);
    return Run({"logs", id}).out;
  };
  EXPECT_THAT(out({}), ::testing::StartsWith("||0|"));
  EXPECT_THAT(out({"--export", "NONE"}), ::testing::StartsWith("||0|"));
  const std::string all = out({"--export", "ALL"});
  EXPECT_THAT(all, ::testing::StartsWith("mi\xe9ne|x|0|"));
  EXPECT_THAT(all, Not(HasSubstr("|1\n")));
  EXPECT_THAT(out({"--export", "OTHER,OWN=set"}), ::testing::StartsWith("set|x|0|"));
  EXPECT_THAT(out({"--export", "ALL,OWN=set", "--env", "OTHER=y"}),
              ::testing::StartsWith("set|y|0|"));
}

TEST_F(ScriptsTest, WrongCallsAreToldBeforeAnythingStarts) {
  const auto expect_wrong = [&](const std::vector<std::string>& call, const std::string& text) {
    const Result result = Run(call);
    EXPECT_EQ(result.code, 2) << ::testing::PrintToString(call) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text)) << ::testing::PrintToString(call);
    EXPECT_EQ(result.err.find("meshrun: "), result.err.rfind("meshrun: ")) << result.err;
    EXPECT_EQ(result.out, "");
  };
  expect_wrong({"run", "nosuch.py"}, "nosuch.py: no such file");
  expect_wrong({"run", "--working-dir", "/nonexist", "true"}, "/nonexist: no such directory");
  expect_wrong({"run", "--working-dir", "/etc/passwd", "true"}, "this is not a directory");
  expect_wrong({"submit", "-f", "."}, "Is a directory");
  expect_wrong({"submit", "-f", "/dev/zero"}, "/dev/zero:1:1: a zero byte");
  expect_wrong({"run", "--env", "RANK=7", "true"}, "RANK is set by meshrun for each rank");
  expect_wrong({"run", "--nproc", "100000", "true"}, "4096");
  expect_wrong({"run", "--nproc", "4096", "true"}, "(8 for each of");
  expect_wrong({"run", "--event-log-handler", "console", "true"}, "meshrun events");
  expect_wrong({"run", "--signals-to-handle", "SIGTERM,SIGKILL", "true"},
               "SIGKILL cannot be handled by any program");
  expect_wrong({"run", "--signals-to-handle", "SIGWINCH", "true"}, "SIGWINCH does not end a job");
  expect_wrong({"submit", "--export", "NOT_THERE", "--", "true"}, "NOT_THERE is not set here");
  expect_wrong({"submit", "--export", "NONE,A=1", "--", "true"}, "NONE stands alone");
  const Result gone = Wait(StartProgram(
      {"/bin/sh", "-c", "mkdir $1/gone && cd $1/gone && rmdir ../gone && exec $0 run -- pwd",
       Meshrun(), directory_}));
  EXPECT_EQ(gone.code, 2);
  EXPECT_THAT(gone.err, HasSubstr("has been deleted"));
}

TEST_F(ScriptsTest, MoreRanksThanCoresShareThemAndOneLineSaysSo) {
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::string ranks = std::to_string(cores + 1);
  const Result result = Run({"run", "--nproc", ranks, "--", "true"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("meshrun: " + ranks + " ranks share " + std::to_string(cores)));
  EXPECT_THAT(Run({"run", "--nproc", ranks, "--slots", ranks, "--", "true"}).err,
              Not(HasSubstr("share")));
}

TEST_F(ScriptsTest, TorchrunsOtherFlagsAreTaken) {
  std::ofstream(directory_ + "/script") << "import os; print(os.environ['ROLE_NAME'])\n";
  const Result result =
      Run({"run", "--role", "trainer", "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
           "--event-log-handler", "null", "--run-path", directory_ + "/script"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "trainer\n");
}

TEST_F(ScriptsTest, AJobFilesCommandAndDirectoryAreReadAsFlagsAre) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  std::filesystem::create_directories(directory_ + "/sub");
  std::ofstream(directory_ + "/sub/train.py") << "import os; print(os.getcwd())\n";
  std::ofstream(directory_ + "/job.yaml") << "command: train.py\nworking_dir: sub\n";
  const Result result = Wait(StartProgram(
      {"/bin/sh", "-c", "cd $1 && exec $0 submit --follow -f job.yaml", Meshrun(), directory_}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, std::filesystem::canonical(directory_ + "/sub").string() + "\n");
  EXPECT_THAT(result.err, HasSubstr("submitted train-"));
}

TEST_F(ScriptsTest, PsSaysWhereItStops) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Run({"submit", "--hold", "--", "true"}).code, 0);
  EXPECT_THAT(Run({"ps", "-a", "--limit", "2"}).err, HasSubstr("the first 2: --limit N"));
  EXPECT_EQ(Run({"ps", "-a", "--limit", "3"}).err, "");
}

TEST_F(ScriptsTest, PsListsTheJobsOfAUserAndOfAState) {
  ASSERT_NO_FATAL_FAILURE(DevUp(1));
  const auto submit = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "submit");
    const Result result = Run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto ended = [&](const std::string& program, int code) {
    const std::string id = submit({"--", program});
    EXPECT_EQ(Run({"wait", id.substr(0, id.find('\n'))}).code, code);
    return id;
  };
  const std::string succeeded = ended("true", 0);
  const std::string failed = ended("false", 1);
  const std::string fifo = Fifo();
  const std::string running = submit({"--", "sh", "-c", "echo $$ > " + fifo + "; exec sleep 600"});
  EXPECT_GT(ReadPid(fifo), 0);
  const std::string queued = submit({"--hold", "--", "true"});

  // Ids, a line each.
  const auto ids = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"ps", "--quiet"});
    const Result result = Run(flags);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(ids({}), running + queued);
  EXPECT_EQ(ids({"--all"}), running + queued + failed + succeeded);
  EXPECT_EQ(ids({"--state", "queued"}), queued);
  EXPECT_EQ(ids({"--state", "Succeeded", "--state", "FAILED"}), failed + succeeded);
  // The rank runs before the coordinator hears of it.
  EXPECT_TRUE(testing::Eventually([&] { return ids({"--state", "running"}) == running; }));

  const Result nonsense = Run({"ps", "--state", "nonsense"});
  EXPECT_EQ(nonsense.code, 2);
  EXPECT_EQ(nonsense.out, "");
  EXPECT_THAT(nonsense.err, HasSubstr("--state: 'nonsense' is no state of a job: write one of "
                                      "queued, admitted, rendezvous, running, "));
  EXPECT_THAT(nonsense.err, HasSubstr(", cancelled\n"));

  const json jobs = json::parse(Run({"ps", "-o", "json"}).out).at("jobs");
  const std::string me = jobs.at(0).at("submitter");
  EXPECT_EQ(ids({"--user", me}), running + queued);
  EXPECT_EQ(ids({"--user", me, "--state", "queued"}), queued);
  const Result nobody = Run({"ps", "--all", "--user", me + "-and-nobody"});
  EXPECT_EQ(nobody.code, 0);
  EXPECT_EQ(nobody.out, "");
  EXPECT_THAT(nobody.err, HasSubstr("no such job"));
  EXPECT_THAT(Run({"ps"}).out,
              ::testing::ContainsRegex("^JOB +USER +STATE .*\n[^ ]+ +" + me + " +RUNNING "));
}

TEST_F(ScriptsTest, RunPassesUserSignalsOnAndReadsTorchrunsVariables) {
  const pid_t run = StartProgram({Meshrun(), "run", "--", "sh", "-c",
                                  "trap 'echo rank $RANK got it; exit 0' USR1; echo $$ > " +
                                      directory_ + "/ready.$RANK; while :; do sleep 0.05; done"},
                                 {{"PET_NPROC_PER_NODE", "2"}});
  // Both have their handlers.
  for (const char* rank : {"0", "1"}) testing::AwaitPid(directory_ + "/ready." + rank);
  ::kill(run, SIGUSR1);
  const Result result = Wait(run);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0: rank 0 got it\n"));
  EXPECT_THAT(result.out, HasSubstr("1: rank 1 got it\n"));
}

TEST_F(ScriptsTest, CompletionIsForThreeShellsAndNamesShippedJobs) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Result script = Run({"completion", shell});
    EXPECT_EQ(script.code, 0);
    EXPECT_THAT(script.out, HasSubstr("completion shipped-jobs"));
    EXPECT_THAT(script.out, HasSubstr("undrain"));
    // Read by the shell itself, where there is one.
    std::ofstream(directory_ + "/script") << script.out;
    const Result read =
        Wait(StartProgram({"/bin/sh", "-c", "command -v $0 >/dev/null || exit 0; $0 -n $1", shell,
                           directory_ + "/script"}));
    EXPECT_EQ(read.code, 0) << shell << read.err;
  }
  EXPECT_EQ(Run({"completion", "tcsh"}).code, 2);
  EXPECT_EQ(Run({"completion", "shipped-jobs"}).code, 0);
  const Result bash = Wait(StartProgram(
      {"/bin/bash", "-c",
       "source <($0 completion bash); COMP_WORDS=(meshrun dev u); COMP_CWORD=2; _meshrun; echo "
       "${COMPREPLY[@]}; COMP_WORDS=(meshrun run --nproc-per); _meshrun; echo ${COMPREPLY[@]}; "
       "COMP_WORDS=(meshrun run --recovery re); COMP_CWORD=3; _meshrun; echo ${COMPREPLY[@]}",
       Meshrun()}));
  EXPECT_EQ(bash.out, "up\n--nproc-per-node\nrespawn\n") << bash.err;
}

}  // namespace
}  // namespace meshrun::client
