#include "parallel/bagua/collectives.h"

#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/bagua/flat_call.h"

namespace meshrun::bagua {
namespace {

using detail::FlatCall;
using Kind = OperationKind;
using Tensors = FlatCall::Tensors;
using WorkPtr = FlatCall::WorkPtr;

int64_t count_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; }

// Whether counts and displacements name parts of `tensor`, one for each rank.
bool takes_parts(FlatCall& call, const at::Tensor& tensor, std::string_view name,
                 const std::vector<int64_t>& counts, const std::vector<int64_t>& displs) {
  const auto size = static_cast<size_t>(call.size());
  if (!call.require(counts.size() == size && displs.size() == size, [&] {
        return fmt::format(
            "{}_counts has {} entries and {}_displs {} in a communicator of {} ranks", name,
            counts.size(), name, displs.size(), size);
      })) {
    return false;
  }
  for (size_t rank = 0; rank < size; ++rank) {
    const int64_t count = counts[rank], displ = displs[rank], all = tensor.numel();
    if (!call.require(count >= 0 && displ >= 0 && displ <= all && count <= all - displ, [&] {
          return fmt::format(
              "{} elements from {} on, {}'s part for rank {}, are not in the tensor's "
              "{}",
              count, displ, name, rank, all);
        })) {
      return false;
    }
  }
  return true;
}

bool are_disjoint(FlatCall& call, const std::vector<int64_t>& counts,
                  const std::vector<int64_t>& displs) {
  for (size_t a = 0; a < counts.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const bool apart = counts[a] == 0 || counts[b] == 0 || displs[a] + counts[a] <= displs[b] ||
                         displs[b] + counts[b] <= displs[a];
      if (!call.require(apart, [&] {
            return fmt::format(
                "the parts to receive from ranks {} and {} overlap: counts [{}], "
                "displacements [{}]",
                b, a, fmt::join(counts, ", "), fmt::join(displs, ", "));
          })) {
        return false;
      }
    }
  }
  return true;
}

FlatCall::Tensors parts_of(const at::Tensor& flat, const std::vector<int64_t>& counts,
                           const std::vector<int64_t>& displs) {
  FlatCall::Tensors parts;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(flat.narrow(0, displs[rank], counts[rank]));
  }
  return parts;
}

bool takes_list(FlatCall& call, const Tensors& tensors) {
  call.require(!tensors.empty(), [] { return std::string("the list of tensors is empty"); });
  for (size_t i = 0; i < tensors.size(); ++i) {
    call.takes_output(tensors[i], fmt::format("tensor {}", i));
  }
  call.agree(tensors);
  return !tensors.empty();
}

// The calls below, which have checked their arguments. send and recv may be the same tensor.

void run_all_reduce(FlatCall& call, const at::Tensor& send, const at::Tensor& recv) {
  call.can_be_reduced(send);
  call.agree(send, count_of(send));
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {call.to_reduce_in(call.flat_to_update(recv, send))};
    return backend.allreduce(tensors, call.options<c10d::AllreduceOptions>());
  });
}

void run_reduce(FlatCall& call, const at::Tensor& send, const at::Tensor& recv) {
  call.can_be_reduced(send);
  call.agree(send, count_of(send));
  call.run([&](c10d::Backend& backend) {
    at::Tensor flat = call.is_root() ? call.flat_to_update(recv, send) : call.flat_to_read(send);
    // At other ranks it is only read; but some backends compute in it.
    if (!call.is_root() && !call.keeps_inputs()) flat = flat.clone();
    Tensors tensors = {call.to_reduce_in(flat)};
    return backend.reduce(tensors, call.options<c10d::ReduceOptions>());
  });
}

// `all`: at the root alone.
WorkPtr gather_blocks(const FlatCall& call, c10d::Backend& backend, const at::Tensor& own,
                      const std::optional<Tensors>& all) {
  Tensors inputs = {own};
  std::vector<Tensors> outputs;
  if (all) outputs.push_back(*all);
  return backend.gather(outputs, inputs, call.options<c10d::GatherOptions>());
}

