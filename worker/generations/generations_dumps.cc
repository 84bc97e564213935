// Where the processes of ranks stand: for people who ask, and where a job seems to hang.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/log.h"
#include "core/os/boot_time.h"
#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/rank_exit.h"
#include "core/utf8.h"
#include "worker/dumps/process_dump.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {
namespace {

// The coordinator waits 10 s for dumps before it lets anything be killed.
constexpr std::chrono::seconds kDumpTime(8);
// How long a coordinator waits that does not say so.
constexpr std::chrono::seconds kStackTime(20);
// A rank that listens answers at once, where it has anything to say.
constexpr std::chrono::seconds kRecordTime(2);
constexpr char kNoRecord[] = "it has no process group on ucx, or stands still";
// Most bytes of what is uploaded.
constexpr size_t kMostText = size_t{256} << 10;
constexpr size_t kMostPlace = 1024;

std::string WhyNoRecord(const Generation& generation, int rank) {
  const std::map<int, v1::RankExit> exits = generation.Exits();
  const auto exit = exits.find(rank);
  return exit == exits.end() ? kNoRecord : "it has ended: " + DescribeEnd(exit->second);
}

// A directory of the user's is made as the user would make it.
void WriteReport(const std::string& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  (void)os::WriteFileAtomically(path, text, 0600, /*sync=*/false);
}

// One thread a job writes its reports, one after the other.
std::string ReportsKey(const std::string& job_id) { return job_id + "/reports"; }

v1::RankStack ToMessage(int rank, const ProcessStack& stack) {
  v1::RankStack out;
  out.set_rank(rank);
  out.set_place(std::string(Utf8Prefix(EscapeControls(ReplaceBytes(stack.place)), kMostPlace)));
  if (stack.place.empty()) {
    out.set_error(std::string(Utf8Prefix(EscapeControls(ReplaceBytes(stack.problem)), kMostPlace)));
  }
  const std::string text = ReplaceBytes(TextBesidesProblem(stack));
  out.set_text(std::string(Utf8Prefix(text, kMostText)));
  if (text.size() > kMostText) *out.mutable_text() += "\n(cut here)\n";
  return out;
}

std::string Report(const std::string& reason, const ProcessStack& stack, const std::string& rest) {
  return fmt::format(
      "{}\n{}\n{}\n{}", reason,
      stack.place.empty() ? "" : fmt::format("its main thread is in {}\n", stack.place), stack.text,
      rest);
}

}  // namespace

std::string Generations::StackFileOf(const Generation& generation, const ProcessName& name) const {
  const GenerationPaths paths = {generation.processes()->directory(), "",
                                 RanksDirectory(generation.fence().job_id())};
  return StackFilePath(paths, name.rank, name.generation);
}

void Generations::UploadStack(const v1::Fence& fence, uint64_t request, v1::RankStack stack) {
  v1::UploadStackRequest upload;
  upload.mutable_fence()->set_job_id(fence.job_id());
  upload.mutable_fence()->set_generation(fence.generation());
  upload.set_request(request);
  *upload.mutable_stack() = std::move(stack);
  handler_.upload_stack(std::move(upload));
}

void Generations::Dump(Generation& generation, const v1::Dump& dump) {
  const v1::Fence& fence = generation.fence();
  log::Warning(
      "writing down what the ranks of a job do",
      {{"job", fence.job_id()}, {"generation", fence.generation()}, {"reason", dump.reason()}});
  generation.AskForFlightRecords(kDumpRequest | fence.generation(), 0);
  const std::map<int, v1::RankExit> exits = generation.Exits();
  for (const auto& [rank, pid] : generation.Pids()) {
    if (exits.contains(rank)) continue;
    const ProcessName name = NameOf(*generation.FindRank(rank), fence.generation());
    const std::string path = host_.facts.log_layout.DumpFile(
        host_.state_dir.LogDirectory(fence.job_id(), name.generation), fence.job_id(),
        name.generation, name.rank);
    const auto write = [this, path, job_id = fence.job_id(), reason = dump.reason()](
                           const ProcessStack& stack, const std::string& rest) {
      host_.files.Run(ReportsKey(job_id),
                      [path, text = Report(reason, stack, rest)] { WriteReport(path, text); });
    };
    StackRequests::Request look = {.job_id = fence.job_id(),
                                   .rank = static_cast<pid_t>(pid),
                                   .python_file = StackFileOf(generation, name),
                                   .limit = kDumpTime};
    stacks_.Ask(look, [this, fence, rank, look, write,
                       request = dump.request()](const StackRequests::Answer& answer) mutable {
      write(answer.stack, answer.threads);
      if (request != 0) UploadStack(fence, request, ToMessage(rank, answer.stack));
      // What takes longer, and is rarely needed, comes after all that.
      look.frames = false;
      look.native = true;
      stacks_.Ask(look, [write, stack = answer.stack](const StackRequests::Answer& answer) {
        if (!answer.native.empty()) write(stack, answer.threads + answer.native);
      });
    });
  }
}

