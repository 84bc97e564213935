// Tells the backward calls of one autograd node from those of another.
//
// A node's backward calls its collective on all ranks or on none. Where some ranks' losses do not
// reach a node, or a tensor wants a gradient on some ranks alone, calls of equal shapes would pair
// up, and the gradients of one node would be added to those of another. So a node takes a number
// when it is made, and the calls of its backward are compared with it:
//
//   forward:   ctx keeps number_of_node(group, device)              (call_comparer.h)
//   backward:  const NodeNumber::Scope scope(the kept number);    then the calls
//
// The number is the group's last operation, and how many nodes have taken one since. Ranks whose
// nodes differ agree again after the group's next operation. A call in no node's backward says that
// too, so it never pairs up with one that is in a backward pass. Ranks compare what is told, in
// calls of one group: a traced graph tells nothing, and agrees with all.
//
// Nodes of parallel/collectives, fft and sync_batch_norm have numbers. Sharded tensors and other
// people have nodes without: their calls are in no node's backward.
//
// Threads: a scope is its thread's. No errors.
#pragma once

#include <cstdint>
#include <string>

namespace meshrun {

class NodeNumber {
 public:
  class Scope;

  // What current() returns beside a node's number.
  static constexpr uint64_t kUntold = 0;
  static constexpr uint64_t kInNoNode = uint64_t{1} << 48;

  // That of no node.
  NodeNumber() = default;
  // Agrees with all: the node is not known.
  static NodeNumber untold();
  // For the `nodes`th node after an operation. `serial`: the backend's; nodes > 0.
  NodeNumber(uint64_t serial, uint64_t operation, uint64_t nodes);
  // What packed() gave.
  explicit NodeNumber(int64_t packed) : packed_(static_cast<uint64_t>(packed)) {}
  int64_t packed() const { return static_cast<int64_t>(packed_); }

  // Another one for each backend of this process.
  static uint64_t new_serial();
  // The number of the node whose backward this thread runs, if it is of that backend.
  static uint64_t current(uint64_t serial);
  // How an error names what current() has returned; may be empty.
  static std::string words(uint64_t number);

 private:
  uint64_t packed_ = 0;  // 16 bits of the serial, 36 of the operation, 12 of the nodes
};

class NodeNumber::Scope {
 public:
  explicit Scope(const NodeNumber& number);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const NodeNumber before_;
};

}  // namespace meshrun
