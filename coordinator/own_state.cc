#include "coordinator/own_state.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "coordinator/state_store/sqlite_state_store.h"
#include "coordinator/state_store/state_copy.h"
#include "core/status.h"

namespace meshrun::coordinator {

absl::StatusOr<std::unique_ptr<StateStore>> OpenOwnState(const StateFlags& flags) {
  const std::string file = flags.state_dir + "/state.sqlite";
  std::error_code error;
  if (flags.restored && (std::filesystem::file_size(file, error) == 0 || error)) {
    return absl::NotFoundError(
        fmt::format("--restored: there is no state in {}: copy the backup to this name", file));
  }
  MESHRUN_ASSIGN_OR_RETURN(std::unique_ptr<StateStore> store,
                           SqliteStateStore::Open(flags.state_dir));
  if (flags.restored) {
    MESHRUN_RETURN_IF_ERROR(DeclareCopy(*store, {.name = flags.restored_name}));
  }
  return store;
}

}  // namespace meshrun::coordinator
