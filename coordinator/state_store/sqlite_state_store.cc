#include "coordinator/state_store/sqlite_state_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::milliseconds kLockPause(50);
constexpr int kLockTries = 40;

// Readable by this user alone, also where it was made with other rights. SQLite gives the rights of
// the first file to those that it makes beside it.
absl::Status MakeOwn(const std::string& path, int flags) {
  const os::UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600));
  if (!file && errno == ENOENT) return absl::OkStatus();
  if (!file || ::fchmod(file.get(), 0600) != 0) return os::ErrnoStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(
    const std::string& directory) {
  MESHRUN_RETURN_IF_ERROR(Annotate(os::MakePrivateDirectory(directory), "--state-dir"));
  const std::string lock_path = directory + "/lock";
  os::UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock || ::fchmod(lock.get(), 0600) != 0) return os::ErrnoStatus(errno, lock_path);
  // One that was killed holds it until the kernel has freed its memory.
  bool is_ours = ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  for (int tries = 0; !is_ours && tries < kLockTries; ++tries) {
    std::this_thread::sleep_for(kLockPause);
    is_ours = ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  }
  if (!is_ours) {
    return absl::FailedPreconditionError(
        fmt::format("state directory {} is in use by another coordinator: stop that one, or choose "
                    "another --state-dir",
                    directory));
  }
  MESHRUN_RETURN_IF_ERROR(MakeOwn(directory + "/state.sqlite", O_CREAT));
  for (const char* const file : {"/state.sqlite-wal", "/state.sqlite-shm"}) {
    MESHRUN_RETURN_IF_ERROR(MakeOwn(directory + file, 0));
  }
  std::unique_ptr<SqliteStateStore> store(new SqliteStateStore(directory + "/state.sqlite"));
  store->lock_ = std::move(lock);
  MESHRUN_RETURN_IF_ERROR(store->Prepare());
  return store;
}

SqliteStateStore::~SqliteStateStore() {
  sqlite3_finalize(put_);
  sqlite3_finalize(erase_);
  sqlite3_finalize(term_);
  sqlite3_close(db_);
}

absl::Status SqliteStateStore::Prepare() {
  if (sqlite3_open_v2(path_.c_str(), &db_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                      nullptr) != SQLITE_OK) {
    return Error("cannot open");
  }
  sqlite3_extended_result_codes(db_, 1);
  MESHRUN_RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
  MESHRUN_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
  int version = 0;
  const auto read = [](void* out, int, char** values, char**) {
    const auto number = ParseInteger<int>(values[0]);
    if (number) *static_cast<int*>(out) = *number;
    return number ? 0 : 1;
  };
  if (sqlite3_exec(db_, "PRAGMA user_version", read, &version, nullptr) != SQLITE_OK) {
    return Error("cannot read");
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(fmt::format(
        "{} has schema {}, and this meshrun knows {} at most: use the newer meshrun, or "
        "another --state-dir",
        path_, version, kSchemaVersion));
  }
  if (version < kSchemaVersion) MESHRUN_RETURN_IF_ERROR(BeginSchema());
  if (sqlite3_prepare_v2(db_,
                         "INSERT INTO rows VALUES (?1, ?2, ?3) "
                         "ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value",
                         -1, &put_, nullptr) != SQLITE_OK ||
      sqlite3_prepare_v2(db_, "DELETE FROM rows WHERE kind = ?1 AND key = ?2", -1, &erase_,
                         nullptr) != SQLITE_OK ||
      sqlite3_prepare_v2(db_, "SELECT value FROM rows WHERE kind = ?1 AND key = 'term'", -1, &term_,
                         nullptr) != SQLITE_OK) {
    return Error("cannot prepare statements on");
  }
  return absl::OkStatus();
}

// Until schema 4 the table was WITHOUT ROWID, where a search reads each row that it looks at whole:
// every small row beside a value of 15 MiB cost 15 MiB.
absl::Status SqliteStateStore::BeginSchema() {
  const std::string moved = fmt::format(
      "BEGIN IMMEDIATE;"
      "CREATE TABLE rows_now (kind INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, "
      "PRIMARY KEY (kind, key));"
      "CREATE TABLE IF NOT EXISTS rows (kind INTEGER, key TEXT, value BLOB);"
      "INSERT INTO rows_now SELECT kind, key, value FROM rows;"
      "DROP TABLE rows;"
      "ALTER TABLE rows_now RENAME TO rows;"
      "PRAGMA user_version={};"
      "COMMIT",
      kSchemaVersion);
  const absl::Status status = Execute(moved.c_str());
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0)
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

