// What `meshrun stack` shows. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/render/style.h"
#include "meshrun/v1/stack.pb.h"

namespace meshrun::client {

// Ranks in ascending order, each with the place of its main thread and its frames.
std::string DescribeStacks(std::vector<v1::RankStack> stacks, const Style& style);

// `stacks`: an object for each rank with `rank`, and what there is of `place`, `text` and `error`.
std::string StacksJson(std::vector<v1::RankStack> stacks);

}  // namespace meshrun::client
