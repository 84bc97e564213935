#include "coordinator/state_store/import_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/state_store/meta_keys.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "coordinator/state_store/state_copy.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

// A directory that goes with this object.
class Scratch {
 public:
  Scratch() {
    std::string path = (std::filesystem::temp_directory_path() / "meshrun-import-XXXXXX").string();
    if (::mkdtemp(path.data()) != nullptr) path_ = std::move(path);
  }
  ~Scratch() {
    if (!path_.empty()) (void)os::RemoveTree(path_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // Empty: it could not be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool IsSqlite(const std::string& file) {
  constexpr std::string_view kBegin("SQLite format 3\0", 16);
  std::string begin(kBegin.size(), ' ');
  std::ifstream(file, std::ios::binary)
      .read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == kBegin;
}

absl::Status NotABackup(const std::string& file) {
  return absl::InvalidArgumentError(fmt::format(
      "{} is not a backup of meshrun's state: name a file that `meshrun backup` has written",
      file));
}

// From a copy: reading changes the file, where an older meshrun has written it.
absl::StatusOr<std::vector<v1::StateRow>> RowsOf(const std::string& file) {
  std::error_code error;
  if (std::filesystem::file_size(file, error) == 0 || error) {
    return absl::NotFoundError(fmt::format(
        "{}: {}", file, error ? error.message() : "the file is empty: name that of a backup"));
  }
  if (::access(file.c_str(), R_OK) != 0) return os::ErrnoStatus(errno, file);
  if (!IsSqlite(file)) return NotABackup(file);
  const Scratch scratch;
  if (scratch.path().empty() ||
      !std::filesystem::copy_file(file, scratch.path() + "/state.sqlite", error)) {
    return absl::InternalError(
        fmt::format("{}: cannot be copied to the directory for temporary files", file));
  }
  auto copy = SqliteStateStore::Open(scratch.path());
  if (absl::IsInternal(copy.status())) return NotABackup(file);
  if (!copy.ok()) return Annotate(copy.status(), file);
  auto loaded = (*copy)->Load();
  if (!loaded.ok()) return NotABackup(file);
  std::vector<v1::StateRow> rows = *std::move(loaded);
  // Terms and roll calls of the state that the file was copied from are not those of the copy.
  std::erase_if(rows, [](const v1::StateRow& row) {
    return row.table() == v1::STATE_TABLE_META &&
           (row.key() == TermRow(0).key() || row.key() == kCopyKey ||
            row.key().starts_with(kConfirmedPrefix));
  });
  if (rows.empty()) return NotABackup(file);
  return rows;
}

}  // namespace

absl::Status ImportState(const std::string& file, StateStore& store) {
  bool is_empty = true;
  MESHRUN_RETURN_IF_ERROR(store.ForEachRow([&is_empty](const v1::StateRow&) {
    is_empty = false;
    return false;
  }));
  if (!is_empty) {
    return absl::AlreadyExistsError(
        "there is a state already: leave --import out to go on with it, or name another prefix");
  }
  MESHRUN_ASSIGN_OR_RETURN(std::vector<v1::StateRow> rows, RowsOf(file));
  rows.push_back(CopyRow(/*name=*/""));
  return store.Commit(0, rows);
}

absl::Status CheckImport(const std::string& file) { return RowsOf(file).status(); }

}  // namespace meshrun::coordinator