WorkPtr scatter_blocks(const FlatCall& call, c10d::Backend& backend, const at::Tensor& own,
                       const std::optional<Tensors>& all) {
  Tensors outputs = {own};
  std::vector<Tensors> inputs;
  if (all) inputs.push_back(*all);
  return backend.scatter(outputs, inputs, call.options<c10d::ScatterOptions>());
}

at::Tensor to_broadcast(FlatCall& call, const at::Tensor& tensor) {
  return call.moved(call.is_root() ? call.flat_to_read(tensor) : call.flat_to_write(tensor));
}

}  // namespace

void allreduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, ReduceOp op,
               const Communicator& comm) {
  FlatCall call(comm, "allreduce", Kind::kAllReduce);
  call.with_op(op).takes_both(send_tensor, 1, recv_tensor, 1);
  run_all_reduce(call, send_tensor, recv_tensor);
}

void allreduce_inplace(const at::Tensor& tensor, ReduceOp op, const Communicator& comm) {
  FlatCall call(comm, "allreduce_inplace", Kind::kAllReduce);
  call.with_op(op).takes_output(tensor, "tensor");
  run_all_reduce(call, tensor, tensor);
}

void allreduce_coalesced_inplace(const Tensors& tensors, ReduceOp op, const Communicator& comm) {
  FlatCall call(comm, "allreduce_coalesced_inplace", Kind::kAllReduce);
  if (takes_list(call.with_op(op), tensors)) {
    for (const at::Tensor& tensor : tensors) call.can_be_reduced(tensor);
  }
  call.run([&](c10d::Backend& backend) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(call.to_reduce_in(call.flat_to_update(tensor)));
    }
    return backend.allreduce_coalesced(flat, call.options<c10d::AllreduceCoalescedOptions>());
  });
}

void reduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            ReduceOp op, const Communicator& comm) {
  FlatCall call(comm, "reduce", Kind::kReduce);
  call.with_op(op).with_root(dst, "dst");
  call.is_root() ? call.takes_both(send_tensor, 1, recv_tensor, 1)
                 : call.takes(send_tensor, "send_tensor");
  run_reduce(call, send_tensor, recv_tensor);
}

void reduce_inplace(const at::Tensor& tensor, IntArgument dst, ReduceOp op,
                    const Communicator& comm) {
  FlatCall call(comm, "reduce_inplace", Kind::kReduce);
  call.with_op(op).with_root(dst, "dst").takes_output(tensor, "tensor");
  run_reduce(call, tensor, tensor);
}

void broadcast(const at::Tensor& tensor, IntArgument src, const Communicator& comm) {
  FlatCall call(comm, "broadcast", Kind::kBroadcast);
  call.with_root(src, "src").takes_output(tensor, "tensor");
  call.agree(tensor, count_of(tensor));
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {to_broadcast(call, tensor)};
    return backend.broadcast(tensors, call.options<c10d::BroadcastOptions>());
  });
}

void broadcast_coalesced(const Tensors& tensors, IntArgument src, const Communicator& comm) {
  FlatCall call(comm, "broadcast_coalesced", Kind::kBroadcast);
  takes_list(call.with_root(src, "src"), tensors);
  call.run([&](c10d::Backend& backend) -> WorkPtr {
    const bool coalesces = backend.supportsCoalescing();
    if (coalesces) backend.startCoalescing();
    for (const at::Tensor& tensor : tensors) {
      Tensors one = {to_broadcast(call, tensor)};
      const WorkPtr work = backend.broadcast(one, call.options<c10d::BroadcastOptions>());
      if (!coalesces) work->wait();
    }
    return coalesces ? backend.endCoalescing() : WorkPtr();
  });
}

void allgather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               const Communicator& comm) {
  FlatCall call(comm, "allgather", Kind::kAllGather);
  call.takes_both(send_tensor, 1, recv_tensor, call.size());
  call.agree(send_tensor, count_of(send_tensor));
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = call.moved(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = call.moved(call.flat_to_write(recv_tensor));
    return backend._allgather_base(output, input, call.options<c10d::AllgatherOptions>());
  });
}

void allgather_inplace(const at::Tensor& tensor, const Communicator& comm) {
  FlatCall call(comm, "allgather_inplace", Kind::kAllGather);
  if (call.takes_output(tensor, "tensor")) call.can_be_shared_out(tensor, "tensor");
  call.agree(tensor, count_of(tensor));
  call.run([&](c10d::Backend& backend) {
    at::Tensor output = call.moved(call.flat_to_update(tensor));
    at::Tensor input = call.blocks(output)[static_cast<size_t>(call.rank())];
    return backend._allgather_base(output, input, call.options<c10d::AllgatherOptions>());
  });
}

