// A TorchScript file for tests: weight x + bias.
#pragma once

#include <string>

namespace meshrun {

// A script of [n, 2] -> [n, 1], with weight (1, 2) and bias 3. `two`: it returns that and its
// double.
// `buffer`: it has one, "seen", which counts training calls.
void write_script(const std::string& path, bool two = false, bool buffer = false);

}  // namespace meshrun
