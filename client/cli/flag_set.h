// Declares a command and its flags. A thin layer over CLI11, which is costly to include. Values are
// written when the command line is parsed; the variables must live until then.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace meshrun::client {

class FlagSet {
 public:
  explicit FlagSet(CLI::App& app) : app_(&app) {}
  CLI::App* app() const { return app_; }

  // A command below this one. The description's first line is shown in its parent's list.
  FlagSet Command(const std::string& name, const std::string& description);
  // Where the parent lists it.
  void ListUnder(const std::string& title);
  // Lines of --help between the description and the flags.
  void Examples(const std::string& text);
  // Heading of the flags declared from here on; empty hides them.
  void Section(const std::string& title) { section_ = title; }

  // `names`: "-f,--file". `type`: what stands for the value in --help, for example FILE.
  void Text(const std::string& names, std::string* value, const std::string& type,
            const std::string& help);
  // May be given several times.
  void Texts(const std::string& names, std::vector<std::string>* values, const std::string& type,
             const std::string& help);
  // A whole number from `least` to `most`.
  void Number(const std::string& names, uint32_t* value, const std::string& help,
              uint32_t least = 1, uint32_t most = UINT32_MAX);
  void Choice(const std::string& names, std::string* value, const std::vector<std::string>& choices,
              const std::string& help);
  void Switch(const std::string& names, bool* value, const std::string& help);
  // As Text and Switch, into a list that holds the one value of a flag that was given: "true" of a
  // switch.
  void Text(const std::string& names, std::vector<std::string>* value, const std::string& type,
            const std::string& help);
  void Switch(const std::string& names, std::vector<std::string>* value, const std::string& help);
  // Accepted without effect; its name is added to *used.
  void Ignored(const std::string& name, std::vector<std::string>* used);
  // Known, and refused with what to use: a flag of torchrun's that has no meaning here.
  void Refused(const std::string& name, const std::string& use);
  // The words after the flags are the user's own command.
  void TakesCommand();
  // Words that are not flags.
  void Argument(const std::string& name, std::string* value, bool required,
                const std::string& help);
  void Arguments(const std::string& name, std::vector<std::string>* values,
                 const std::string& help);

 private:
  CLI::App* app_;
  std::string section_ = "Flags";
};

}  // namespace meshrun::client
