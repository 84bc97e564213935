// Calls whose answers come one by one, each rank's by itself, as one answer in JSON. Ranks send
// what they like: an answer has a few MiB at most, and says where there is more.
//
// Threads: each waits on the thread that calls it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/api/local_call.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {

// Most bytes of all ranks together, of their output and of the others, before they become JSON.
inline constexpr size_t kMostLogBytes = 1 << 20;
inline constexpr size_t kMostAnswerBytes = 4 << 20;
// One rank's record. A larger one is left out, and its place says so.
inline constexpr size_t kMostRecordBytes = 1 << 20;

// Each leaves the stream, whose answers are those of the method. Errors: the call's;
// those of AwaitPatiently.

// ReadLogs: {"pieces": [...], "more": false, "next": "2.0o4096"}, and "problem" where some could
// not be read. `request` is the call's.
absl::StatusOr<std::string> AllLogs(const std::shared_ptr<LocalStream>& stream,
                                    const v1::ReadLogsRequest& request, const Patience& patience);
// GetStacks: {"stacks": [...], "generation": 2, "more": false}, by rank.
absl::StatusOr<std::string> AllStacks(const std::shared_ptr<LocalStream>& stream,
                                      const Patience& patience);
// GetFlightRecords: {"records": [...], "generation": 2, "more": false, "sentence": "..."}, by rank.
absl::StatusOr<std::string> AllFlightRecords(const std::shared_ptr<LocalStream>& stream,
                                             const Patience& patience);
// ReadPictures: {"pictures": [...]}, by rank and name, and "problem" where some are not known.
absl::StatusOr<std::string> AllPictures(const std::shared_ptr<LocalStream>& stream,
                                        const Patience& patience);

// ReadPictures of one picture.
struct WholePicture {
  // Another one when the picture has changed.
  std::string etag;
  // Absent: it is the one that the caller has.
  std::optional<std::string> bytes;
};
// `has`: whether the caller has the picture of an etag.
absl::StatusOr<WholePicture> OnePicture(const std::shared_ptr<LocalStream>& stream,
                                        const std::function<bool(std::string_view etag)>& has,
                                        const Patience& patience);

}  // namespace meshrun::coordinator