void gather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            const Communicator& comm) {
  FlatCall call(comm, "gather", Kind::kGather);
  call.with_root(dst, "dst");
  call.is_root() ? call.takes_both(send_tensor, 1, recv_tensor, call.size())
                 : call.takes(send_tensor, "send_tensor");
  call.agree(send_tensor, count_of(send_tensor));
  call.run([&](c10d::Backend& backend) {
    std::optional<Tensors> all;
    const at::Tensor own = call.moved(
        call.flat_to_read(call.is_root() ? call.apart(send_tensor, recv_tensor) : send_tensor));
    if (call.is_root()) all = call.blocks(call.moved(call.flat_to_write(recv_tensor)));
    return gather_blocks(call, backend, own, all);
  });
}

void gather_inplace(const at::Tensor& tensor, IntArgument count, IntArgument dst,
                    const Communicator& comm) {
  FlatCall call(comm, "gather_inplace", Kind::kGather);
  if (call.with_root(dst, "dst").takes_output(tensor, "tensor")) {
    call.has_elements(tensor, "tensor", count * (call.is_root() ? call.size() : 1));
  }
  call.agree(tensor, count);
  call.run([&](c10d::Backend& backend) {
    if (!call.is_root()) {
      return gather_blocks(call, backend, call.moved(call.flat_to_read(tensor)), std::nullopt);
    }
    const Tensors all = call.blocks(call.moved(call.flat_to_update(tensor)));
    return gather_blocks(call, backend, all[static_cast<size_t>(call.rank())], all);
  });
}

void scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument src,
             const Communicator& comm) {
  FlatCall call(comm, "scatter", Kind::kScatter);
  call.with_root(src, "src");
  call.is_root() ? call.takes_both(send_tensor, call.size(), recv_tensor, 1)
                 : call.takes_output(recv_tensor, "recv_tensor");
  call.agree(recv_tensor, count_of(recv_tensor));
  call.run([&](c10d::Backend& backend) {
    std::optional<Tensors> all;
    if (call.is_root()) {
      all = call.blocks(call.moved(call.flat_to_read(call.apart(send_tensor, recv_tensor))));
    }
    return scatter_blocks(call, backend, call.moved(call.flat_to_write(recv_tensor)), all);
  });
}

void scatter_inplace(const at::Tensor& tensor, IntArgument count, IntArgument src,
                     const Communicator& comm) {
  FlatCall call(comm, "scatter_inplace", Kind::kScatter);
  if (call.with_root(src, "src").takes_output(tensor, "tensor")) {
    call.has_elements(tensor, "tensor", count * (call.is_root() ? call.size() : 1));
  }
  call.agree(tensor, count);
  call.run([&](c10d::Backend& backend) {
    if (!call.is_root()) {
      return scatter_blocks(call, backend, call.moved(call.flat_to_write(tensor)), std::nullopt);
    }
    const Tensors all = call.blocks(call.moved(call.flat_to_read(tensor)));
    return scatter_blocks(call, backend, all[static_cast<size_t>(call.rank())], all);
  });
}

void reduce_scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, ReduceOp op,
                    const Communicator& comm) {
  FlatCall call(comm, "reduce_scatter", Kind::kReduceScatter);
  call.with_op(op).takes_both(send_tensor, call.size(), recv_tensor, 1);
  call.can_be_reduced(recv_tensor);
  call.agree(recv_tensor, count_of(recv_tensor));
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = call.to_reduce(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = call.to_reduce_in(call.flat_to_write(recv_tensor));
    return backend._reduce_scatter_base(output, input, call.options<c10d::ReduceScatterOptions>());
  });
}

