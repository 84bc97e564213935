// Methods of torch.Tensor that would need the memory of a whole tensor: numpy() and tolist(). They
// raise ShardTensorError for sharded tensors, with what to call in their place.
//
// They are C functions, as PyTorch's own are: torch.compile takes a function of Python's in their
// place for part of the program.
#pragma once

namespace meshrun::python {

// Once per process; with the interpreter lock.
void refuse_memory_of_sharded_tensors();

}  // namespace meshrun::python
