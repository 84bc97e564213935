#include "client/cli/flag_set.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "client/cli/arguments.h"

namespace meshrun::client {
namespace {

std::string Joined(const std::vector<std::string>& words, const std::string& between,
                   const std::string& before_last) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == words.size() ? before_last : between) + words[i];
  }
  return out;
}

// In the words of every other flag; CLI11's own have neither the dashes nor what to write.
[[noreturn]] void Refuse(const CLI::Option& option, const std::string& text,
                         const std::string& write) {
  throw CLI::ValidationError(fmt::format("{} {}: write {}", MainName(option), text, write));
}

}  // namespace

FlagSet FlagSet::Command(const std::string& name, const std::string& description) {
  return FlagSet(*app_->add_subcommand(name, description));
}

void FlagSet::ListUnder(const std::string& title) { app_->group(title); }
void FlagSet::Examples(const std::string& text) { app_->footer(text); }

void FlagSet::Text(const std::string& names, std::string* value, const std::string& type,
                   const std::string& help) {
  app_->add_option(names, *value, help)->type_name(type)->group(section_);
}

void FlagSet::Texts(const std::string& names, std::vector<std::string>* values,
                    const std::string& type, const std::string& help) {
  app_->add_option(names, *values, help)
      ->type_name(type)
      ->group(section_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void FlagSet::Number(const std::string& names, uint32_t* value, const std::string& help,
                     uint32_t least, uint32_t most) {
  CLI::Option* const option =
      app_->add_option(names, *value, help)->type_name("N")->group(section_);
  option->check([option, least, most](const std::string& text) -> std::string {
    uint32_t number = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    if (error == std::errc{} && end == last && number >= least && number <= most) return "";
    Refuse(*option, text,
           most == UINT32_MAX ? fmt::format("a whole number from {} up", least)
                              : fmt::format("a whole number from {} to {}", least, most));
  });
}

void FlagSet::Choice(const std::string& names, std::string* value,
                     const std::vector<std::string>& choices, const std::string& help) {
  CLI::Option* const option =
      app_->add_option(names, *value, help)->type_name(Joined(choices, "|", "|"))->group(section_);
  option->check([option, choices](const std::string& text) -> std::string {
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return "";
    Refuse(*option, text, Joined(choices, ", ", " or "));
  });
}

void FlagSet::Switch(const std::string& names, bool* value, const std::string& help) {
  app_->add_flag(names, *value, help)->group(section_);
}

void FlagSet::Text(const std::string& names, std::vector<std::string>* value,
                   const std::string& type, const std::string& help) {
  app_->add_option_function<std::string>(
          names, [value](const std::string& text) { *value = {text}; }, help)
      ->type_name(type)
      ->group(section_);
}

void FlagSet::Switch(const std::string& names, std::vector<std::string>* value,
                     const std::string& help) {
  app_->add_flag_callback(
          names, [value] { *value = {"true"}; }, help)
      ->group(section_);
}

void FlagSet::Ignored(const std::string& name, std::vector<std::string>* used) {
  app_->add_option_function<std::string>(
          name, [used, name](const std::string&) { used->push_back(name); })
      ->group("");
}

void FlagSet::Refused(const std::string& name, const std::string& use) {
  app_->add_option_function<std::string>(
          name,
          [name, use](const std::string&) {
            throw CLI::ValidationError(fmt::format("{} is torchrun's alone: {}", name, use));
          })
      ->group("");
}

void FlagSet::TakesCommand() { app_->prefix_command(); }

void FlagSet::Argument(const std::string& name, std::string* value, bool required,
                       const std::string& help) {
  app_->add_option(name, *value, help)->required(required);
}

void FlagSet::Arguments(const std::string& name, std::vector<std::string>* values,
                        const std::string& help) {
  app_->add_option(name, *values, help)
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace meshrun::client
