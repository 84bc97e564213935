#include "client/cli/completion_scripts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "client/cli/arguments.h"

namespace meshrun::client {
namespace {

// One command, by its path: "", "run", "dev up".
struct CommandWords {
  std::string path;
  std::vector<std::string> commands;
  std::vector<const CLI::Option*> flags;
  // Its words are ids of jobs.
  bool takes_jobs = false;
};

void CollectWords(const CLI::App& app, const std::string& path, std::vector<CommandWords>* out) {
  CommandWords words;
  words.path = path;
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subcommands) {
    if (!sub->get_group().empty()) words.commands.push_back(sub->get_name());
  }
  for (const CLI::Option* option : app.get_options()) {
    words.takes_jobs |= option->get_positional() && option->get_name(true).starts_with("JOB");
    if (!option->get_group().empty() && !option->get_positional()) words.flags.push_back(option);
  }
  out->push_back(std::move(words));
  for (const CLI::App* sub : subcommands) {
    CollectWords(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), out);
  }
}

std::vector<std::string> LongNames(const CommandWords& words) {
  std::vector<std::string> names;
  for (const CLI::Option* option : words.flags) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The words that a flag takes, as its type in --help shows them: "auto|respawn". Words in capitals
// stand for something else.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  std::vector<std::string> out;
  if (!TakesValue(option)) return out;
  const std::string type = option.get_type_name();
  for (size_t from = 0; from <= type.size();) {
    const size_t bar = std::min(type.find('|', from), type.size());
    const std::string word = type.substr(from, bar - from);
    const bool is_word = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || c == '-';
    });
    if (is_word) out.push_back(word);
    from = bar + 1;
  }
  return out;
}

// "-o | --output" and the words that it takes, for a case of a shell's script.
std::map<std::string, std::set<std::string>> ChoicesOf(const std::vector<CommandWords>& all) {
  std::map<std::string, std::set<std::string>> out;
  for (const CommandWords& words : all) {
    for (const CLI::Option* option : words.flags) {
      const std::vector<std::string> choices = ChoicesOf(*option);
      if (choices.empty()) continue;
      std::vector<std::string> names;
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      out[fmt::format("{}", fmt::join(names, " | "))].insert(choices.begin(), choices.end());
    }
  }
  return out;
}

// "run|submit|dev|dev up": what a script finds a command in.
std::string Paths(const std::vector<CommandWords>& all) {
  std::vector<std::string> paths;
  for (const CommandWords& words : all) {
    if (!words.path.empty()) paths.push_back(words.path);
  }
  return fmt::format("{}", fmt::join(paths, "|"));
}

std::string Bash(const std::vector<CommandWords>& all) {
  std::string cases;
  for (const CommandWords& words : all) {
    cases += fmt::format("    \"{}\") commands=\"{}\" flags=\"{}\" jobs={} ;;\n", words.path,
                         fmt::join(words.commands, " "), fmt::join(LongNames(words), " "),
                         words.takes_jobs ? 1 : 0);
  }
  std::string choices;
  for (const auto& [names, words] : ChoicesOf(all)) {
    choices += fmt::format("    {}) COMPREPLY=($(compgen -W \"{}\" -- \"$cur\")); return ;;\n",
                           names, fmt::join(words, " "));
  }
  return fmt::format(
      R"bash(# bash completion of meshrun; for this shell: source <(meshrun completion bash)
_meshrun() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path="" commands="" flags="" jobs=0 i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "|{0}|" in
      *"|${{path:+$path }}${{COMP_WORDS[i]}}|"*) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;
      *) break ;;
    esac
  done
  case "$prev" in
    -f | --file | --working-dir) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --procs-per-node | --nproc-per-node | --nproc) COMPREPLY=($(compgen -W "1 2 4 8 gpu cpu" -- "$cur")); return ;;
    --export) COMPREPLY=($(compgen -W "ALL NONE" -- "$cur")); return ;;
    --job) COMPREPLY=($(compgen -W "$(meshrun completion shipped-jobs 2>/dev/null)" -- "$cur")); return ;;
{2}  esac
  case "$path" in
{1}  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  elif [[ -n $commands ]]; then
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
  elif ((jobs)); then
    COMPREPLY=($(compgen -W "$(meshrun ps --all --quiet 2>/dev/null)" -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}}
complete -o filenames -o bashdefault -F _meshrun meshrun
)bash",
      Paths(all), cases, choices);
}

