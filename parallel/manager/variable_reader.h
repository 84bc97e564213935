// Reads the variables of a launch and keeps the first error, so that the reading of a launcher's
// variables stays a plain list. Values after an error are usable and wrong: ask status() last.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "parallel/manager/environment.h"

namespace meshrun {

class VariableReader {
 public:
  // `lookup` must outlive the reader. `advice` ends the sentence about a missing variable.
  VariableReader(const EnvironmentLookup& lookup, LaunchMethod method, std::string advice);

  std::optional<std::string> text(const std::string& name) const { return lookup_(name); }
  std::string required_text(const std::string& name);

  std::optional<int> integer(const std::string& name, int minimum = 0);
  // Value of the first of these variables that is set.
  std::optional<int> first_integer(std::initializer_list<const char*> names, int minimum = 0);
  int required_integer(const std::string& name, int minimum = 0);

  // Leaves `port` as it is where the variable is not set.
  void port(const std::string& name, int& port);

  void missing(const std::string& name);
  void fail(std::string message);

  const EnvironmentLookup& lookup() const { return lookup_; }
  absl::Status status() const;

 private:
  const EnvironmentLookup& lookup_;
  const LaunchMethod method_;
  const std::string advice_;
  std::string error_;
};

}  // namespace meshrun
