#include "coordinator/state_store/batched_state_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/parse_integer.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

constexpr char kStaged[] = "staged";
// Bytes that are reserved for a row's key, beside its value.
constexpr size_t kLongestKey = 4096;

size_t Bytes(const v1::StateRow& row) { return row.key().size() + row.value().size(); }

v1::StateRow Row(v1::StateTable table, std::string key, std::string value) {
  v1::StateRow row;
  row.set_table(table);
  row.set_key(std::move(key));
  row.set_value(std::move(value));
  return row;
}

v1::StateRow Erased(v1::StateTable table, std::string key) {
  v1::StateRow row = Row(table, std::move(key), "");
  row.set_erased(true);
  return row;
}

std::string PartKey(size_t number) { return fmt::format("{:06}", number); }

std::string PieceKey(const v1::StateRow& row, size_t number) {
  return fmt::format("{}/{}/{:06}", static_cast<int>(row.table()), row.key(), number);
}

// Row and piece that such a key names.
struct Piece {
  int table = 0;
  std::string key;
  size_t number = 0;
};

std::optional<Piece> ParsePieceKey(std::string_view key) {
  const size_t first = key.find('/'), last = key.rfind('/');
  if (first == last) return std::nullopt;
  const auto table = ParseInteger<int>(key.substr(0, first));
  const auto number = ParseInteger<size_t>(key.substr(last + 1));
  if (!table || !number) return std::nullopt;
  return Piece{*table, std::string(key.substr(first + 1, last - first - 1)), *number};
}

absl::Status Damaged(const v1::StateRow& row) {
  return absl::DataLossError(fmt::format(
      "the state is damaged: table {}, key '{}' cannot be read; restore the state from a copy",
      v1::StateTable_Name(row.table()), row.key()));
}

}  // namespace

// What a store holds.
struct BatchedStateStore::Contents {
  std::map<Key, std::string> rows;
  std::map<Key, size_t> pieces;
  // Rows of a staged batch, if it is whole.
  Rows staged;
  size_t parts = 0;
  // Above the number of every part that is there, whether its batch is whole or not.
  size_t all_parts = 0;
};

absl::StatusOr<BatchedStateStore::Contents> BatchedStateStore::Read(const Rows& raw) {
  Contents out;
  std::string batch;
  for (const v1::StateRow& row : raw) {
    if (row.table() == v1::STATE_TABLE_META && row.key() == kStaged) {
      const auto parts = ParseInteger<size_t>(row.value());
      if (!parts) return Damaged(row);
      out.parts = *parts;
    } else if (row.table() == v1::STATE_TABLE_STAGED) {
      // In the order of their numbers. META comes before.
      const auto number = ParseInteger<size_t>(row.key());
      if (!number) return Damaged(row);
      if (*number < out.parts) batch += row.value();
      out.all_parts = *number + 1;
    } else if (row.table() == v1::STATE_TABLE_PIECES) {
      const std::optional<Piece> piece = ParsePieceKey(row.key());
      if (!piece) return Damaged(row);
      const Key key = {piece->table, piece->key};
      out.rows[key] += row.value();
      // Some may be gone already.
      out.pieces[key] = piece->number + 1;
    } else {
      out.rows[{row.table(), row.key()}] = row.value();
    }
  }
  v1::StateBatch staged;
  if (!staged.ParseFromString(batch)) {
    return absl::DataLossError(fmt::format(
        "the state is damaged: a batch of {} parts cannot be read; restore the state from a copy",
        out.parts));
  }
  out.staged.assign(staged.rows().begin(), staged.rows().end());
  return out;
}

absl::StatusOr<uint64_t> BatchedStateStore::BeginTerm() {
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t term, store_->BeginTerm());
  MESHRUN_RETURN_IF_ERROR(Recover(term));
  return term;
}

absl::Status BatchedStateStore::Recover(uint64_t term) {
  // Nothing changes between these reads: the store has a new term, or Commit has written.
  Rows raw;
  for (const v1::StateTable table :
       {v1::STATE_TABLE_META, v1::STATE_TABLE_STAGED, v1::STATE_TABLE_PIECES}) {
    MESHRUN_RETURN_IF_ERROR(store_->ForEachRowOf(table, [&raw](v1::StateRow row) {
      raw.push_back(std::move(row));
      return true;
    }));
  }
  MESHRUN_ASSIGN_OR_RETURN(Contents contents, Read(raw));
  pieces_ = std::move(contents.pieces);
  parts_ = std::max(contents.parts, contents.all_parts);
  moves_.clear();
  for (const v1::StateRow& row : contents.staged) Place(row, &moves_);
  MESHRUN_RETURN_IF_ERROR(Move(term));
  in_doubt_ = false;
  recovered_ = true;
  return absl::OkStatus();
}

absl::Status BatchedStateStore::ForEachRow(const TakeRow& take) {
  MESHRUN_ASSIGN_OR_RETURN(const Rows raw, store_->Load());
  MESHRUN_ASSIGN_OR_RETURN(Contents contents, Read(raw));
  for (const v1::StateRow& row : contents.staged) {
    if (row.erased()) {
      contents.rows.erase({row.table(), row.key()});
    } else {
      contents.rows[{row.table(), row.key()}] = row.value();
    }
  }
  for (auto& [key, value] : contents.rows) {
    if (!take(Row(static_cast<v1::StateTable>(key.first), key.second, std::move(value)))) break;
  }
  return absl::OkStatus();
}

