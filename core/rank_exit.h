// How a rank ended, in words: the same ones in the coordinator's failures, in what its peers are
// told and in every log. Programs that show a rank's end print what the coordinator says. Pure.
#pragma once

#include <string>
#include <string_view>

#include "meshrun/v1/common.pb.h"

namespace meshrun {

// True for exit code 0.
bool ExitedCleanly(const v1::RankExit& exit);

// "killed by signal 9 (SIGKILL)", "ended with exit code 3".
std::string DescribeEnd(const v1::RankExit& exit);

// Sentences with the node, where `node_name` is not empty, and the first line of the rank's error
// file: "rank 1 on node-a was killed by signal 9 (SIGKILL)", "it ended with exit code 3 on node-a:
// ValueError: no data".
std::string RankEndSentence(const v1::RankExit& exit, std::string_view node_name);
std::string PeerEndSentence(const v1::RankExit& exit, std::string_view node_name);

}  // namespace meshrun