void Generations::CollectStacks(const Generation& generation, const v1::CollectStacks& command) {
  const v1::Fence& fence = generation.fence();
  const std::map<int, v1::RankExit> exits = generation.Exits();
  const std::map<int, int64_t> pids = generation.Pids();
  const auto timeout =
      command.has_timeout()
          ? std::chrono::ceil<std::chrono::milliseconds>(FromProto(command.timeout()))
          : kStackTime;
  const auto give_up = std::chrono::steady_clock::now() + timeout;
  for (const v1::RankAssignment& place : generation.record().prepare().ranks()) {
    const int rank = place.rank();
    const auto& chosen = command.ranks();
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), rank) == chosen.end()) continue;
    const auto pid = pids.find(rank);
    if (pid == pids.end() || exits.contains(rank)) {
      v1::RankStack stack;
      stack.set_rank(rank);
      stack.set_error(pid == pids.end() ? "it has not started" : "it has ended");
      UploadStack(fence, command.request(), std::move(stack));
      continue;
    }
    stacks_.Ask({.job_id = fence.job_id(),
                 .rank = static_cast<pid_t>(pid->second),
                 .python_file = StackFileOf(generation, NameOf(place, fence.generation())),
                 .native = command.native(),
                 .limit = timeout,
                 .give_up = give_up},
                [this, fence, rank, request = command.request(),
                 native = command.native()](const StackRequests::Answer& answer) {
                  ProcessStack stack = answer.stack;
                  // Another request may have asked for it.
                  if (native) stack.text += answer.native;
                  UploadStack(fence, request, ToMessage(rank, stack));
                });
  }
}

void Generations::CollectFlightRecords(Generation& generation,
                                       const v1::CollectFlightRecords& command) {
  const std::set<int> asked =
      generation.AskForFlightRecords(command.request(), command.most_operations());
  if (!command.all_ranks()) return;
  for (const v1::RankAssignment& place : generation.record().prepare().ranks()) {
    if (asked.contains(place.rank())) continue;
    AnswerForRank(generation, command.request(), place.rank(),
                  WhyNoRecord(generation, place.rank()));
  }
  const Key key = {generation.fence().job_id(), generation.fence().generation()};
  host_.loop.After(kRecordTime, [this, key, asked, request = command.request()] {
    const Entry* const entry = Find(key);
    if (entry == nullptr) return;
    // The coordinator takes no second answer.
    for (const int rank : asked) {
      AnswerForRank(*entry->generation, request, rank, WhyNoRecord(*entry->generation, rank));
    }
  });
}

void Generations::AnswerForRank(const Generation& generation, uint64_t request, int rank,
                                std::string why) {
  v1::UploadFlightRecordRequest upload;
  upload.mutable_fence()->set_job_id(generation.fence().job_id());
  upload.mutable_fence()->set_generation(generation.fence().generation());
  upload.set_request(request);
  v1::FlightRecord& record = *upload.mutable_record();
  record.set_rank(rank);
  record.set_error(std::move(why));
  record.set_steady_nanos(os::BootTimeNow().count());
  record.set_boottime_nanos(record.steady_nanos());
  AddTimes(generation, &record);
  handler_.upload_flight_record(std::move(upload));
}

void Generations::AddTimes(const Generation& generation, v1::FlightRecord* record) const {
  const std::deque<v1::StepTime>& steps = generation.StepsOf(record->rank());
  record->mutable_steps()->Assign(steps.begin(), steps.end());
  const auto clock = handler_.clock();
  if (!clock || record->boottime_nanos() == 0) return;
  // Processes of a host share the clock, except where one of them is shown another one (faketime,
  // a time namespace). The rank read it after it was asked, and before now.
  const std::chrono::nanoseconds now = os::BootTimeNow();
  const std::chrono::nanoseconds asked = generation.asked_for_records();
  const std::chrono::nanoseconds said(record->boottime_nanos());
  std::chrono::nanoseconds offset = clock->offset;
  std::chrono::nanoseconds error = clock->error;
  if (said > now || said < asked) {
    const std::chrono::nanoseconds answer = (now - asked) / 2;
    offset += asked + answer - said;
    error += answer;
  }
  // The steps' times are of this host's clock, those of the record of the rank's steady one.
  for (v1::StepTime& step : *record->mutable_steps()) {
    step.set_at_nanos(step.at_nanos() + clock->offset.count());
  }
  record->mutable_clock()->set_offset_nanos(
      (offset + said - std::chrono::nanoseconds(record->steady_nanos())).count());
  record->mutable_clock()->set_error_nanos(error.count());
}

void Generations::WriteFlightRecord(const Generation& generation, const v1::FlightRecord& record) {
  const v1::RankAssignment* rank = generation.FindRank(record.rank());
  if (rank == nullptr) return;
  const std::string job_id = generation.fence().job_id();
  const ProcessName name = NameOf(*rank, generation.fence().generation());
  const std::string path = host_.facts.log_layout.FlightRecordFile(
      host_.state_dir.LogDirectory(job_id, name.generation), job_id, name.generation, name.rank);
  host_.files.Run(ReportsKey(job_id),
                  [path, text = record.error().empty() ? record.json() : record.error()] {
                    WriteReport(path, text);
                  });
}

}  // namespace meshrun::worker
