#include "client/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "client/cli/completion_scripts.h"
#include "client/cli/help.h"
#include "client/cli/job_flags.h"

namespace meshrun::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ArgumentsTest : public ::testing::Test {
 protected:
  ArgumentsTest() : app_("Runs a job", "run") {
    FlagSet flags(app_);
    AddJobFlags(flags, &values_);
    flags.Text("-f,--file", &file_, "FILE", "The file");
    flags.Switch("--follow", &follow_, "Follow");
  }
  Arguments Split(const std::vector<std::string>& words, bool rest_is_command = true) {
    const auto split = SplitArguments(app_, words, rest_is_command);
    EXPECT_TRUE(split.ok()) << split.status();
    return split.value_or(Arguments());
  }
  std::string ErrorOf(const std::vector<std::string>& words) {
    const auto split = SplitArguments(app_, words, true);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(split.status().message());
  }

  CLI::App app_;
  JobFlags values_;
  std::string file_;
  bool follow_ = false;
};

TEST_F(ArgumentsTest, TheFirstWordThatIsNoFlagBeginsTheCommand) {
  const Arguments split = Split({"--nodes", "4", "./train", "--nodes", "7", "--", "-x"});
  EXPECT_THAT(split.flags, ElementsAre("--nodes=4"));
  EXPECT_THAT(split.rest, ElementsAre("./train", "--nodes", "7", "--", "-x"));
}

TEST_F(ArgumentsTest, TwoDashesBeginTheCommandToo) {
  const Arguments split = Split({"--follow", "--", "--odd-program", "-h"});
  EXPECT_THAT(split.flags, ElementsAre("--follow"));
  EXPECT_THAT(split.rest, ElementsAre("--odd-program", "-h"));
  EXPECT_FALSE(split.help);
}

TEST_F(ArgumentsTest, TorchrunsSpellingsAreOurs) {
  for (const auto& words : std::vector<std::vector<std::string>>{{"--nproc_per_node=2"},
                                                                 {"--nproc_per_node", "2"},
                                                                 {"--nproc-per-node", "2"},
                                                                 {"--nproc", "2"},
                                                                 {"--procs-per-node", "2"}}) {
    EXPECT_THAT(Split(words).flags, ElementsAre("--procs-per-node=2"));
  }
  EXPECT_THAT(Split({"--standalone", "--nnodes=1:4", "--no_python", "a.py"}).flags,
              ElementsAre("--standalone", "--nodes=1:4", "--no-python"));
}

TEST_F(ArgumentsTest, AModuleIsAFlagAsInTorchrun) {
  const Arguments split = Split({"-m", "--nproc", "2", "package.train", "-m", "x"});
  EXPECT_THAT(split.flags, ElementsAre("--module", "--procs-per-node=2"));
  EXPECT_THAT(split.rest, ElementsAre("package.train", "-m", "x"));
}

TEST_F(ArgumentsTest, ShortFlagsTakeTheirValueFromAnywhere) {
  EXPECT_THAT(Split({"-f", "job.yaml"}).flags, ElementsAre("--file=job.yaml"));
  EXPECT_THAT(Split({"-fjob.yaml"}).flags, ElementsAre("--file=job.yaml"));
  EXPECT_THAT(Split({"-mf", "job.yaml"}).flags, ElementsAre("--module", "--file=job.yaml"));
}

TEST_F(ArgumentsTest, ValuesMayLookLikeFlagsAndHoldEqualSigns) {
  EXPECT_THAT(Split({"--priority", "-5", "--env", "A=b=c"}).flags,
              ElementsAre("--priority=-5", "--env=A=b=c"));
}

TEST_F(ArgumentsTest, AMistypedFlagNamesTheNearest) {
  EXPECT_THAT(ErrorOf({"--nproc-per-nod", "2"}), HasSubstr("did you mean '--nproc-per-node'"));
  EXPECT_THAT(ErrorOf({"--kill_grce=5s"}), HasSubstr("did you mean '--kill-grace'"));
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("there is no flag -x"));
}

TEST_F(ArgumentsTest, AMissingOrSuperfluousValueIsSaid) {
  EXPECT_THAT(ErrorOf({"--nodes"}), HasSubstr("--nodes needs a value: --nodes=N|MIN:MAX"));
  EXPECT_THAT(ErrorOf({"--nodes", "--", "x"}), HasSubstr("--nodes needs a value"));
  EXPECT_THAT(ErrorOf({"--nodes="}), HasSubstr("--nodes needs a value"));
  EXPECT_THAT(ErrorOf({"--follow=yes"}), HasSubstr("takes no value"));
}

