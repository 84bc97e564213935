// The words of a command line, before CLI11 sees them: where the user's own command begins,
// torchrun's underscores, and flags that do not exist. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace meshrun::client {

struct Arguments {
  // "--name=value" or "--name": each flag in its long form.
  std::vector<std::string> flags;
  // Words that are not flags; for a command that runs programs: the program and everything after
  // it.
  std::vector<std::string> rest;
  bool help = false;
};

// `rest_is_command`: the first word that is not a flag begins the user's command, with or without
// "--". INVALID_ARGUMENT: a flag that `app` does not have (with the nearest one), or one without
// its value.
absl::StatusOr<Arguments> SplitArguments(const CLI::App& app, const std::vector<std::string>& words,
                                         bool rest_is_command);

// torchrun's variables: PET_NNODES=2 stands for --nnodes=2 if `given` (flags as in Arguments) has
// no such flag. The variable of a switch is a number, and 0 means off, as in torchrun.
// INVALID_ARGUMENT: the variable of a switch is not a number.
absl::StatusOr<std::vector<std::string>> FlagsFromEnvironment(
    const CLI::App& app, const std::vector<std::string>& given,
    const std::function<std::optional<std::string>(const std::string&)>& variable);

// Every long and short name of the app's flags, with dashes.
std::vector<std::string> FlagNames(const CLI::App& app);
bool TakesValue(const CLI::Option& option);
// "--procs-per-node": the first long name, else the short one.
std::string MainName(const CLI::Option& option);

// A whole number as the value of a flag. INVALID_ARGUMENT: the flag, and both limits.
absl::StatusOr<int> ParseWithin(std::string_view flag, const std::string& text, int least,
                                int most);

}  // namespace meshrun::client
