// Environments in messages: lists of v1::EnvEntry, since the keys of a protobuf map must be UTF-8
// and the names and values of an environment are bytes. Pure.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <map>
#include <string>
#include <string_view>

#include "meshrun/v1/common.pb.h"

namespace meshrun {

using EnvEntries = google::protobuf::RepeatedPtrField<v1::EnvEntry>;

// Replaces what has the name, or adds it.
void SetEnv(EnvEntries& env, std::string_view name, std::string_view value);
// Value of the last entry with the name; null: there is none.
const std::string* FindEnv(const EnvEntries& env, std::string_view name);
// All entries as a map. If several entries have one name, the last one counts.
std::map<std::string, std::string> EnvMap(const EnvEntries& env);

}  // namespace meshrun
