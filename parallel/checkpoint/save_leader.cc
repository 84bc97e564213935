#include "parallel/checkpoint/save_leader.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "parallel/base/process.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/checkpoint/chunk_notes.h"
#include "parallel/checkpoint/raised_by.h"

namespace meshrun {
namespace {

// Stages that a save with one site leaves out.
constexpr char kPreparedStage[] = "prepared";
constexpr char kDescribedStage[] = "described";

// Ended by the leader of a site alone.
std::string files_stage(int site) { return fmt::format("files of site {}", site); }

}  // namespace

std::string problem_of(int rank, const std::function<void()>& work) {
  std::exception_ptr given_up;
  char kind = kFailedText;
  const std::string problem = detail::raised_by([&] {
    try {
      work();
    } catch (const SaveGivenUp&) {
      given_up = std::current_exception();
    } catch (const CommitRefused&) {
      kind = kRefusedText;
      throw;
    }
  });
  if (given_up) std::rethrow_exception(given_up);
  if (problem.empty() || kind == kRefusedText) return problem.empty() ? "" : kind + problem;
  return kind + fmt::format("rank {} on {}: {}", rank, worker_name(), problem);
}

void forget_save(SaveMeeting& meeting, const std::string& save, int sites) {
  std::vector<std::string> ended = {kFinishedStage};
  std::vector<std::string> arrived = {kWrittenStage};
  if (sites == 1) {
    ended.push_back(kMadeStage);
  } else {
    ended.push_back(kPreparedStage);
    for (int site = 0; site < sites; ++site) ended.push_back(files_stage(site));
    arrived.insert(arrived.end(), {kMadeStage, kDescribedStage, kRenamedStage});
  }
  meeting.forget(save, ended, arrived);
}

std::string SaveLeader::make() {
  // They hold the save before.
  const auto prepare = std::exchange(task_.prepare, nullptr);
  const auto prepare_as_told = std::exchange(task_.prepare_as_told, nullptr);
  std::string problem;
  if (task_.rank == 0) {
    std::string told;
    problem = problem_of(0, [&] { told = prepare(); });
    if (task_.sites > 1) meeting_.end(kPreparedStage, problem.empty() ? kToldText + told : problem);
  } else {
    const std::string told = meeting_.await(kPreparedStage);
    if (told[0] != kToldText) return "";  // it is rank 0's problem
    problem = problem_of(task_.rank, [&] { prepare_as_told(told.substr(1)); });
  }
  if (!problem.empty()) return problem;
  return problem_of(task_.rank, [&] {
    step_.emplace(task_.directory, task_.manifest.step, task_.writer);
    for (const SavedFile& file : task_.files) {
      check_status(step_->create_file(file.name, file.bytes));
    }
    if (task_.index_name.empty()) return;
    write_file_atomically(step_->path() + "/" + task_.index_name, task_.index);
  });
}

std::map<std::string, Manifest::File> SaveLeader::files_written() const {
  ChunkNotes all(task_.files.size());
  for (int rank = 0; rank < task_.ranks; ++rank) check_status(all.read(step_->path(), rank));
  std::map<std::string, Manifest::File> files;
  for (size_t i = 0; i < task_.files.size(); ++i) {
    const SavedFile& file = task_.files[i];
    files[file.name] = {.bytes = file.bytes,
                        .sha256 = "",
                        .chunks = value_of(all.cover(i, file.name, file.bytes)),
                        .pieces = {}};
  }
  return files;
}

std::optional<Manifest> SaveLeader::describe_all() {
  Manifest manifest = task_.manifest;
  manifest.files = files_written();
  manifest.sequence = std::max(manifest.sequence, step_->last_sequence() + 1);
  if (task_.sites == 1) return manifest;
  // What the leaders do not know of each other.
  Manifest own;
  own.files = manifest.files;
  own.sequence = manifest.sequence;
  meeting_.end(files_stage(task_.site), kToldText + EncodeManifest(own));
  for (int site = 0; site < task_.sites; ++site) {
    if (site == task_.site) continue;
    const std::string told = meeting_.await(files_stage(site));
    if (told[0] != kToldText) return std::nullopt;
    Manifest other = value_of(DecodeManifest(files_stage(site), told.substr(1)));
    manifest.files.merge(other.files);
    manifest.sequence = std::max(manifest.sequence, other.sequence);
  }
  for (auto& [name, file] : manifest.files) {
    const auto pieces = task_.pieces.find(name);
    if (pieces != task_.pieces.end()) file.pieces = pieces->second;
  }
  return manifest;
}

std::string SaveLeader::describe() {
  std::optional<Manifest> manifest;
  std::string problem = problem_of(task_.rank, [&] { manifest = describe_all(); });
  // Others wait for it.
  if (!problem.empty() && task_.sites > 1) meeting_.end(files_stage(task_.site), problem);
  if (manifest) {
    sequence_ = manifest->sequence;
    problem = problem_of(task_.rank, [&] { step_->describe(*manifest); });
  }
  if (task_.sites == 1) return problem;
  meeting_.arrive(kDescribedStage, problem, task_.sites);
  return meeting_.await(kDescribedStage);
}

void SaveLeader::publish() {
  Retention retention = task_.retention;
  if (task_.hook) retention.held = task_.hook->held();
  const std::string problem = step_->publish(retention);
  if (!problem.empty()) task_.say(problem);
  if (task_.hook) task_.hook->call(step_->named_path());
}

std::string SaveLeader::commit() {
  const std::string problem = problem_of(task_.rank, [&] {
    begin_commit_();
    step_->commit();
    publish();
  });
  return problem.empty() ? kWrittenText + std::to_string(sequence_) : problem;
}

std::string SaveLeader::finish() {
  const std::string problem = describe();
  if (!problem.empty()) remove();
  std::string end;
  if (task_.rank == 0) {
    end = problem.empty() ? commit() : problem;
    meeting_.end(kFinishedStage, end);
  } else {
    end = meeting_.await(kFinishedStage);
    if (end[0] == kWrittenText) {
      // It is a checkpoint, whatever becomes of its name here: the next load gives it that.
      const std::string unnamed = problem_of(task_.rank, [&] { publish(); });
      if (!unnamed.empty()) task_.say(unnamed.substr(1));
    }
  }
  if (task_.sites > 1) meeting_.arrive(kRenamedStage, "", task_.sites);
  return end;
}

void SaveLeader::remove() const {
  if (step_) step_->remove();
}

void SaveLeader::remove_hidden() {
  if (step_) step_->remove_hidden();
}

}  // namespace meshrun
