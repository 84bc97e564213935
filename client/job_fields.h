// The fields of a job, a row each: what `meshrun run` and `submit` take as flags, and job.yaml as
// keys. The command line, --help, shell completion, the job file and the names in errors all come
// from these rows. docs/how-to/job-flag.md adds one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/job_context.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun {

struct FileValue;

}  // namespace meshrun

namespace meshrun::client {

// How a value gets into a JobSpec. Both ways check it. client/field_kinds.h has those of the usual
// kinds.
struct FieldSetter {
  // One value of the flag. INVALID_ARGUMENT: the flag, what is wrong, and what to write.
  std::function<absl::Status(std::string_view flag, const std::string& text,
                             const JobContext& context, v1::JobSpec* spec)>
      from_flag;
  // The whole value of the key. INVALID_ARGUMENT as in core/yaml/file_value.h.
  std::function<absl::Status(const FileValue& value, v1::JobSpec* spec)> from_file;
  // The flag may be given several times; each adds to what the file has.
  bool repeats = false;
};

struct JobField {
  // Names of the flag, for example "--nodes,--nnodes"; errors say the first one. Empty: there is
  // only a key.
  std::string flag;
  // What a job file calls it, at least one name. Several exclude each other.
  std::vector<std::string> keys;
  // Heading of --help, the same for neighbouring rows.
  std::string section;
  // What stands for the flag's value in --help. Empty: the flag is a switch, without a value.
  std::string value;
  std::string help;
  FieldSetter set;
  // With what name core/job_spec.h begins its errors about it. Empty: the first key.
  std::string in_spec;

  // The name of the flag, such as "--nodes"; empty if the field has no flag.
  std::string FlagName() const { return flag.substr(0, flag.find(',')); }
};

// In the order of --help.
const std::vector<JobField>& JobFields();

}  // namespace meshrun::client
