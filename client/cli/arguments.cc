#include "client/cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/suggest.h"

namespace meshrun::client {
namespace {

// torchrun takes --nproc_per_node for --nproc-per-node.
std::string WithDashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const CLI::Option* Find(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name);
}

absl::Status UnknownFlag(const CLI::App& app, const std::string& typed, bool rest_is_command) {
  std::string text = fmt::format("there is no flag {}{}", typed, DidYouMean(typed, FlagNames(app)));
  if (rest_is_command) text += " (flags of your own program come after it)";
  return absl::InvalidArgumentError(text);
}

absl::Status NoValue(const CLI::Option& option) {
  return absl::InvalidArgumentError(
      fmt::format("{} needs a value: {}={}", MainName(option), MainName(option),
                  option.get_type_name().empty() ? "VALUE" : option.get_type_name()));
}

}  // namespace

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::string MainName(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return option.get_snames().empty() ? option.get_name() : "-" + option.get_snames().front();
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

absl::StatusOr<Arguments> SplitArguments(const CLI::App& app, const std::vector<std::string>& words,
                                         bool rest_is_command) {
  Arguments out;
  size_t i = 0;
  // Takes the value from behind the flag or from the next word.
  const auto add = [&](const CLI::Option& option, std::string value,
                       bool attached) -> absl::Status {
    if (!TakesValue(option)) {
      if (attached) {
        return absl::InvalidArgumentError(
            fmt::format("{} takes no value, and got '{}'", MainName(option), value));
      }
      out.flags.push_back(MainName(option));
      return absl::OkStatus();
    }
    if (!attached) {
      if (i + 1 >= words.size() || words[i + 1] == "--") return NoValue(option);
      value = words[++i];
    }
    if (value.empty()) return NoValue(option);
    out.flags.push_back(MainName(option) + "=" + value);
    return absl::OkStatus();
  };
  for (; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      out.rest.insert(out.rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                      words.end());
      break;
    }
    if (word == "-h" || word == "--help") {
      out.help = true;
      return out;
    }
    if (word.size() < 2 || word[0] != '-') {
      if (rest_is_command) {
        out.rest.insert(out.rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i),
                        words.end());
        break;
      }
      out.rest.push_back(word);
      continue;
    }
    absl::Status status;
    if (word[1] == '-') {
      const size_t equals = word.find('=');
      const std::string name = WithDashes(word.substr(0, equals));
      const CLI::Option* option = Find(app, name);
      if (option == nullptr) return UnknownFlag(app, word.substr(0, equals), rest_is_command);
      const bool attached = equals != std::string::npos;
      status = add(*option, attached ? word.substr(equals + 1) : "", attached);
    } else {
      for (size_t at = 1; at < word.size() && status.ok(); ++at) {
        const CLI::Option* option = Find(app, fmt::format("-{}", word[at]));
        // "-nproc" is torchrun's "--nproc" with a dash too few.
        if (option == nullptr) return UnknownFlag(app, word, rest_is_command);
        if (!TakesValue(*option)) {
          status = add(*option, "", false);
          continue;
        }
        std::string value = word.substr(at + 1);
        if (value.starts_with('=')) value.erase(0, 1);
        status = add(*option, value, at + 1 < word.size());
        break;
      }
    }
    if (!status.ok()) return status;
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> FlagsFromEnvironment(
    const CLI::App& app, const std::vector<std::string>& given,
    const std::function<std::optional<std::string>(const std::string&)>& variable) {
  constexpr std::string_view kNames[] = {"nnodes",
                                         "nproc-per-node",
                                         "rdzv-backend",
                                         "rdzv-endpoint",
                                         "rdzv-id",
                                         "rdzv-conf",
                                         "standalone",
                                         "max-restarts",
                                         "monitor-interval",
                                         "start-method",
                                         "role",
                                         "module",
                                         "no-python",
                                         "run-path",
                                         "log-dir",
                                         "redirects",
                                         "tee",
                                         "node-rank",
                                         "local-ranks-filter",
                                         "master-addr",
                                         "master-port",
                                         "local-addr",
                                         "event-log-handler",
                                         "signals-to-handle",
                                         "shutdown-timeout",
                                         "virtual-local-rank",
                                         "log-line-prefix-template"};
  std::vector<std::string> out;
  for (const std::string_view name : kNames) {
    std::string pet = fmt::format("PET_{}", name);
    std::transform(pet.begin(), pet.end(), pet.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    const auto value = variable(pet);
    const CLI::Option* option = Find(app, fmt::format("--{}", name));
    if (!value || value->empty() || option == nullptr) continue;
    const std::string flag = MainName(*option);
    const bool is_given = std::any_of(given.begin(), given.end(), [&](const std::string& word) {
      return word == flag || word.starts_with(flag + "=");
    });
    if (is_given) continue;
    if (TakesValue(*option)) {
      out.push_back(flag + "=" + *value);
    } else if (value->find_first_not_of("0123456789") != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{}={}: write 1 for {}, or 0", pet, *value, flag));
    } else if (value->find_first_not_of('0') != std::string::npos) {
      out.push_back(flag);
    }
  }
  return out;
}

absl::StatusOr<int> ParseWithin(std::string_view flag, const std::string& text, int least,
                                int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most)
    return value;
  return absl::InvalidArgumentError(
      fmt::format("{} {}: write a whole number from {} to {}", flag, text, least, most));
}

}  // namespace meshrun::client
