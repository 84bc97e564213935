// Commits batches of any size to a store whose transactions are small.
//
// A batch that fits is one transaction. A larger one is written in parts beside the state, and one
// small transaction then says that they are whole: it is the moment of the commit. After it the
// rows are moved to their places, in as many transactions as that takes. ForEachRow counts what is
// whole and not yet moved, so a crash between any two transactions leaves the batch before or the
// batch after. A batch that changes the term does so in that one transaction: the term is never
// staged, because what moves the rows is committed in the term that holds then.
//
// A value that alone exceeds a transaction is kept in pieces.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/state_store/state_store.h"

namespace meshrun::coordinator {

class BatchedStateStore : public StateStore {
 public:
  explicit BatchedStateStore(std::unique_ptr<StateStore> store) : store_(std::move(store)) {}

  // Also finishes what a crash has left.
  absl::StatusOr<uint64_t> BeginTerm() override;
  absl::Status ForEachRow(const TakeRow& take) override;
  absl::Status ForEachRowOf(v1::StateTable table, const TakeRow& take) override;
  absl::Status Commit(uint64_t term, const std::vector<v1::StateRow>& rows) override;
  Size size() const override { return store_->size(); }

 private:
  using Key = std::pair<int, std::string>;
  using Rows = std::vector<v1::StateRow>;
  struct Contents;

  static absl::StatusOr<Contents> Read(const Rows& raw);
  // Learns from the store what a crash or an error has left, and finishes it.
  absl::Status Recover(uint64_t term);
  // Adds the rows that put `row` in its place: several where its value, or the one before, is in
  // pieces.
  void Place(const v1::StateRow& row, Rows* out);
  bool Fits(const Rows& rows) const;
  absl::Status Write(uint64_t term, const Rows& rows);
  // Returns the term that holds from then on.
  absl::StatusOr<uint64_t> Stage(uint64_t term, const Rows& rows);
  // Moves what is staged to its place.
  absl::Status Move(uint64_t term);
  absl::Status CommitInTurn(uint64_t term, const Rows& rows);

  const std::unique_ptr<StateStore> store_;
  // What moves the staged batch to its place; with the number of its parts.
  Rows moves_;
  size_t parts_ = 0;
  // What the members here say is known: a term has begun, or rows were committed before one.
  bool recovered_ = false;
  // A transaction has failed: whether it is on disk is not known.
  bool in_doubt_ = false;
  // How many pieces a value has; absent: it is whole.
  std::map<Key, size_t> pieces_;
};

}  // namespace meshrun::coordinator
