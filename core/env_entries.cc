#include "core/env_entries.h"

namespace meshrun {

void SetEnv(EnvEntries& env, std::string_view name, std::string_view value) {
  for (v1::EnvEntry& entry : env) {
    if (entry.name() != name) continue;
    entry.set_value(std::string(value));
    return;
  }
  v1::EnvEntry& entry = *env.Add();
  entry.set_name(std::string(name));
  entry.set_value(std::string(value));
}

const std::string* FindEnv(const EnvEntries& env, std::string_view name) {
  const std::string* found = nullptr;
  for (const v1::EnvEntry& entry : env) {
    if (entry.name() == name) found = &entry.value();
  }
  return found;
}

std::map<std::string, std::string> EnvMap(const EnvEntries& env) {
  std::map<std::string, std::string> out;
  for (const v1::EnvEntry& entry : env) out[entry.name()] = entry.value();
  return out;
}

}  // namespace meshrun