absl::Status BatchedStateStore::ForEachRowOf(v1::StateTable table, const TakeRow& take) {
  const auto piece = pieces_.lower_bound({table, ""});
  const bool has_pieces = piece != pieces_.end() && piece->first.first == table;
  if (!recovered_ || in_doubt_ || parts_ != 0 || has_pieces) {
    return StateStore::ForEachRowOf(table, take);
  }
  return store_->ForEachRowOf(table, take);
}

void BatchedStateStore::Place(const v1::StateRow& row, Rows* out) {
  const Key key = {row.table(), row.key()};
  const size_t before = pieces_.contains(key) ? pieces_.at(key) : 0;
  const size_t most = store_->limits().bytes;
  size_t pieces = 0;
  if (row.erased() || Bytes(row) <= most) {
    out->push_back(row);
    pieces_.erase(key);
  } else {
    const size_t size = most - std::min(most / 2, kLongestKey);
    for (size_t at = 0; at < row.value().size(); at += size) {
      out->push_back(
          Row(v1::STATE_TABLE_PIECES, PieceKey(row, pieces++), row.value().substr(at, size)));
    }
    out->push_back(Erased(row.table(), row.key()));
    pieces_[key] = pieces;
  }
  for (size_t i = pieces; i < before; ++i) {
    out->push_back(Erased(v1::STATE_TABLE_PIECES, PieceKey(row, i)));
  }
}

bool BatchedStateStore::Fits(const Rows& rows) const {
  size_t bytes = 0;
  for (const v1::StateRow& row : rows) {
    bytes += Bytes(row);
    if (pieces_.contains({row.table(), row.key()})) return false;
  }
  return rows.size() <= store_->limits().rows && bytes <= store_->limits().bytes;
}

absl::Status BatchedStateStore::Commit(uint64_t term, const Rows& rows) {
  if (in_doubt_) {
    // What failed may be on its way still. After another transaction it changes nothing.
    if (term != 0) MESHRUN_RETURN_IF_ERROR(store_->Commit(term, {TermRow(term)}));
    MESHRUN_RETURN_IF_ERROR(Recover(term));
  } else if (!recovered_) {
    // Before a term is begun. A former leader may be at it still: these rows, written now, refuse
    // what it writes from here on. What a crash has left would be moved over them later, so they
    // are written again after it.
    if (Fits(rows)) MESHRUN_RETURN_IF_ERROR(Write(term, rows));
    MESHRUN_RETURN_IF_ERROR(Recover(term));
  }
  if (Fits(rows)) return Write(term, rows);
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t term_after, Stage(term, rows));
  // It is committed. What fails from here on is done before the next batch, which it must not undo.
  (void)Move(term_after);
  return absl::OkStatus();
}

absl::Status BatchedStateStore::Write(uint64_t term, const Rows& rows) {
  absl::Status status = store_->Commit(term, rows);
  in_doubt_ |= !status.ok();
  return status;
}

absl::StatusOr<uint64_t> BatchedStateStore::Stage(uint64_t term, const Rows& rows) {
  v1::StateBatch batch;
  Rows marker;
  uint64_t term_after = term;
  for (const v1::StateRow& row : rows) {
    if (row.table() == v1::STATE_TABLE_META && row.key() == TermRow(0).key()) {
      MESHRUN_ASSIGN_OR_RETURN(term_after, ParseTerm(row.value()));
      marker = {row};
    } else {
      *batch.add_rows() = row;
    }
  }
  const std::string bytes = batch.SerializeAsString();
  const size_t size = store_->limits().bytes - 64;
  size_t parts = 0;
  for (size_t at = 0; at < bytes.size(); at += size) {
    MESHRUN_RETURN_IF_ERROR(
        Write(term, {Row(v1::STATE_TABLE_STAGED, PartKey(parts++), bytes.substr(at, size))}));
  }
  marker.push_back(Row(v1::STATE_TABLE_META, kStaged, std::to_string(parts)));
  MESHRUN_RETURN_IF_ERROR(Write(term, marker));
  moves_.clear();
  for (const v1::StateRow& row : batch.rows()) Place(row, &moves_);
  parts_ = parts;
  return term_after;
}

absl::Status BatchedStateStore::Move(uint64_t term) {
  if (parts_ == 0) return absl::OkStatus();
  MESHRUN_RETURN_IF_ERROR(CommitInTurn(term, moves_));
  MESHRUN_RETURN_IF_ERROR(Write(term, {Erased(v1::STATE_TABLE_META, kStaged)}));
  Rows parts;
  for (size_t i = 0; i < parts_; ++i) parts.push_back(Erased(v1::STATE_TABLE_STAGED, PartKey(i)));
  MESHRUN_RETURN_IF_ERROR(CommitInTurn(term, parts));
  moves_.clear();
  parts_ = 0;
  return absl::OkStatus();
}

absl::Status BatchedStateStore::CommitInTurn(uint64_t term, const Rows& rows) {
  const Limits limits = store_->limits();
  Rows transaction;
  size_t bytes = 0;
  for (const v1::StateRow& row : rows) {
    if (transaction.size() == limits.rows || bytes + Bytes(row) > limits.bytes) {
      MESHRUN_RETURN_IF_ERROR(Write(term, transaction));
      transaction.clear();
      bytes = 0;
    }
    bytes += Bytes(row);
    transaction.push_back(row);
  }
  return Write(term, transaction);
}

}  // namespace meshrun::coordinator
