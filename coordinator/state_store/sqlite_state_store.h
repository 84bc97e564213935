// State in one SQLite file of a directory that one coordinator at a time may use.
//
// WAL with synchronous=FULL: a commit is one fsync, and what it wrote survives a loss of power.
#pragma once

#include <memory>
#include <string>

#include "coordinator/state_store/state_store.h"
#include "core/os/fd.h"

struct sqlite3;
struct sqlite3_stmt;

namespace meshrun::coordinator {

class SqliteStateStore : public StateStore {
 public:
  // Creates the directory where it is missing. Errors: FAILED_PRECONDITION (another coordinator
  // holds the directory; or a newer meshrun wrote it), PERMISSION_DENIED, INTERNAL.
  static absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open(const std::string& directory);
  ~SqliteStateStore() override;

  absl::StatusOr<std::vector<v1::StateRow>> Load() override;
  absl::Status Commit(const std::vector<v1::StateRow>& rows) override;

 private:
  explicit SqliteStateStore(std::string path) : path_(std::move(path)) {}
  absl::Status Prepare();
  absl::Status Execute(const char* sql);
  absl::Status Write(const v1::StateRow& row);
  absl::Status Error(std::string_view what) const;

  const std::string path_;
  // Held by flock as long as we live.
  os::UniqueFd lock_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* erase_ = nullptr;
};

}  // namespace meshrun::coordinator
