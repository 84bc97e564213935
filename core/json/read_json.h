// Messages from JSON that other programs write: the bodies of calls of the HTTP API. Pure.
//
// Names, enums and times are those that ToJson writes (core/json/json.h). docs/api/openapi.json
// gives the type of each value: the text "true" is not taken for a boolean, nor "3" for a number. A
// duration is "300s" or "0.5s", and never negative. A field that is absent, or null, keeps its
// default.
#pragma once

#include <google/protobuf/message.h>

#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace meshrun {

// Sets the fields that `text` names; others of `message` stay as they are. INVALID_ARGUMENT says
// what is wrong and where: the text is not an object in JSON, a field is not one of `fields` (they
// are listed), or its value is of another kind. `message` then is as it was. `fields`: those that
// the text may name, as the contract writes them.
absl::Status ReadJson(std::string_view text, std::span<const std::string_view> fields,
                      google::protobuf::Message* message);

}  // namespace meshrun