TEST_F(ArgumentsTest, HelpIsSeenBeforeTheCommandOnly) {
  EXPECT_TRUE(Split({"--nodes", "2", "-h"}).help);
  EXPECT_FALSE(Split({"prog", "-h"}).help);
}

TEST_F(ArgumentsTest, WordsAreCollectedWhereThereIsNoCommand) {
  const Arguments split = Split({"job-1", "--follow", "job-2"}, /*rest_is_command=*/false);
  EXPECT_THAT(split.rest, ElementsAre("job-1", "job-2"));
  EXPECT_THAT(split.flags, ElementsAre("--follow"));
}

TEST_F(ArgumentsTest, RepeatedFlagsReachCli11) {
  Arguments split =
      Split({"--env", "A=1", "--env", "B=2", "--mesh", "dp=-1,tp=2", "--hold", "--hold", "x"});
  std::reverse(split.flags.begin(), split.flags.end());
  app_.parse(split.flags);
  EXPECT_THAT(values_.fields["--env"], ElementsAre("A=1", "B=2"));
  EXPECT_THAT(values_.fields["--mesh"], ElementsAre("dp=-1,tp=2"));
  EXPECT_TRUE(values_.Given("--hold"));
  EXPECT_FALSE(values_.Given("--nodes"));
}

TEST_F(ArgumentsTest, HelpShowsExamplesAndOtherSpellingsButNoHiddenFlags) {
  FlagSet flags(app_);
  UseHelpFormat(flags);
  flags.Examples("  meshrun run --nproc 4 -- ./train");
  const std::string help = app_.help();
  EXPECT_THAT(help, HasSubstr("Examples:\n  meshrun run --nproc 4 -- ./train"));
  EXPECT_THAT(help, HasSubstr("--procs-per-node N|gpu|cpu"));
  EXPECT_THAT(help, HasSubstr("(also --nproc-per-node, --nproc)"));
  EXPECT_THAT(help, Not(HasSubstr("--standalone")));
}

TEST(CompletionTest, KnowsEveryCommandAndFlag) {
  CLI::App root("", "meshrun");
  std::string job;
  bool follow;
  FlagSet commands(root);
  FlagSet logs = commands.Command("logs", "Logs");
  logs.Argument("JOB", &job, true, "Job");
  logs.Switch("-f,--follow", &follow, "Follow");
  commands.Command("dev", "Dev").Command("up", "Up");
  const std::string script = CompletionScript(root, "bash").value_or("");
  EXPECT_THAT(script, HasSubstr("\"\") commands=\"logs dev\""));
  EXPECT_THAT(script, HasSubstr("\"logs\") commands=\"\" flags=\"--help --follow\" jobs=1"));
  EXPECT_THAT(script, HasSubstr("\"dev\") commands=\"up\""));
  EXPECT_THAT(script, HasSubstr("\"dev up\") commands=\"\""));
}

TEST_F(ArgumentsTest, TorchrunsVariablesStandForFlagsThatAreNotGiven) {
  const std::map<std::string, std::string> variables = {
      {"PET_NNODES", "2"},    {"PET_NPROC_PER_NODE", "4"}, {"PET_MODULE", "1"},
      {"PET_NO_PYTHON", "0"}, {"PET_MAX_RESTARTS", ""},    {"PET_FOLLOW", "1"}};
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const auto all = FlagsFromEnvironment(app_, {}, get);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(*all, ElementsAre("--nodes=2", "--procs-per-node=4", "--module"));
  EXPECT_THAT(*FlagsFromEnvironment(app_, {"--nodes=1", "--module"}, get),
              ElementsAre("--procs-per-node=4"));
  const auto wrong = [](const std::string& name) -> std::optional<std::string> {
    return name == "PET_STANDALONE" ? std::optional<std::string>("yes") : std::nullopt;
  };
  EXPECT_THAT(std::string(FlagsFromEnvironment(app_, {}, wrong).status().message()),
              HasSubstr("PET_STANDALONE=yes: write 1 for --standalone, or 0"));
}

}  // namespace
}  // namespace meshrun::client
