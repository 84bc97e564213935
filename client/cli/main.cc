// The meshrun program: finds the command, parses its flags, and returns its exit code to the shell.
#include <fmt/format.h>
#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>

#include "client/cli/arguments.h"
#include "client/cli/context.h"
#include "client/cli/help.h"
#include "client/cli/output_stream.h"
#include "core/exit_codes.h"
#include "core/os/process.h"
#include "core/suggest.h"

namespace meshrun::client {
namespace {

std::vector<CLI::App*> Subcommands(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

// "meshrun dev up", for sentences.
std::string FullName(const CLI::App* app) {
  std::string name = app->get_name();
  for (const CLI::App* p = app->get_parent(); p != nullptr; p = p->get_parent())
    name.insert(0, p->get_name() + " ");
  return name;
}

std::string HelpOf(CLI::App* app) {
  const std::string name = FullName(app);
  return app->get_formatter()->make_help(app, name, CLI::AppFormatMode::Normal);
}

int Usage(const CLI::App* app, const std::string& text) {
  Say(fmt::format("{}; see {} --help", text, FullName(app)));
  return kExitUsage;
}

int UnknownCommand(CLI::App* app, const std::string& typed) {
  std::vector<std::string> names;
  for (const CLI::App* sub : Subcommands(*app)) names.push_back(sub->get_name());
  const std::string nearest = DidYouMean(typed, names);
  if (nearest.empty() && app->get_parent() == nullptr &&
      (typed.find('/') != std::string::npos || typed.ends_with(".py"))) {
    return Usage(
        app, fmt::format(
                 "'{}' is not a command of meshrun: to run that program write 'meshrun run -- {}'",
                 typed, typed));
  }
  return Usage(app, fmt::format("there is no command '{}'{}", typed, nearest));
}

int Dispatch(CLI::App& root, const Commands& commands, std::vector<std::string> words) {
  if (!words.empty() && (words[0] == "--version" || words[0] == "-V")) words[0] = "version";
  // "meshrun help run" is "meshrun run --help".
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  CLI::App* app = &root;
  size_t used = 0;
  while (!Subcommands(*app).empty()) {
    if (used == words.size()) {
      fmt::print(stderr, "{}", HelpOf(app));
      return kExitUsage;
    }
    const std::string& word = words[used];
    if (word == "-h" || word == "--help") {
      fmt::print("{}", HelpOf(app));
      return kExitOk;
    }
    const auto subs = Subcommands(*app);
    const auto next = std::find_if(subs.begin(), subs.end(),
                                   [&](const CLI::App* s) { return s->get_name() == word; });
    if (next == subs.end()) {
      if (word[0] == '-')
        return Usage(app, fmt::format("there is no flag {} before the command", word));
      return UnknownCommand(app, word);
    }
    app = *next;
    ++used;
  }
  const auto command = std::find_if(commands.begin(), commands.end(),
                                    [&](const Command& c) { return c.app == app; });
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(used));
  auto split = SplitArguments(*app, words, command->rest != nullptr);
  if (!split.ok()) return Usage(app, std::string(split.status().message()));
  if (split->help) {
    fmt::print("{}", HelpOf(app));
    return kExitOk;
  }
  std::vector<std::string> parsed = split->flags;
  if (command->reads_pet) {
    const auto from_environment = FlagsFromEnvironment(
        *app, parsed, [](const std::string& name) -> std::optional<std::string> {
          const char* const value = std::getenv(name.c_str());
          return value == nullptr ? std::nullopt : std::optional<std::string>(value);
        });
    if (!from_environment.ok()) return Usage(app, std::string(from_environment.status().message()));
    parsed.insert(parsed.end(), from_environment->begin(), from_environment->end());
  }
  if (command->rest != nullptr) {
    *command->rest = split->rest;
  } else if (!split->rest.empty()) {
    parsed.push_back("--");
    parsed.insert(parsed.end(), split->rest.begin(), split->rest.end());
  }
  // Its name, before parsing forgets its parents.
  const std::string name = FullName(app);
  try {
    // CLI11 takes them from the end.
    std::reverse(parsed.begin(), parsed.end());
    app->parse(parsed);
  } catch (const CLI::ExtrasError&) {
    Say(fmt::format("there is no place for '{}'; see {} --help", split->rest.back(), name));
    return kExitUsage;
  } catch (const CLI::ParseError& e) {
    Say(fmt::format("{}; see {} --help", e.what(), name));
    return kExitUsage;
  }
  return command->run();
}

int Main(int argc, char** argv) {
  // What fails is said by us, in one sentence. The variable would reach the ranks.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) ::gpr_set_log_function([](gpr_log_func_args*) {});
  CLI::App root("Distributed training of scientific networks, on one host or many", "meshrun");
  FlagSet flags(root);
  UseHelpFormat(flags);
  root.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  root.footer(
      "  meshrun run --nproc 4 -- ./train           on this host, like torchrun --standalone\n"
      "  meshrun submit --nodes 2 --follow train.py on a cluster\n"
      "  meshrun dev up --workers 2                 a cluster on this host, to try that\n"
      "\n"
      "meshrun COMMAND --help tells more, with examples.");
  Commands commands;
  AddRun(flags, &commands);
  AddSubmit(flags, &commands);
  AddWait(flags, &commands);
  AddCancel(flags, &commands);
  AddSignal(flags, &commands);
  AddLeave(flags, &commands);
  AddQueue(flags, &commands);
  AddPs(flags, &commands);
  AddTop(flags, &commands);
  AddPage(flags, &commands);
  AddDescribe(flags, &commands);
  AddWhy(flags, &commands);
  AddMetrics(flags, &commands);
  AddStack(flags, &commands);
  AddTrace(flags, &commands);
  AddEvents(flags, &commands);
  AddLogs(flags, &commands);
  AddLimits(flags, &commands);
  AddUsage(flags, &commands);
  AddAudit(flags, &commands);
  AddCheckpoint(flags, &commands);
  AddNodes(flags, &commands);
  AddNode(flags, &commands);
  AddBackup(flags, &commands);
  AddDev(flags, &commands);
  AddCa(flags, &commands);
  AddDoctor(flags, &commands);
  AddVerify(flags, &commands);
  AddCompletion(flags, &commands);
  AddVersion(flags, &commands);
  int code = kExitOk;
  int error = 0;
  try {
    code = Dispatch(root, commands, std::vector<std::string>(argv + 1, argv + argc));
    error = FlushOutput();
  } catch (const std::system_error& failed_print) {
    // What fmt::print throws.
    error = failed_print.code().value();
  }
  if (error == 0) return code;
  if (error == EPIPE) return kExitSignalBase + SIGPIPE;
  Say(fmt::format("standard output cannot be written: {}", std::strerror(error)));
  return code == kExitOk ? kExitOutputLost : code;
}

}  // namespace
}  // namespace meshrun::client

int main(int argc, char** argv) {
  meshrun::os::OpenMissingStandardStreams(meshrun::os::MissingOutput::kRefuseWrites, argv);
  return meshrun::client::Main(argc, argv);
}
