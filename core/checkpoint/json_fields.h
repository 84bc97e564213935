// JSON of files, with problems in words for a person: the byte where the text is none, or the field
// that is missing or of another type.
//
// Problems are DATA_LOSS and do not name the file: "it ends in the middle, after byte 811, line
// 14".
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshrun {

enum class JsonKind { kText, kList, kObject };

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);

// Why a parser of nlohmann-json stopped after `read` bytes of `text`, which counts one more at the
// end. `begin`: where the text begins in its file.
std::string JsonProblem(std::string_view text, size_t read, uint64_t begin = 0);

// Whether `value`, which has this name for the reader, is of the kind: "save is 5, not a text".
absl::Status CheckJson(std::string_view name, const nlohmann::json& value, JsonKind kind);

// A field of an object: "it has no save".
absl::StatusOr<const nlohmann::json*> JsonField(const nlohmann::json& object,
                                                const std::string& name);
absl::StatusOr<const nlohmann::json*> JsonField(const nlohmann::json& object,
                                                const std::string& name, JsonKind kind);
// A list or an object, which is empty where the field is absent.
absl::StatusOr<const nlohmann::json*> OptionalJsonField(const nlohmann::json& object,
                                                        const std::string& name, JsonKind kind);

}  // namespace meshrun
