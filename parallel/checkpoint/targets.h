// The tensors that a load or a restore fills, and filling them from bytes of the whole ones.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/stored_values.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun::detail {

// A tensor that gets this rank's elements of a stored one.
class Target {
 public:
  Target(FileKind kind, std::string name, TensorInfo info, at::Tensor local, CutPtr cut);

  FileKind kind() const { return kind_; }
  const std::string& name() const { return name_; }
  const TensorInfo& info() const { return info_; }
  // Bytes of the whole tensor.
  uint64_t size() const { return size_; }
  // Calls visit(begin, end) with the ranges of the whole tensor's bytes that this rank needs, in
  // order.
  void visit_needed(const std::function<void(uint64_t begin, uint64_t end)>& visit) const;
  // The elements that it needs, of the stored form.
  Region region() const;
  // Takes the bytes of the whole tensor from `from` on; what this rank does not need is left out.
  void take(uint64_t from, std::string_view bytes);
  // Takes bytes of region() alone, from `from` on.
  void take_own(uint64_t from, std::string_view bytes);
  // Where they lie, for those who write them there; undefined if they are not in the CPU's memory
  // in this order.
  at::Tensor own_bytes() const { return bytes_.bytes(); }
  // After all bytes were taken.
  void finish();

 private:
  FileKind kind_;
  std::string name_;
  TensorInfo info_;
  uint64_t size_ = 0;
  uint64_t element_ = 1;
  at::Tensor tensor_;
  at::Tensor stage_;  // for a conjugate or negative view; else undefined
  StoredValues bytes_;
  char* memory_ = nullptr;
  CutPtr cut_;
};

// Everything that a checkpoint with these contents fills: the parts themselves, and new moments,
// which commit() gives to the optimizer.
class Targets {
 public:
  // `outlines`: tensors that there are. The optimizer must have its options already, since the
  // names of moments depend on them.
  Targets(const Parts& parts, torch::optim::Optimizer& optimizer, const ByFile<Outline>& outlines);

  std::vector<Target>& list() { return list_; }
  void commit();

 private:
  struct State {
    const Part* part = nullptr;
    ParameterState state;
    at::Tensor step;  // a count, or undefined
  };

  torch::optim::Optimizer& optimizer_;
  std::vector<Target> list_;
  std::vector<State> states_;
};

}  // namespace meshrun::detail
