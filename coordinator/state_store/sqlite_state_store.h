// State in one SQLite file of a directory that one coordinator at a time may use.
//
// WAL with synchronous=FULL: a commit is one fsync, and what it wrote survives a loss of power.
// ForEachRow reads on a connection of its own, beside a commit that hangs. No limits.
#pragma once

#include <functional>
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

  absl::StatusOr<uint64_t> BeginTerm() override;
  absl::Status ForEachRow(const TakeRow& take) override;
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override;
  Size size() const override;

 private:
  explicit SqliteStateStore(std::string path) : path_(std::move(path)) {}
  absl::Status Prepare();
  // Makes the table, or moves the rows of an older schema to it.
  absl::Status BeginSchema();
  absl::Status Execute(const char* sql);
  absl::StatusOr<uint64_t> StoredTerm();
  // Within one transaction, checked by `check` first, which sees the stored term.
  absl::Status Transact(const std::function<absl::Status(uint64_t stored)>& check,
                        const std::vector<v1::StateRow>& rows);
  absl::Status Write(const v1::StateRow& row);
  absl::Status Error(std::string_view what) const { return ErrorOf(db_, what); }
  absl::Status ErrorOf(sqlite3* db, std::string_view what) const;

  const std::string path_;
  // Held by flock as long as we live.
  os::UniqueFd lock_;
  sqlite3* db_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* erase_ = nullptr;
  sqlite3_stmt* term_ = nullptr;
};

}  // namespace meshrun::coordinator