absl::Status SqliteStateStore::ErrorOf(sqlite3* db, std::string_view what) const {
  const int code = db == nullptr ? SQLITE_NOMEM : sqlite3_errcode(db);
  const std::string text =
      fmt::format("{} {}: {}", what, path_, db == nullptr ? "out of memory" : sqlite3_errmsg(db));
  return code == SQLITE_FULL ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::Status SqliteStateStore::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return Error("cannot write");
  return absl::OkStatus();
}

absl::Status SqliteStateStore::ForEachRow(const TakeRow& take) {
  sqlite3* db = nullptr;
  const int opened =
      sqlite3_open_v2(path_.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  const auto close = [](sqlite3* connection) { sqlite3_close(connection); };
  const std::unique_ptr<sqlite3, decltype(close)> owned(db, close);
  if (opened != SQLITE_OK) return ErrorOf(db, "cannot open");
  sqlite3_stmt* select = nullptr;
  if (sqlite3_prepare_v2(db, "SELECT kind, key, value FROM rows ORDER BY kind, key", -1, &select,
                         nullptr) != SQLITE_OK) {
    return ErrorOf(db, "cannot read");
  }
  int code;
  while ((code = sqlite3_step(select)) == SQLITE_ROW) {
    v1::StateRow row;
    row.set_table(static_cast<v1::StateTable>(sqlite3_column_int(select, 0)));
    row.set_key(reinterpret_cast<const char*>(sqlite3_column_text(select, 1)),
                sqlite3_column_bytes(select, 1));
    const void* value = sqlite3_column_blob(select, 2);
    if (value != nullptr) row.set_value(value, sqlite3_column_bytes(select, 2));
    if (take(std::move(row))) continue;
    code = SQLITE_DONE;
    break;
  }
  const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : ErrorOf(db, "cannot read");
  sqlite3_finalize(select);
  return status;
}

absl::Status SqliteStateStore::Write(const v1::StateRow& row) {
  sqlite3_stmt* const statement = row.erased() ? erase_ : put_;
  sqlite3_bind_int(statement, 1, row.table());
  sqlite3_bind_text(statement, 2, row.key().data(), static_cast<int>(row.key().size()),
                    SQLITE_STATIC);
  if (!row.erased()) {
    sqlite3_bind_blob64(statement, 3, row.value().data(), row.value().size(), SQLITE_STATIC);
  }
  const int code = sqlite3_step(statement);
  const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error("cannot write");
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return status;
}

absl::StatusOr<uint64_t> SqliteStateStore::StoredTerm() {
  sqlite3_bind_int(term_, 1, v1::STATE_TABLE_META);
  absl::StatusOr<uint64_t> term = 0;
  const int code = sqlite3_step(term_);
  if (code == SQLITE_ROW) {
    const auto* const text = static_cast<const char*>(sqlite3_column_blob(term_, 0));
    term = ParseTerm({text, static_cast<size_t>(sqlite3_column_bytes(term_, 0))});
  } else if (code != SQLITE_DONE) {
    term = Error("cannot read");
  }
  sqlite3_reset(term_);
  return term;
}

absl::Status SqliteStateStore::Transact(const std::function<absl::Status(uint64_t)>& check,
                                        const std::vector<v1::StateRow>& rows) {
  absl::Status status = Execute("BEGIN IMMEDIATE");
  if (status.ok()) {
    const auto stored = StoredTerm();
    status = stored.ok() ? check(*stored) : stored.status();
  }
  for (auto row = rows.begin(); status.ok() && row != rows.end(); ++row) status = Write(*row);
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) {
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  return status;
}

absl::StatusOr<uint64_t> SqliteStateStore::BeginTerm() {
  // Nobody else writes between this reading and the transaction: the directory is locked.
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t last, StoredTerm());
  MESHRUN_RETURN_IF_ERROR(
      Transact([last](uint64_t stored) { return CheckTerm(stored, last); }, {TermRow(last + 1)}));
  return last + 1;
}

StateStore::Size SqliteStateStore::size() const {
  uint64_t bytes = 0;
  for (const char* const part : {"", "-wal"}) {
    std::error_code error;
    const auto size = std::filesystem::file_size(path_ + part, error);
    if (!error) bytes += size;
  }
  return {.bytes = bytes};
}

absl::Status SqliteStateStore::Commit(uint64_t term, const std::vector<v1::StateRow>& rows) {
  if (rows.empty()) return absl::OkStatus();
  return Transact([term](uint64_t stored) { return CheckTerm(stored, term); }, rows);
}

}  // namespace meshrun::coordinator
