// Between the values of core/wait_board.h and their messages.
#pragma once

#include "core/wait_board.h"
#include "meshrun/v1/waiting.pb.h"

namespace meshrun {

// A name for the call's group and members, which it has; never 0.
uint64_t GroupId(const v1::WaitCall& call);

v1::WaitReport ToProto(const WaitReport& report);
v1::WaitVerdict ToProto(const WaitVerdict& verdict);
WaitReport FromProto(const v1::WaitReport& report);
WaitVerdict FromProto(const v1::WaitVerdict& verdict);

}  // namespace meshrun
