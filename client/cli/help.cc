#include "client/cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "client/cli/arguments.h"

namespace meshrun::client {
namespace {

constexpr size_t kColumn = 32;
constexpr size_t kPage = 100;

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string out = fmt::format("Usage: {}{}\n\n{}\n", name, Usage(app), app->get_description());
    const std::string examples = app->get_footer();
    if (!examples.empty()) out += fmt::format("\nExamples:\n{}\n", examples);
    const auto subcommands = app->get_subcommands([](const CLI::App*) { return true; });
    std::vector<std::string> groups;
    for (const CLI::App* sub : subcommands) Remember(&groups, sub->get_group());
    for (const std::string& group : groups) {
      if (group.empty()) continue;
      out += fmt::format("\n{}:\n", group);
      for (const CLI::App* sub : subcommands) {
        if (sub->get_group() == group)
          out += Row(sub->get_name(), FirstLine(sub->get_description()), 14);
      }
    }
    groups.clear();
    for (const CLI::Option* option : app->get_options()) Remember(&groups, option->get_group());
    // A command's own flags come before the flags that all commands have.
    std::stable_partition(groups.begin(), groups.end(), [](const std::string& g) {
      return g != "Flags" && g != "Coordinator" && g != "Options";
    });
    for (const std::string& group : groups) {
      std::string rows;
      for (const CLI::Option* option : app->get_options()) {
        if (option->get_group() == group && !option->get_positional() &&
            option != app->get_help_ptr())
          rows += OptionRow(*option);
      }
      if (!group.empty() && !rows.empty()) out += fmt::format("\n{}:\n{}", group, rows);
    }
    return out;
  }

 private:
  static void Remember(std::vector<std::string>* groups, const std::string& group) {
    if (std::find(groups->begin(), groups->end(), group) == groups->end()) groups->push_back(group);
  }
  static std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

  // The right column wraps at the width of a page.
  static std::string Row(const std::string& left, const std::string& right, size_t column) {
    std::string out = "  " + left;
    size_t at = out.size();
    if (at + 2 > column) {
      out += '\n';
      at = 0;
    }
    bool first = true;
    for (size_t from = 0; from < right.size();) {
      const size_t end = std::min(right.find(' ', from), right.size());
      if (!first && at + 1 + (end - from) > kPage) {
        out += '\n';
        at = 0;
      }
      const size_t blanks = at < column ? column - at : 1;
      out += std::string(blanks, ' ') + right.substr(from, end - from);
      at += blanks + (end - from);
      from = end + 1;
      first = false;
    }
    return out + "\n";
  }

  static std::string OptionRow(const CLI::Option& option) {
    std::string names;
    for (const std::string& name : option.get_snames())
      names += fmt::format("{}-{}", names.empty() ? "" : ", ", name);
    if (names.empty()) names = "    ";
    const auto& longs = option.get_lnames();
    if (!longs.empty()) names += fmt::format("{}--{}", names == "    " ? "" : ", ", longs.front());
    if (TakesValue(option)) names += " " + option.get_type_name();
    std::string text = option.get_description();
    if (longs.size() > 1) {
      std::vector<std::string> others;
      for (size_t i = 1; i < longs.size(); ++i) others.push_back("--" + longs[i]);
      text += fmt::format(" (also {})", fmt::join(others, ", "));
    }
    return Row(names, text, kColumn);
  }

  static std::string Usage(const CLI::App* app) {
    if (!app->get_subcommands([](const CLI::App*) { return true; }).empty())
      return " COMMAND [flags]";
    std::string out = " [flags]";
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      const std::string name = option->get_name(true);
      out += option->get_required() ? " " + name : fmt::format(" [{}]", name);
    }
    if (app->get_prefix_command()) out += " [--] COMMAND [ARGUMENTS]";
    return out;
  }
};

}  // namespace

void UseHelpFormat(FlagSet& root) { root.app()->formatter(std::make_shared<HelpFormatter>()); }

}  // namespace meshrun::client
