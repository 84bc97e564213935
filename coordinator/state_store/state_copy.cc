#include "coordinator/state_store/state_copy.h"

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "coordinator/state_store/meta_keys.h"
#include "core/log.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

struct MetaRows {
  absl::StatusOr<uint64_t> term = 0;
  std::optional<std::string> copy;
  std::set<std::string, std::less<>> confirmed;
  bool is_outdated = false;
};

absl::StatusOr<MetaRows> ReadMeta(StateStore& store) {
  MetaRows out;
  const auto take = [&out](v1::StateRow row) {
    if (row.key() == TermRow(0).key()) out.term = ParseTerm(row.value());
    if (row.key() == kCopyKey) out.copy = row.value();
    if (row.key().starts_with(kConfirmedPrefix)) {
      out.confirmed.insert(row.key().substr(kConfirmedPrefix.size()));
    }
    out.is_outdated |= row.key() == kOutdatedKey;
    return true;
  };
  MESHRUN_RETURN_IF_ERROR(store.ForEachRowOf(v1::STATE_TABLE_META, take));
  MESHRUN_RETURN_IF_ERROR(out.term.status());
  return out;
}

}  // namespace

v1::StateRow CopyRow(const std::string& name) { return MetaRow(kCopyKey, name); }

absl::StatusOr<bool> IsCopy(StateStore& store) {
  MESHRUN_ASSIGN_OR_RETURN(const MetaRows meta, ReadMeta(store));
  return meta.copy.has_value();
}

absl::StatusOr<bool> IsRollCallOver(StateStore& store, uint64_t term) {
  MESHRUN_ASSIGN_OR_RETURN(const MetaRows meta, ReadMeta(store));
  return !meta.copy.has_value() && *meta.term == term;
}

absl::Status DeclareCopy(StateStore& store, const Restored& restored) {
  MESHRUN_ASSIGN_OR_RETURN(const MetaRows meta, ReadMeta(store));
  const std::string& name = restored.name;
  // No coordinator has begun a term here, so there is no state to declare.
  if (*meta.term == 0 && !meta.copy.has_value()) return absl::OkStatus();
  // A roll call that was begun under another name, or under none, is this restore's from now on.
  if (meta.copy.has_value() && (name.empty() || *meta.copy == name)) return absl::OkStatus();
  if (!meta.copy.has_value() && !meta.is_outdated) {
    if (!name.empty() && meta.confirmed.contains(name)) {
      log::Info("the roll call of this restore is over: --restored does nothing", {{"name", name}});
      return absl::OkStatus();
    }
    if (name.empty() && restored.is_in_use) {
      MESHRUN_ASSIGN_OR_RETURN(const bool is_in_use, restored.is_in_use());
      if (is_in_use) return absl::OkStatus();
    }
  }
  return store.Commit(*meta.term, {CopyRow(name)});
}

}  // namespace meshrun::coordinator
