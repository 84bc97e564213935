// How the usual kinds of fields are set, for rows of client/job_fields.cc. `what_to_write` is the
// error for a value in a job file that is not of the kind, for example a list in place of a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/job_fields.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// A text that holds anything.
FieldSetter TextField(std::string* (v1::JobSpec::*field)(), const std::string& what_to_write);

// A text that `parse` checks and puts into the spec. Its error says what is wrong with the text and
// what to write; the flag, or the place in the file, is put before it.
FieldSetter WordField(absl::Status (*parse)(std::string_view text, v1::JobSpec* spec),
                      const std::string& what_to_write);

// A whole number from `least` up. `example` completes the error for a job file.
FieldSetter NumberField(void (v1::JobSpec::*set)(uint32_t), uint32_t least,
                        const std::string& example);
FieldSetter NumberField(void (v1::JobSpec::*set)(int32_t), int32_t least,
                        const std::string& example);

// "10s", "1h30m". `if_zero`: the error for 0 in a job file; empty: 0 is taken.
FieldSetter DurationField(google::protobuf::Duration* (v1::JobSpec::*field)(),
                          const std::string& if_zero = "");

// A flag without a value; true or false in a job file.
FieldSetter SwitchField(void (v1::JobSpec::*set)(bool));

// A flag that may be repeated; a list in a job file. `check` sees each text; null: any will do.
FieldSetter ListField(google::protobuf::RepeatedPtrField<std::string>* (v1::JobSpec::*field)(),
                      absl::Status (*check)(std::string_view text),
                      const std::string& what_to_write);

}  // namespace meshrun::client
