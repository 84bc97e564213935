// Bagua's collectives as operators: torch.ops.meshrun.bagua_allreduce and so on, which
// meshrun/communication.py calls.
//
// They write into their arguments (`Tensor(a!)`) and return nothing, so that compiled programs keep
// them, in order. The last argument is a handle's key; "" is the default group's global
// communicator. There are no gradients. Fake tensors send nothing; meta and sparse ones are wrong
// arguments. Errors: parallel/bagua/collectives.h; GroupError for a key that no handle has.
#pragma once

#include <string>

#include "parallel/bagua/communicator.h"

namespace meshrun::python {

// A handle of a communicator that operators find by its key while the handle lives. Keys are unique
// in the process, and names are not: a world that is joined after cleanup() uses names again, and
// the operators of a handle from the world before must raise.
class KeyedCommunicator {
 public:
  explicit KeyedCommunicator(bagua::Communicator communicator);
  ~KeyedCommunicator();
  KeyedCommunicator(const KeyedCommunicator&) = delete;
  KeyedCommunicator& operator=(const KeyedCommunicator&) = delete;

  const bagua::Communicator& get() const { return communicator_; }
  const std::string& key() const { return key_; }

 private:
  const bagua::Communicator communicator_;
  const std::string key_;
};

bagua::Communicator communicator_of(const std::string& key);

}  // namespace meshrun::python
