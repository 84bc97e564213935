// A call of the backend on its way from tensors to the engine's operation: its description, what
// the ranks must agree on, and this rank's pieces of memory. Internal to backend*.cc.
//
// The methods of c10d::Backend fill one in. What is wrong with the arguments becomes a text in it,
// never an exception: the plan is submitted all the same, since the other ranks wait for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ATen/core/DimVector.h"
#include "absl/container/inlined_vector.h"
#include "parallel/base/strided_span.h"
#include "parallel/comm/interface/call_check.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/ucx/backend.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/protocol/header_check.h"
#include "parallel/comm/ucx/work.h"

namespace meshrun {

struct UcxBackend::Plan : CallCheck {
  // `results`: what the Work gives; the call writes to them.
  explicit Plan(CollectiveSpec&& described, at::ArrayRef<at::Tensor> outputs = {})
      : CallCheck(std::move(described.problem)),
        spec(std::move(described)),
        scope(CallScope::current_name()),
        results(outputs.begin(), outputs.end()) {}

  // cut.sizes: elements of the pieces, by rank, where all ranks know them; dim -1: of whole
  // tensors.
  CollectiveSpec spec;
  CallScope::Name scope;     // of the function that the program has called; none: of this call
  uint64_t node_number = 0;  // NodeNumber::current() of the call

  // Equal on all ranks, beside what `spec` has.
  std::optional<DType> dtype;
  int64_t bytes = 0;  // all pieces together, where all ranks know them
  // A tensor's that all have; digested where `shape_agrees`. -1: an extent of its own per rank.
  at::DimVector shape;
  bool shape_agrees = false;
  Reduction reduction;
  // Compared pair by pair. Of every all-to-all: its ranks know their own sizes alone.
  ucx::PieceSizes own_sizes;

  // Point to point.
  int peer = -1;
  int64_t user_tag = 0;

  // This rank's memory, and how it travels.
  ucx::InputSpans inputs;
  ucx::OutputSpans outputs;
  absl::InlinedVector<int64_t, 4> input_cuts, output_cuts;  // Piece::cut of each
  bool in_place = false;

  absl::InlinedVector<at::Tensor, 2> owners;               // of that memory
  std::vector<std::pair<at::Tensor, at::Tensor>> to_copy;  // to a tensor, from a temporary
  UcxWork::Results results;

  // Dense, on the CPU, of the other tensors' dtype. `name` is the argument's.
  bool takes(const at::Tensor& tensor, std::string_view name);
  bool takes_output(const at::Tensor& tensor, std::string_view name);
  // All ranks have a part as large as `part`.
  void agree_on_equal_parts(const at::Tensor& part, int size);
  // By spec.op, of the dtype of the tensors taken so far.
  void reduces(int size);

  // Pieces. `rows`: slices of a tensor are used where they lie; else only what is contiguous is.
  enum class Form { kRows, kContiguous };
  void read(const at::Tensor& tensor, Form form);
  void write(const at::Tensor& tensor, Form form);
  // Read and written.
  StridedSpan update(const at::Tensor& tensor);
  // The memory of a whole tensor, of which slices are added below.
  ConstStridedSpan whole_to_read(const at::Tensor& tensor, Form form);
  StridedSpan whole_to_write(const at::Tensor& tensor, Form form);
  // `cut` as in algorithms.h; 0: nowhere.
  void add_input(const ConstStridedSpan& span, int64_t cut = 0);
  void add_output(const StridedSpan& span, int64_t cut = 0);
  // Slices of a contiguous tensor, one after the other along `dim`. They are cut where neither end
  // has to stage: between the rows that a slice has from `cut_dim` on, the inner one of the dims
  // that the two ends slice along.
  struct Slices {
    at::IntArrayRef shape;
    int64_t element_size = 0;
    int64_t dim = 0;
    at::IntArrayRef extents;
    int64_t cut_dim = 0;
  };
  void add_inputs(const ConstStridedSpan& whole, const Slices& slices);
  void add_outputs(const StridedSpan& whole, const Slices& slices);

  // Memory that is written may still be read for another rank. So what lies in the outputs, other
  // than the rank's own part which is there already, is copied and read from there.
  void keep_inputs_apart(int rank);

  bool is_point_to_point() const {
    return spec.kind == OperationKind::kSend || spec.kind == OperationKind::kReceive;
  }
  // Empty where ranks know their own sizes alone.
  at::IntArrayRef agreed_sizes() const;
  // Everything that its schedule is made from.
  using Key = absl::InlinedVector<int64_t, 64>;
  void append_key(Key& key) const;
  void append_agreed(Digest& digest) const;
  ucx::Schedule schedule(const ucx::Place& place) const;
  // Bytes of the ranks' pieces, in a gather or a scatter.
  std::vector<int64_t> piece_bytes(int size) const;
  // "all_reduce of float32 [3, 4], sum"
  std::string own_words() const;
  // With the scope: "reduce_loss (reduce of float64 [1], sum, root 0)".
  std::string words() const;
};

// Most often one.
struct UcxBackend::Plans : absl::InlinedVector<Plan, 1> {
  static std::shared_ptr<Plans> of_one(CollectiveSpec&& spec,
                                       at::ArrayRef<at::Tensor> outputs = {}) {
    auto plans = std::make_shared<Plans>();
    plans->emplace_back(std::move(spec), outputs);
    return plans;
  }
};

// A call of c10d's, described.
template <typename Options>
CollectiveSpec spec_of(OperationKind kind, const Options& options) {
  CollectiveSpec spec;
  spec.kind = kind;
  spec.timeout = options.timeout;
  spec.async = options.asyncOp;
  if constexpr (requires { options.rootRank; }) spec.root = options.rootRank;
  if constexpr (requires { options.reduceOp; }) spec.op = options.reduceOp;
  return spec;
}

inline std::function<void()> copies_of(std::vector<std::pair<at::Tensor, at::Tensor>> to_copy) {
  if (to_copy.empty()) return nullptr;
  return [to_copy = std::move(to_copy)] {
    for (const auto& [to, from] : to_copy) to.copy_(from);
  };
}

}  // namespace meshrun
