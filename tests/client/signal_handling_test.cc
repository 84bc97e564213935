#include "client/cli/signal_handling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshrun::client {
namespace {

using ::testing::HasSubstr;

bool IsIn(const SignalHandling& handling, int signal) {
  const sigset_t set = handling.Set();
  return sigismember(&set, signal) == 1;
}

TEST(SignalHandlingTest, OneThatIsIgnoredStaysIgnored) {
  const SignalHandling handling = *HandlingOfRun("");
  EXPECT_TRUE(IsIn(handling, SIGHUP));
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGTSTP}) {
    EXPECT_TRUE(IsIn(handling, signal)) << signal;
    ::signal(signal, SIG_IGN);
    EXPECT_FALSE(IsIn(handling, signal)) << signal;
    ::signal(signal, SIG_DFL);
  }
}

TEST(SignalHandlingTest, NamedSignalsAloneEndTheJob) {
  const SignalHandling handling = *HandlingOfRun("SIGTERM,USR1,15");
  EXPECT_EQ(handling.ending, (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(handling.forwarded, std::vector<int>{SIGUSR2});
  EXPECT_FALSE(IsIn(handling, SIGHUP));
  EXPECT_FALSE(IsIn(handling, SIGINT));
}

TEST(SignalHandlingTest, OnlyRunForwardsAndPauses) {
  EXPECT_TRUE(HandlingOf("")->forwarded.empty());
  EXPECT_FALSE(IsIn(*HandlingOf(""), SIGTSTP));
  EXPECT_TRUE(HandlingOfRun("")->Forwards(SIGUSR1));
}

TEST(SignalHandlingTest, ANodeThatCannotLeaveEndsByWhatWouldMakeItLeave) {
  for (const char* names : {"", "SIGINT", "SIGTERM"}) {
    const SignalHandling leaves = *HandlingOfRun(names, /*leaves=*/true);
    EXPECT_TRUE(leaves.Leaves(SIGTERM) && !leaves.Ends(SIGTERM)) << names;
    EXPECT_TRUE(IsIn(leaves, SIGTERM)) << names;
    const SignalHandling stays = leaves.WithoutLeaving();
    EXPECT_TRUE(stays.Ends(SIGTERM) && !stays.Leaves(SIGTERM)) << names;
    EXPECT_TRUE(stays.Leaves(LeaveSignal()) && !stays.Ends(LeaveSignal())) << names;
    EXPECT_TRUE(stays.Ends(SIGINT) || std::string(names) == "SIGTERM") << names;
  }
  EXPECT_EQ(HandlingOfRun("")->WithoutLeaving().ending, HandlingOfRun("")->ending);
}

TEST(SignalHandlingTest, WhatCannotEndAJobIsRefused) {
  EXPECT_THAT(HandlingOf("SIGTERM,KILL").status().message(),
              HasSubstr("SIGKILL cannot be handled"));
  EXPECT_THAT(HandlingOf("SIGCHLD").status().message(),
              HasSubstr("SIGCHLD does not end a job here"));
  EXPECT_THAT(HandlingOf("SIGTERM,,").status().message(), HasSubstr("--signals-to-handle"));
}

TEST(SignalHandlingTest, RanksGetCtrlCAndTheUsersOwnSignalsFirst) {
  EXPECT_EQ(FirstSignalOfRanks(SIGINT), SIGINT);
  EXPECT_EQ(FirstSignalOfRanks(SIGUSR2), SIGUSR2);
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) EXPECT_EQ(FirstSignalOfRanks(signal), 0);
}

}  // namespace
}  // namespace meshrun::client
