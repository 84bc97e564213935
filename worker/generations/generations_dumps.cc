// What is written down of the ranks of a job that seems to hang.
#include <fmt/format.h>

#include "core/log.h"
#include "core/os/files.h"
#include "worker/dumps/process_dump.h"
#include "worker/generations/generations.h"

namespace meshrun::worker {
namespace {

// The coordinator waits 10 s for dumps before it lets anything be killed.
constexpr std::chrono::seconds kDumpTime(8);

}  // namespace

void Generations::Dump(Generation& generation, const std::string& reason) {
  const std::string job_id = generation.fence().job_id();
  const uint64_t number = generation.fence().generation();
  log::Warning("writing down what the ranks of a job do",
               {{"job", job_id}, {"generation", number}, {"reason", reason}});
  generation.AskForFlightRecords(kDumpRequest | number);
  const std::map<int, v1::RankExit> exits = generation.Exits();
  for (const auto& [rank, pid] : generation.Pids()) {
    if (exits.contains(rank)) continue;
    const ProcessName name = NameOf(*generation.FindRank(rank), number);
    const std::string path =
        DumpPath(host_.state_dir.LogDirectory(job_id, name.generation), name.rank);
    // Each on a thread of its own: a debugger takes seconds for a process.
    host_.files.Run(fmt::format("{}/dump-{}", job_id, rank), [path, pid = static_cast<pid_t>(pid),
                                                              reason] {
      (void)os::WriteFileAtomically(path, reason + "\n\n" + DescribeProcess(pid, kDumpTime), 0600,
                                    /*sync=*/false);
    });
  }
}

void Generations::WriteFlightRecord(const Generation& generation, const v1::FlightRecord& record) {
  const v1::RankAssignment* rank = generation.FindRank(record.rank());
  if (rank == nullptr) return;
  const std::string job_id = generation.fence().job_id();
  const ProcessName name = NameOf(*rank, generation.fence().generation());
  const std::string path =
      FlightRecordPath(host_.state_dir.LogDirectory(job_id, name.generation), name.rank);
  host_.files.Run(fmt::format("{}/dump-{}", job_id, record.rank()),
                  [path, text = record.error().empty() ? record.json() : record.error()] {
                    (void)os::WriteFileAtomically(path, text, 0600, /*sync=*/false);
                  });
}

}  // namespace meshrun::worker
