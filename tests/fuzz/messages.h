// Messages as parsers' inputs, and the coordinator's state machine as a parser of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshrun::fuzz {

std::string WaitReportBytes();
std::string ErrorStatusBytes();
std::string JobSpecBytes();

// Bytes of a StateEvent: any call of a client or a worker, any message of a session. Stepped by a
// state machine on which a job of two nodes runs. Time and the fence are made right, so that what
// comes behind them is reached.
void StepStateMachine(std::string_view bytes);
std::vector<std::string> EventSeeds();

}  // namespace meshrun::fuzz
