// "did you mean": the nearest of some words. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshrun {

// The word that differs least from `typed`, if it is near enough to be meant; else empty.
std::string Nearest(std::string_view typed, const std::vector<std::string>& words);

// ": did you mean 'x'?" or nothing.
std::string DidYouMean(std::string_view typed, const std::vector<std::string>& words);

}  // namespace meshrun
