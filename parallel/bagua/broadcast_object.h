// An object from one rank to all others.
//
//   at::IValue state = comm.rank() == 0 ? at::IValue(optimizer_state()) : at::IValue();
//   state = broadcast_object(state);
//
// What torch::pickle_save() takes: tensors, numbers, strings, lists, tuples, dicts and optionals of
// them, at any depth; not streams, generators, futures or capsules. Other ranks' `obj` is not
// looked at. Returns src's own object at src, a copy of it elsewhere; a tensor comes on the device
// that it was on. Its size goes first, then its bytes, through the communicator's backend for the
// CPU.
//
// Errors: ObjectError on every rank, with the reason, where src cannot write the object; on a rank
// that cannot read it, there. Else as in collectives.h.
//
// Corresponds to bagua.torch_api.communication.broadcast_object.
#pragma once

#include "ATen/core/ivalue.h"
#include "c10/util/Exception.h"
#include "parallel/bagua/communicator.h"

namespace meshrun::bagua {

// An object cannot be written as bytes, or read from them.
class ObjectError : public c10::ValueError {
  using ValueError::ValueError;
};

c10::IValue broadcast_object(const c10::IValue& obj, int src = 0, const Communicator& comm = {});

}  // namespace meshrun::bagua
