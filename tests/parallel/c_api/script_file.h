// A TorchScript file for tests: weight x + bias.
#pragma once

#include <string>

namespace meshrun {

// A script of [n, 2] -> [n, 1], with weight (1, 2) and bias 3. `two`: it returns that and its
// double.
// `buffer`: it has one, "seen", which counts training calls.
void write_script(const std::string& path, bool two = false, bool buffer = false);

// A script of [n, 1] -> [n, 1], x w w, whose w of 2 is the weight of "first" and of "second".
void write_tied_script(const std::string& path);

// A script of [n, 1] -> [n, 1], x w with w = 1, and a parameter "unused".
void write_unused_script(const std::string& path);

}  // namespace meshrun
