#include "client/job_messages.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/job_fields.h"
#include "client/job_spec.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/suggest.h"

namespace meshrun::client {
namespace {

// Fields for which JobRequest has a member of its own.
bool HasMember(std::string_view key) {
  return key == "name" || key == "job" || key == "shipped_job" || key == "env" ||
         key == "working_dir" || key == "command" || key == "args";
}

const JobField* FieldOf(std::string_view key) {
  for (const JobField& field : JobFields()) {
    for (const std::string& name : field.keys) {
      if (name == key && field.set.from_flag != nullptr) return &field;
    }
  }
  return nullptr;
}

absl::Status UnknownField(const std::string& key) {
  std::vector<std::string> known;
  for (const JobField& field : JobFields()) {
    for (const std::string& name : field.keys) {
      if (field.set.from_flag != nullptr && !HasMember(name)) known.push_back(name);
    }
  }
  return absl::InvalidArgumentError(
      fmt::format("JobRequest::fields: there is no field '{}'{}", key, DidYouMean(key, known)));
}

absl::Status SetField(const std::string& key, const std::string& text, const JobContext& context,
                      std::set<std::string>* given, v1::JobSpec* spec) {
  if (HasMember(key)) {
    return absl::InvalidArgumentError(
        fmt::format("JobRequest::fields: {}: JobRequest has a member for it", key));
  }
  const JobField* field = FieldOf(key);
  if (field == nullptr) return UnknownField(key);
  if (!given->insert(field->FlagName()).second && !field->set.repeats) {
    return absl::InvalidArgumentError(fmt::format("JobRequest::fields: {} stands twice", key));
  }
  if (!field->value.empty()) return field->set.from_flag(key, text, context, spec);
  if (text == "false") return absl::OkStatus();
  if (text == "true") return field->set.from_flag(key, text, context, spec);
  return absl::InvalidArgumentError(fmt::format("{}: '{}': write true or false", key, text));
}

std::optional<std::chrono::system_clock::time_point> TimeOf(bool has,
                                                            const google::protobuf::Timestamp& at) {
  if (!has) return std::nullopt;
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(FromProto(at)));
}

JobFailure FailureOf(const v1::Failure& failure) {
  JobFailure out;
  out.message = failure.message();
  if (failure.rank() >= 0) out.rank = failure.rank();
  out.node = failure.node_name().empty() ? failure.node_id() : failure.node_name();
  if (failure.has_exit()) {
    if (failure.exit().signal() != 0) {
      out.signal = failure.exit().signal();
    } else {
      out.exit_code = failure.exit().exit_code();
    }
    out.last_lines.assign(failure.exit().last_lines().begin(), failure.exit().last_lines().end());
  }
  return out;
}

JobProgress ProgressOf(const v1::Progress& progress) {
  JobProgress out;
  if (progress.has_step()) out.step = progress.step();
  if (progress.has_total_steps()) out.total_steps = progress.total_steps();
  if (progress.has_loss()) out.loss = progress.loss();
  out.metrics.insert(progress.metrics().begin(), progress.metrics().end());
  out.note = progress.note();
  return out;
}

JobState StateOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_QUEUED:
      return JobState::kQueued;
    case v1::JOB_STATE_ADMITTED:
      return JobState::kAdmitted;
    case v1::JOB_STATE_RENDEZVOUS:
      return JobState::kRendezvous;
    case v1::JOB_STATE_RUNNING:
      return JobState::kRunning;
    case v1::JOB_STATE_QUIESCING:
      return JobState::kQuiescing;
    case v1::JOB_STATE_WAITING:
      return JobState::kWaiting;
    case v1::JOB_STATE_SUSPENDED:
      return JobState::kSuspended;
    case v1::JOB_STATE_SUCCEEDED:
      return JobState::kSucceeded;
    case v1::JOB_STATE_FAILED:
      return JobState::kFailed;
    case v1::JOB_STATE_CANCELLED:
      return JobState::kCancelled;
    default:
      return JobState::kUnknown;
  }
}

}  // namespace

std::string_view StateName(JobState state) {
  switch (state) {
    case JobState::kUnknown:
      return "UNKNOWN";
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kAdmitted:
      return "ADMITTED";
    case JobState::kRendezvous:
      return "RENDEZVOUS";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kQuiescing:
      return "QUIESCING";
    case JobState::kWaiting:
      return "WAITING";
    case JobState::kSuspended:
      return "SUSPENDED";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

bool HasEnded(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed ||
         state == JobState::kCancelled;
}

absl::Status CompleteSpec(const JobContext& context, v1::JobSpec* spec) {
  namespace fs = std::filesystem;
  const std::string program = spec->command().empty() ? "" : spec->command(0);
  if (spec->name().empty()) {
    spec->set_name(JobNameFromCommand(spec->shipped_job().empty() ? program : spec->shipped_job()));
  }
  if (spec->shipped_job().empty() && !program.empty() &&
      NeedsPython(program, context.find_program(program).ok())) {
    std::vector<std::string> words = {context.variable("PYTHON_EXEC").value_or("python3"), "-u"};
    words.insert(words.end(), spec->command().begin(), spec->command().end());
    spec->mutable_command()->Assign(words.begin(), words.end());
  }
  if (const fs::path wanted = spec->working_dir(); !wanted.is_absolute()) {
    if (context.working_dir.empty()) {
      return absl::InvalidArgumentError(
          "working_dir: the directory of this process has been deleted: name another one");
    }
    spec->set_working_dir(
        wanted.empty() ? context.working_dir
                       : (fs::path(context.working_dir) / wanted).lexically_normal().string());
  }
  return NormalizeJobSpec(*spec);
}

absl::StatusOr<v1::JobSpec> SpecOf(const JobRequest& request, const JobContext& context) {
  v1::JobSpec spec;
  if (request.command.empty() && request.job.empty()) {
    return absl::InvalidArgumentError(
        "command: it is empty: name a program, or a shipped job with JobRequest::job");
  }
  for (const std::string& word : request.command) spec.add_command(word);
  spec.set_shipped_job(request.job);
  spec.set_name(request.name);
  spec.set_working_dir(request.working_dir);
  for (const auto& [name, value] : request.env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("env: '{}' is not the name of a variable", name));
    }
    MESHRUN_RETURN_IF_ERROR(SetVariable("env", name + "=" + value, context, &spec));
  }
  std::set<std::string> given;
  for (const auto& [key, text] : request.fields) {
    MESHRUN_RETURN_IF_ERROR(SetField(key, text, context, &given, &spec));
  }
  MESHRUN_RETURN_IF_ERROR(CompleteSpec(context, &spec));
  return spec;
}

JobStatus StatusOf(const v1::Job& job) {
  JobStatus out;
  out.id = job.job_id();
  out.name = job.spec().name();
  out.state = StateOf(job.state());
  out.reason = job.reason();
  out.generation = job.generation();
  out.world_size = job.world_size();
  out.restarts = job.restarts();
  out.submitted_at = TimeOf(job.has_submitted_at(), job.submitted_at());
  out.started_at = TimeOf(job.has_started_at(), job.started_at());
  out.finished_at = TimeOf(job.has_finished_at(), job.finished_at());
  if (job.has_failure()) out.failure = FailureOf(job.failure());
  if (job.has_progress()) out.progress = ProgressOf(job.progress());
  if (HasEnded(job.state())) out.exit_code = ExitCodeOf(job);
  return out;
}

}  // namespace meshrun::client
