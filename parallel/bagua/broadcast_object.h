// Sends an object from one rank to all others.
//
//   at::IValue state = comm.rank() == 0 ? at::IValue(optimizer_state()) : at::IValue();
//   state = broadcast_object(state);
//
// Objects are what torch::pickle_save() takes: tensors, numbers, strings, lists, tuples, dicts and
// optionals of them, at any depth; not streams, generators, futures or capsules. Only src's `obj`
// is used. Returns src's own object at src and a copy of it on other ranks; a tensor arrives on the
// device that it was on. The size is sent first, then the bytes, through the communicator's backend
// for the CPU.
//
// Errors: ObjectError with the reason: on every rank if src cannot write the object, on the one
// rank that cannot read it. Otherwise as in collectives.h.
//
// Corresponds to bagua.torch_api.communication.broadcast_object.
#pragma once

#include "ATen/core/ivalue.h"
#include "c10/util/Exception.h"
#include "parallel/bagua/communicator.h"
#include "parallel/base/arguments.h"

namespace meshrun::bagua {

// An object cannot be written as bytes, or read from them.
class ObjectError : public c10::ValueError {
  using ValueError::ValueError;
};

c10::IValue broadcast_object(const c10::IValue& obj, IntArgument src = 0,
                             const Communicator& comm = {});

}  // namespace meshrun::bagua
