// How far a reader of the HTTP API is in the output of a job's ranks: `next` of an answer, which
// its reader gives back as `after`. Pure.
//
//   2.0o1048576.1o70.1e12     generation 2; rank 0 stdout, rank 1 stdout and stderr
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {

// It is a part of an address, which has 8 KiB at most.
inline constexpr size_t kMostCursorBytes = 6 << 10;

// Absent: so many streams have no room.
std::optional<std::string> WriteLogCursor(uint64_t generation,
                                          const std::vector<v1::LogPosition>& positions);
// Sets the generation and the positions of a request. INVALID_ARGUMENT: it is none, or one of
// another generation than the request names.
absl::Status ReadLogCursor(std::string_view cursor, v1::ReadLogsRequest* request);

}  // namespace meshrun::coordinator