std::string Zsh(const std::vector<CommandWords>& all) {
  std::string cases;
  for (const CommandWords& words : all) {
    cases += fmt::format("    \"{}\") commands=({}) flags=({}) jobs={} ;;\n", words.path,
                         fmt::join(words.commands, " "), fmt::join(LongNames(words), " "),
                         words.takes_jobs ? 1 : 0);
  }
  std::string choices;
  for (const auto& [names, words] : ChoicesOf(all)) {
    choices += fmt::format("    {}) compadd -- {}; return ;;\n", names, fmt::join(words, " "));
  }
  return fmt::format(
      R"zsh(#compdef meshrun
# zsh completion of meshrun; for this shell: source <(meshrun completion zsh)
_meshrun() {{
  local place="" jobs=0 i
  local -a commands flags
  for ((i = 2; i < CURRENT; i++)); do
    case "|{0}|" in
      *"|${{place:+$place }}${{words[i]}}|"*) place="${{place:+$place }}${{words[i]}}" ;;
      *) break ;;
    esac
  done
  case "${{words[CURRENT-1]}}" in
    -f | --file | --working-dir) _files; return ;;
    --procs-per-node | --nproc-per-node | --nproc) compadd -- 1 2 4 8 gpu cpu; return ;;
    --export) compadd -- ALL NONE; return ;;
    --job) compadd -- ${{(f)"$(meshrun completion shipped-jobs 2>/dev/null)"}}; return ;;
{2}  esac
  case "$place" in
{1}  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then
    compadd -- $flags
  elif (( $#commands )); then
    compadd -- $commands
  elif ((jobs)); then
    compadd -- ${{(f)"$(meshrun ps --all --quiet 2>/dev/null)"}}
  else
    _files
  fi
}}
compdef _meshrun meshrun
)zsh",
      Paths(all), cases, choices);
}

// In single quotes.
std::string FishQuoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string FishValues(const CLI::Option& option) {
  const std::string name = MainName(option);
  if (!TakesValue(option)) return "";
  if (name == "--job") return " -x -a '(meshrun completion shipped-jobs 2>/dev/null)'";
  if (name == "--export") return " -x -a 'ALL NONE'";
  if (name == "--procs-per-node") return " -x -a '1 2 4 8 gpu cpu'";
  if (name == "--file" || name == "--working-dir") return " -r -F";
  const std::vector<std::string> choices = ChoicesOf(option);
  if (!choices.empty()) return fmt::format(" -x -a '{}'", fmt::join(choices, " "));
  return " -x";
}

std::string Fish(const std::vector<CommandWords>& all) {
  std::string paths;
  std::string lines;
  for (const CommandWords& words : all) {
    if (!words.path.empty()) paths += " " + FishQuoted(words.path);
    const std::string here =
        fmt::format("complete -c meshrun -n {}", FishQuoted("__meshrun_at '" + words.path + "'"));
    if (!words.commands.empty()) {
      lines += fmt::format("{} -f -a '{}'\n", here, fmt::join(words.commands, " "));
    }
    if (words.takes_jobs) {
      lines += here + " -f -a '(meshrun ps --all --quiet 2>/dev/null)'\n";
    }
    for (const CLI::Option* option : words.flags) {
      const std::string values = FishValues(*option);
      const std::string about = FishQuoted(option->get_description());
      for (const std::string& name : option->get_lnames()) {
        lines += fmt::format("{} -l {}{} -d {}\n", here, name, values, about);
      }
      for (const std::string& name : option->get_snames()) {
        lines += fmt::format("{} -s {}{} -d {}\n", here, name, values, about);
      }
    }
  }
  return fmt::format(
      R"fish(# fish completion of meshrun; for this shell: meshrun completion fish | source
function __meshrun_at
  set -l place
  for word in (commandline -opc)[2..]
    if contains -- (string join ' ' $place $word){0}
      set -a place $word
    else
      break
    end
  end
  test (string join ' ' $place)x = "$argv[1]x"
end
{1})fish",
      paths, lines);
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& root, const std::string& shell) {
  std::vector<CommandWords> all;
  CollectWords(root, "", &all);
  if (shell == "bash") return Bash(all);
  if (shell == "zsh") return Zsh(all);
  if (shell == "fish") return Fish(all);
  return absl::InvalidArgumentError(
      fmt::format("there is no completion for '{}': write bash, zsh or fish", shell));
}

}  // namespace meshrun::client
