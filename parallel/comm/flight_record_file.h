// Where the flight records of groups that failed go: a file of this process, a line of JSON for
// each group.
//
// It lies in MESHRUN_FLIGHT_RECORD_DIR; else beside TORCHELASTIC_ERROR_FILE, which a launcher sets
// for each rank; else in TMPDIR, or /tmp. Threads: any. No errors: what cannot be written is said.
#pragma once

#include <string>

namespace meshrun {

// "/tmp/meshrun-flight-record-rank-3-4711.jsonl", of this process.
std::string flight_record_path(int world_rank);

// Adds the record, and returns one line for the log: where it is, or why it is not.
std::string keep_flight_record(const std::string& path, const std::string& json);

}  // namespace meshrun
