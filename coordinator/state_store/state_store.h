// Where the coordinator's state survives: rows in tables (v1.StateTable), changed in atomic
// transactions by the holder of the highest term.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// Rises with each change of what rows mean, so that an older program refuses what it would misread.
//   2: appended values have rows of kind "n" (RendezvousStore::ChunkRowKey)
//   3: jobs may be private, and may be of an array that runs so many of them at a time
//   4: what is kept of a CompareSet for its repetition is a mark; keys have an index
inline constexpr int kSchemaVersion = 4;

// One owner. BeginTerm and Commit are called by one thread at a time. ForEachRow may be called by
// another one meanwhile, and shows what is durable.
class StateStore {
 public:
  // What one transaction holds at most; bytes are those of keys and values. BatchedStateStore
  // commits batches of any size to a store with limits.
  struct Limits {
    size_t rows = std::numeric_limits<size_t>::max();
    size_t bytes = std::numeric_limits<size_t>::max();
  };
  // Every store takes so much. etcd's own limits are 128 operations, some of which its store needs
  // for itself, and 1.5 MiB.
  static constexpr Limits kLeast{.rows = 120, .bytes = 1 << 20};

  virtual ~StateStore() = default;
  virtual Limits limits() const { return {}; }

  // Raises the term by one, durably, and returns it: what was committed in a lower term stays, and
  // nothing more can be. Errors: DATA_LOSS (the term cannot be read), INTERNAL, RESOURCE_EXHAUSTED;
  // of a store elsewhere UNAVAILABLE and those of EtcdStateStore too.
  virtual absl::StatusOr<uint64_t> BeginTerm() = 0;

  // False: it wants no more rows.
  using TakeRow = std::function<bool(v1::StateRow row)>;
  // Gives every row to `take`, in the order of tables and of keys, as they are at one moment.
  // `take` calls nothing of the store. Errors: INTERNAL, RESOURCE_EXHAUSTED, UNAVAILABLE.
  virtual absl::Status ForEachRow(const TakeRow& take) = 0;
  // Gives the rows of one table alone, in the order of keys. Called by the thread that commits.
  virtual absl::Status ForEachRowOf(v1::StateTable table, const TakeRow& take);
  // All of them at once, for as long as there is memory for that.
  absl::StatusOr<std::vector<v1::StateRow>> Load();

  // One transaction: all changes or none; durable when it returns OK. Later rows of one key win.
  // `term` is 0 for a store in which no term has begun. After an error only ForEachRow tells
  // what is on disk. Errors: FAILED_PRECONDITION (the store's term is another: nothing was
  // written), INVALID_ARGUMENT (beyond the limits), INTERNAL, RESOURCE_EXHAUSTED (disk full),
  // UNAVAILABLE and ABORTED (a store elsewhere has not answered, or has done an earlier one late).
  virtual absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) = 0;

  // How large it is, and may become; absent: not known, or no limit of its own. Cheap. Any thread.
  struct Size {
    std::optional<uint64_t> bytes;
    std::optional<uint64_t> most_bytes;
  };
  virtual Size size() const { return {}; }
};

// What stores share: the row that holds the term.
v1::StateRow TermRow(uint64_t term);
absl::StatusOr<uint64_t> ParseTerm(std::string_view text);
// FAILED_PRECONDITION unless they are the same.
absl::Status CheckTerm(uint64_t stored, uint64_t term);
// INVALID_ARGUMENT: the rows are beyond the limits.
absl::Status CheckLimits(const std::vector<v1::StateRow>& rows, const StateStore::Limits& limits);

}  // namespace meshrun::coordinator
