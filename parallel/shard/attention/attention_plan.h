// Which keys meet which queries in attention over a cut sequence, and where each block of keys is
// at each step of a ring.
//
// Pure, without LibTorch. The sequence is cut in rank order: rank r has the queries and the block
// of keys that follow those of rank r - 1. Pieces may be empty. Causal attention lets query i see
// keys j <= i, both counted in the whole sequence, as LibTorch does.
//
// The ring: block b starts on rank b and moves one rank up per step, with its values, as far as the
// last rank that needs it. Going back, its gradient follows one step behind, and returns from the
// last rank straight to rank b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshrun {

// A rectangle of queries and keys, counted within their piece and block, that attention computes in
// one go. is_causal: query i sees keys j <= i, both counted within the tile; else all of them.
struct AttentionTile {
  int64_t query_begin = 0;
  int64_t query_size = 0;
  int64_t key_begin = 0;
  int64_t key_size = 0;
  bool is_causal = false;

  bool operator==(const AttentionTile&) const = default;
};

// The tiles in which a piece of queries sees a block of keys; none where it sees no key. Offsets
// are those of the first query and key in the whole sequence. At most two tiles, disjoint in their
// keys; together they cover exactly the pairs that are allowed.
std::vector<AttentionTile> cut_attention(int64_t query_offset, int64_t query_size,
                                         int64_t key_offset, int64_t key_size, bool is_causal);

class RingPlan {
 public:
  // One size per rank. `first_query`: where the queries of rank 0 begin in the whole sequence, if
  // this group holds only a part of them.
  RingPlan(std::vector<int64_t> query_sizes, std::vector<int64_t> key_sizes, bool is_causal,
           int64_t first_query = 0);

  int world() const { return static_cast<int>(key_sizes_.size()); }
  int64_t key_size(int block) const { return key_sizes_[static_cast<size_t>(block)]; }
  // Steps 0 .. num_steps() - 1 attend; at least one.
  int num_steps() const { return num_steps_; }
  // The block that `rank` holds at `step`; -1 where none has come.
  int block_at(int rank, int step) const;
  // How `rank` attends to the block it holds at `step`. Empty: nothing to compute.
  std::vector<AttentionTile> tiles_at(int rank, int step) const;

  // What `rank` sends while it computes `step`.
  // The block whose keys and values go to the next rank up; -1: none.
  int keys_sent(int rank, int step) const;
  // The block whose gradient leaves, finished here at the step before, and where to; -1: none.
  struct Sent {
    int block = -1;
    int to = -1;
  };
  Sent gradients_sent(int rank, int step) const;
  // Exchanges of the backward pass: two more steps' worth than blocks travel, since gradients
  // follow one step behind and then return. 0 where no block travels.
  int num_backward_exchanges() const { return num_steps_ == 1 ? 0 : num_steps_ + 1; }

 private:
  int block_of(int rank, int step) const;

  std::vector<int64_t> query_sizes_;
  std::vector<int64_t> key_sizes_;
  std::vector<int64_t> query_offsets_;
  std::vector<int64_t> key_offsets_;
  bool is_causal_;
  std::vector<int> reach_;  // of each block: how many ranks up it travels
  int num_steps_ = 1;
};

}  // namespace meshrun
