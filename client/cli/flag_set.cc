#include "client/cli/flag_set.h"

#include <CLI/CLI.hpp>

namespace meshrun::client {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : "|") + word;
  return out;
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

void FlagSet::Number(const std::string& names, uint32_t* value, const std::string& help) {
  app_->add_option(names, *value, help)->type_name("N")->group(section_);
}

void FlagSet::Choice(const std::string& names, std::string* value,
                     const std::vector<std::string>& choices, const std::string& help) {
  // Without a description of its own, which would be added to the type.
  CLI::Validator one_of = CLI::IsMember(choices);
  one_of.description("");
  app_->add_option(names, *value, help)->check(one_of)->type_name(Joined(choices))->group(section_);
}

void FlagSet::Switch(const std::string& names, bool* value, const std::string& help) {
  app_->add_flag(names, *value, help)->group(section_);
}

void FlagSet::Ignored(const std::string& name, std::vector<std::string>* used) {
  app_->add_option_function<std::string>(
          name, [used, name](const std::string&) { used->push_back(name); })
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