void reduce_scatter_inplace(const at::Tensor& tensor, ReduceOp op, const Communicator& comm) {
  FlatCall call(comm, "reduce_scatter_inplace", Kind::kReduceScatter);
  if (call.with_op(op).takes_output(tensor, "tensor")) call.can_be_shared_out(tensor, "tensor");
  call.can_be_reduced(tensor);
  call.agree(tensor, count_of(tensor));
  call.run([&](c10d::Backend& backend) {
    at::Tensor flat = call.flat_to_update(tensor);
    at::Tensor output = call.to_reduce_in(call.blocks(flat)[static_cast<size_t>(call.rank())]);
    at::Tensor input = call.keeps_inputs() ? flat : call.to_reduce(flat.clone());
    return backend._reduce_scatter_base(output, input, call.options<c10d::ReduceScatterOptions>());
  });
}

void alltoall(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
              const Communicator& comm) {
  FlatCall call(comm, "alltoall", Kind::kAllToAll);
  if (call.takes_both(send_tensor, 1, recv_tensor, 1)) {
    call.can_be_shared_out(send_tensor, "send_tensor");
  }
  call.agree(send_tensor);
  const auto ranks = static_cast<size_t>(call.size());
  call.exchanges(std::vector<int64_t>(ranks, count_of(send_tensor) / call.size()),
                 std::vector<int64_t>(ranks, count_of(recv_tensor) / call.size()));
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = call.moved(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = call.moved(call.flat_to_write(recv_tensor));
    std::vector<int64_t> equal;
    return backend.alltoall_base(output, input, equal, equal,
                                 call.options<c10d::AllToAllOptions>());
  });
}

void alltoall_inplace(const at::Tensor& tensor, const Communicator& comm) {
  alltoall(tensor, tensor, comm);
}

void alltoall_v(const at::Tensor& send_tensor, const std::vector<int64_t>& send_counts,
                const std::vector<int64_t>& send_displs, const at::Tensor& recv_tensor,
                const std::vector<int64_t>& recv_counts, const std::vector<int64_t>& recv_displs,
                const Communicator& comm) {
  FlatCall call(comm, "alltoall_v", Kind::kAllToAll);
  if (call.takes_pair(send_tensor, recv_tensor) &&
      takes_parts(call, send_tensor, "send", send_counts, send_displs) &&
      takes_parts(call, recv_tensor, "recv", recv_counts, recv_displs)) {
    are_disjoint(call, recv_counts, recv_displs);
  }
  call.agree(send_tensor);
  call.exchanges(send_counts, recv_counts);
  call.run([&](c10d::Backend& backend) {
    Tensors inputs = call.moved(parts_of(call.flat_to_read(call.apart(send_tensor, recv_tensor)),
                                         send_counts, send_displs));
    // Holes keep what they have, also where the tensor is written through a copy.
    Tensors outputs =
        call.moved(parts_of(call.flat_to_update(recv_tensor), recv_counts, recv_displs));
    return backend.alltoall(outputs, inputs, call.options<c10d::AllToAllOptions>());
  });
}

void alltoall_v_inplace(const at::Tensor& tensor, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& send_displs,
                        const std::vector<int64_t>& recv_counts,
                        const std::vector<int64_t>& recv_displs, const Communicator& comm) {
  alltoall_v(tensor, send_counts, send_displs, tensor, recv_counts, recv_displs, comm);
}

void send(const at::Tensor& tensor, IntArgument dst, const Communicator& comm) {
  FlatCall call(comm, "send", Kind::kSend);
  call.is_rank(dst, call.size(), "dst");
  call.require(dst != call.rank(), [] { return std::string("dst is this rank itself"); });
  call.takes(tensor, "tensor");
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {call.moved(call.flat_to_read(tensor))};
    return backend.send(tensors, dst, /*tag=*/0);
  });
}

void recv(const at::Tensor& tensor, IntArgument src, const Communicator& comm) {
  FlatCall call(comm, "recv", Kind::kReceive);
  call.is_rank(src, call.size(), "src");
  call.require(src != call.rank(), [] { return std::string("src is this rank itself"); });
  call.takes_output(tensor, "tensor");
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {call.moved(call.flat_to_write(tensor))};
    return backend.recv(tensors, src, /*tag=*/0);
  });
}

void barrier(const Communicator& comm) {
  FlatCall call(comm, "barrier", Kind::kBarrier);
  call.run([&](c10d::Backend& backend) {
    return backend.barrier(call.options<c10d::BarrierOptions>());
  });
}

}  // namespace meshrun::bagua
