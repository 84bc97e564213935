// Jobs and nodes as text for people: tables, descriptions, and the report at a job's end. Pure.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "client/render/style.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

// "RUNNING", "QUEUED" and so on: the enum's name without its prefix.
std::string StateName(v1::JobState state);
std::string StateName(v1::NodeState state);
std::string StateName(v1::RankState state);

// Newest first, as given.
// `width`: as Table::Render.
std::string JobTable(const std::vector<v1::Job>& jobs, std::chrono::nanoseconds now, int width = 0);
std::string DescribeJob(const v1::GetJobResponse& response, std::chrono::nanoseconds now,
                        const Style& style);

// The report at a job's end. Success and cancellation: one line. Failure: the rank that failed
// first, how it ended, its last lines, and the ranks that ended as a consequence. `can_ask_later`:
// the job can still be described.
std::string Verdict(const v1::Job& job, bool can_ask_later, const Style& style);

// "1 other rank ended as a consequence: rank 0 killed by signal 15 (SIGTERM)"; ranks of one fate
// together. Empty where there is none, and where the failure is an earlier generation's.
std::string Consequences(const v1::Job& job);
// The ranks that compute for longer than the others; empty: none.
std::string SlowRanks(const v1::Job& job);

// What a failure of the job is called: one that was planned is none.
std::string FailureLabel(bool planned);
// The failure alone, indented, as in Verdict and DescribeJob. Empty where the job has none.
std::string FailureReport(const v1::Job& job, const Style& style);

// One sentence where the steps of a job have stopped, or more is known about that than `before`
// (Job.hang as it was); else empty.
std::string HangLine(const std::string& before, const v1::Job& job);

// One sentence for a job that does not run yet; empty where there is nothing to wait for.
std::string WaitingLine(const v1::Job& job);

}  // namespace meshrun::client
