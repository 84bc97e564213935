#include "parallel/bagua/collectives.h"

#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/bagua/communicator_call.h"

namespace meshrun::bagua {
namespace {

using detail::CommunicatorCall;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = CommunicatorCall::WorkPtr;

// c10d's options of a call that is waited for at once.
template <class Options>
Options blocking() {
  Options options;
  options.asyncOp = false;
  return options;
}

template <class Options>
Options reducing(c10d::ReduceOp op) {
  auto options = blocking<Options>();
  options.reduceOp = std::move(op);
  return options;
}

template <class Options>
Options rooted(int root) {
  auto options = blocking<Options>();
  options.rootRank = root;
  return options;
}

// What ranks are compared by where the backend does not do it itself.
void agree(CommunicatorCall& call, const at::Tensor& tensor, int64_t count, std::string rest = "") {
  if (!tensor.defined()) return;
  call.agrees_on([type = tensor.scalar_type(), count, rest = std::move(rest)] {
    return fmt::format("{} [{}]{}", c10::toString(type), count, rest);
  });
}

// Where counts may differ between ranks.
void agree_on_type(CommunicatorCall& call, const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  call.agrees_on([type = tensor.scalar_type()] { return std::string(c10::toString(type)); });
}

int64_t count_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; }

std::string root_text(int64_t root) { return fmt::format(", root {}", root); }

// What only moves. NCCL and Gloo lack dtypes, so it goes as bytes; ucx has all, and compares them.
at::Tensor moved(const CommunicatorCall& call, const at::Tensor& flat) {
  return call.keeps_inputs() ? flat : flat.resolve_conj().view(at::kByte);
}

Tensors moved(const CommunicatorCall& call, Tensors parts) {
  for (at::Tensor& part : parts) part = moved(call, part);
  return parts;
}

WorkPtr reduce_to(CommunicatorCall& call, c10d::Backend& backend, at::Tensor tensor, int dst,
                  c10d::ReduceOp op) {
  // At other ranks than dst it is only read; but some backends compute in it.
  if (call.rank() != dst && !call.keeps_inputs()) tensor = tensor.clone();
  Tensors tensors = {call.to_reduce_in(tensor)};
  auto options = reducing<c10d::ReduceOptions>(std::move(op));
  options.rootRank = dst;
  return backend.reduce(tensors, options);
}

WorkPtr gather_blocks(c10d::Backend& backend, at::Tensor own, const std::optional<Tensors>& all,
                      int dst) {
  Tensors inputs = {std::move(own)};
  std::vector<Tensors> outputs;
  if (all) outputs.push_back(*all);
  return backend.gather(outputs, inputs, rooted<c10d::GatherOptions>(dst));
}

WorkPtr scatter_blocks(c10d::Backend& backend, at::Tensor own, const std::optional<Tensors>& all,
                       int src) {
  Tensors outputs = {std::move(own)};
  std::vector<Tensors> inputs;
  if (all) inputs.push_back(*all);
  return backend.scatter(outputs, inputs, rooted<c10d::ScatterOptions>(src));
}

// Whether counts and displacements name parts of `tensor`, one for each rank.
bool takes_parts(CommunicatorCall& call, const at::Tensor& tensor, std::string_view name,
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

bool are_disjoint(CommunicatorCall& call, const std::vector<int64_t>& counts,
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

Tensors parts_of(const at::Tensor& flat, const std::vector<int64_t>& counts,
                 const std::vector<int64_t>& displs) {
  Tensors parts;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(flat.narrow(0, displs[rank], counts[rank]));
  }
  return parts;
}

bool takes_list(CommunicatorCall& call, const Tensors& tensors) {
  call.require(!tensors.empty(), [] { return std::string("the list of tensors is empty"); });
  for (size_t i = 0; i < tensors.size(); ++i) {
    call.takes_output(tensors[i], fmt::format("tensor {}", i));
  }
  call.agrees_on([&tensors] {
    std::string text;
    for (const at::Tensor& tensor : tensors) {
      text += fmt::format("{} [{}]; ", c10::toString(tensor.scalar_type()), tensor.numel());
    }
    return text;
  });
  return !tensors.empty();
}

}  // namespace

void allreduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, ReduceOp op,
               const Communicator& comm) {
  CommunicatorCall call(comm, "allreduce");
  const c10d::ReduceOp reduction = call.reduction(op);
  if (call.takes(send_tensor, "send_tensor") && call.takes_output(recv_tensor, "recv_tensor") &&
      call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(recv_tensor, "recv_tensor", send_tensor.numel());
  }
  call.can_be_reduced(send_tensor, op);
  agree(call, send_tensor, send_tensor.numel(), ", " + to_string(op));
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {call.flat_to_write(recv_tensor)};
    if (!send_tensor.is_same(recv_tensor)) {
      tensors[0].copy_(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    } else if (!recv_tensor.is_contiguous()) {
      tensors[0].copy_(call.flat_to_read(recv_tensor));
    }
    tensors[0] = call.to_reduce_in(tensors[0]);
    return backend.allreduce(tensors, reducing<c10d::AllreduceOptions>(reduction));
  });
}

void allreduce_inplace(const at::Tensor& tensor, ReduceOp op, const Communicator& comm) {
  CommunicatorCall call(comm, "allreduce_inplace");
  const c10d::ReduceOp reduction = call.reduction(op);
  call.takes_output(tensor, "tensor");
  call.can_be_reduced(tensor, op);
  agree(call, tensor, tensor.numel(), ", " + to_string(op));
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {call.to_reduce_in(call.flat_to_update(tensor))};
    return backend.allreduce(tensors, reducing<c10d::AllreduceOptions>(reduction));
  });
}

void allreduce_coalesced_inplace(const Tensors& tensors, ReduceOp op, const Communicator& comm) {
  CommunicatorCall call(comm, "allreduce_coalesced_inplace");
  const c10d::ReduceOp reduction = call.reduction(op);
  if (takes_list(call, tensors)) {
    for (const at::Tensor& tensor : tensors) call.can_be_reduced(tensor, op);
  }
  call.run([&](c10d::Backend& backend) {
    Tensors flat;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(call.to_reduce_in(call.flat_to_update(tensor)));
    }
    return backend.allreduce_coalesced(flat, reducing<c10d::AllreduceCoalescedOptions>(reduction));
  });
}

void reduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            ReduceOp op, const Communicator& comm) {
  CommunicatorCall call(comm, "reduce");
  const c10d::ReduceOp reduction = call.reduction(op);
  const bool is_dst = call.rank() == dst;
  if (call.is_rank(dst, call.size(), "dst") && call.takes(send_tensor, "send_tensor") && is_dst &&
      call.takes_output(recv_tensor, "recv_tensor") && call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(recv_tensor, "recv_tensor", send_tensor.numel());
  }
  call.can_be_reduced(send_tensor, op);
  agree(call, send_tensor, send_tensor.numel(), ", " + to_string(op) + root_text(dst));
  call.run([&](c10d::Backend& backend) {
    at::Tensor flat = call.flat_to_read(send_tensor);
    if (is_dst) {
      flat = call.flat_to_write(recv_tensor);
      flat.copy_(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    }
    return reduce_to(call, backend, flat, dst, reduction);
  });
}

void reduce_inplace(const at::Tensor& tensor, IntArgument dst, ReduceOp op,
                    const Communicator& comm) {
  CommunicatorCall call(comm, "reduce_inplace");
  const c10d::ReduceOp reduction = call.reduction(op);
  if (call.is_rank(dst, call.size(), "dst")) call.takes_output(tensor, "tensor");
  call.can_be_reduced(tensor, op);
  agree(call, tensor, tensor.numel(), ", " + to_string(op) + root_text(dst));
  call.run([&](c10d::Backend& backend) {
    const at::Tensor flat =
        call.rank() == dst ? call.flat_to_update(tensor) : call.flat_to_read(tensor);
    return reduce_to(call, backend, flat, dst, reduction);
  });
}

void broadcast(const at::Tensor& tensor, IntArgument src, const Communicator& comm) {
  CommunicatorCall call(comm, "broadcast");
  if (call.is_rank(src, call.size(), "src")) call.takes_output(tensor, "tensor");
  agree(call, tensor, tensor.numel(), root_text(src));
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {
        moved(call, call.rank() == src ? call.flat_to_read(tensor) : call.flat_to_write(tensor))};
    return backend.broadcast(tensors, rooted<c10d::BroadcastOptions>(src));
  });
}

void broadcast_coalesced(const Tensors& tensors, IntArgument src, const Communicator& comm) {
  CommunicatorCall call(comm, "broadcast_coalesced");
  if (call.is_rank(src, call.size(), "src")) takes_list(call, tensors);
  call.run([&](c10d::Backend& backend) -> WorkPtr {
    const bool coalesces = backend.supportsCoalescing();
    if (coalesces) backend.startCoalescing();
    for (const at::Tensor& tensor : tensors) {
      Tensors one = {
          moved(call, call.rank() == src ? call.flat_to_read(tensor) : call.flat_to_write(tensor))};
      const WorkPtr work = backend.broadcast(one, rooted<c10d::BroadcastOptions>(src));
      if (!coalesces) work->wait();
    }
    return coalesces ? backend.endCoalescing() : WorkPtr();
  });
}

void allgather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               const Communicator& comm) {
  CommunicatorCall call(comm, "allgather");
  if (call.takes(send_tensor, "send_tensor") && call.takes_output(recv_tensor, "recv_tensor") &&
      call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(recv_tensor, "recv_tensor", send_tensor.numel() * call.size());
  }
  agree(call, send_tensor, send_tensor.numel());
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = moved(call, call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = moved(call, call.flat_to_write(recv_tensor));
    return backend._allgather_base(output, input, blocking<c10d::AllgatherOptions>());
  });
}

void allgather_inplace(const at::Tensor& tensor, const Communicator& comm) {
  CommunicatorCall call(comm, "allgather_inplace");
  if (call.takes_output(tensor, "tensor")) call.can_be_shared_out(tensor, "tensor");
  agree(call, tensor, tensor.numel());
  call.run([&](c10d::Backend& backend) {
    at::Tensor output = moved(call, call.flat_to_update(tensor));
    at::Tensor input = call.blocks(output)[static_cast<size_t>(call.rank())];
    return backend._allgather_base(output, input, blocking<c10d::AllgatherOptions>());
  });
}

void gather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            const Communicator& comm) {
  CommunicatorCall call(comm, "gather");
  const bool is_dst = call.rank() == dst;
  if (call.is_rank(dst, call.size(), "dst") && call.takes(send_tensor, "send_tensor") && is_dst &&
      call.takes_output(recv_tensor, "recv_tensor") && call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(recv_tensor, "recv_tensor", send_tensor.numel() * call.size());
  }
  agree(call, send_tensor, send_tensor.numel(), root_text(dst));
  call.run([&](c10d::Backend& backend) {
    std::optional<Tensors> all;
    at::Tensor own =
        moved(call, call.flat_to_read(is_dst ? call.apart(send_tensor, recv_tensor) : send_tensor));
    if (is_dst) all = call.blocks(moved(call, call.flat_to_write(recv_tensor)));
    return gather_blocks(backend, std::move(own), all, dst);
  });
}

void gather_inplace(const at::Tensor& tensor, IntArgument count, IntArgument dst,
                    const Communicator& comm) {
  CommunicatorCall call(comm, "gather_inplace");
  const bool is_dst = call.rank() == dst;
  if (call.is_rank(dst, call.size(), "dst") && call.takes_output(tensor, "tensor")) {
    call.has_elements(tensor, "tensor", count * (is_dst ? call.size() : 1));
  }
  agree(call, tensor, count, root_text(dst));
  call.run([&](c10d::Backend& backend) {
    if (!is_dst) {
      return gather_blocks(backend, moved(call, call.flat_to_read(tensor)), std::nullopt, dst);
    }
    const Tensors all = call.blocks(moved(call, call.flat_to_update(tensor)));
    return gather_blocks(backend, all[static_cast<size_t>(dst)], all, dst);
  });
}

void scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument src,
             const Communicator& comm) {
  CommunicatorCall call(comm, "scatter");
  const bool is_src = call.rank() == src;
  if (call.is_rank(src, call.size(), "src") && call.takes_output(recv_tensor, "recv_tensor") &&
      is_src && call.takes(send_tensor, "send_tensor") &&
      call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(send_tensor, "send_tensor", recv_tensor.numel() * call.size());
  }
  agree(call, recv_tensor, recv_tensor.numel(), root_text(src));
  call.run([&](c10d::Backend& backend) {
    std::optional<Tensors> all;
    if (is_src) {
      all = call.blocks(moved(call, call.flat_to_read(call.apart(send_tensor, recv_tensor))));
    }
    return scatter_blocks(backend, moved(call, call.flat_to_write(recv_tensor)), all, src);
  });
}

void scatter_inplace(const at::Tensor& tensor, IntArgument count, IntArgument src,
                     const Communicator& comm) {
  CommunicatorCall call(comm, "scatter_inplace");
  const bool is_src = call.rank() == src;
  if (call.is_rank(src, call.size(), "src") && call.takes_output(tensor, "tensor")) {
    call.has_elements(tensor, "tensor", count * (is_src ? call.size() : 1));
  }
  agree(call, tensor, count, root_text(src));
  call.run([&](c10d::Backend& backend) {
    if (!is_src) {
      return scatter_blocks(backend, moved(call, call.flat_to_write(tensor)), std::nullopt, src);
    }
    const Tensors all = call.blocks(moved(call, call.flat_to_read(tensor)));
    return scatter_blocks(backend, all[static_cast<size_t>(src)], all, src);
  });
}

void reduce_scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, ReduceOp op,
                    const Communicator& comm) {
  CommunicatorCall call(comm, "reduce_scatter");
  const c10d::ReduceOp reduction = call.reduction(op);
  if (call.takes(send_tensor, "send_tensor") && call.takes_output(recv_tensor, "recv_tensor") &&
      call.are_alike(send_tensor, recv_tensor)) {
    call.has_elements(send_tensor, "send_tensor", recv_tensor.numel() * call.size());
  }
  call.can_be_reduced(recv_tensor, op);
  agree(call, recv_tensor, recv_tensor.numel(), ", " + to_string(op));
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = call.to_reduce(call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = call.to_reduce_in(call.flat_to_write(recv_tensor));
    return backend._reduce_scatter_base(output, input,
                                        reducing<c10d::ReduceScatterOptions>(reduction));
  });
}

void reduce_scatter_inplace(const at::Tensor& tensor, ReduceOp op, const Communicator& comm) {
  CommunicatorCall call(comm, "reduce_scatter_inplace");
  const c10d::ReduceOp reduction = call.reduction(op);
  if (call.takes_output(tensor, "tensor")) call.can_be_shared_out(tensor, "tensor");
  call.can_be_reduced(tensor, op);
  agree(call, tensor, tensor.numel(), ", " + to_string(op));
  call.run([&](c10d::Backend& backend) {
    at::Tensor flat = call.flat_to_update(tensor);
    at::Tensor output = call.to_reduce_in(call.blocks(flat)[static_cast<size_t>(call.rank())]);
    at::Tensor input = call.keeps_inputs() ? flat : call.to_reduce(flat.clone());
    return backend._reduce_scatter_base(output, input,
                                        reducing<c10d::ReduceScatterOptions>(reduction));
  });
}

void alltoall(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
              const Communicator& comm) {
  CommunicatorCall call(comm, "alltoall");
  if (call.takes(send_tensor, "send_tensor") && call.takes_output(recv_tensor, "recv_tensor") &&
      call.are_alike(send_tensor, recv_tensor) &&
      call.can_be_shared_out(send_tensor, "send_tensor")) {
    call.has_elements(recv_tensor, "recv_tensor", send_tensor.numel());
  }
  agree_on_type(call, send_tensor);
  const auto ranks = static_cast<size_t>(call.size());
  call.exchanges(std::vector<int64_t>(ranks, count_of(send_tensor) / call.size()),
                 std::vector<int64_t>(ranks, count_of(recv_tensor) / call.size()));
  call.run([&](c10d::Backend& backend) {
    at::Tensor input = moved(call, call.flat_to_read(call.apart(send_tensor, recv_tensor)));
    at::Tensor output = moved(call, call.flat_to_write(recv_tensor));
    std::vector<int64_t> equal;
    return backend.alltoall_base(output, input, equal, equal, blocking<c10d::AllToAllOptions>());
  });
}

void alltoall_inplace(const at::Tensor& tensor, const Communicator& comm) {
  alltoall(tensor, tensor, comm);
}

void alltoall_v(const at::Tensor& send_tensor, const std::vector<int64_t>& send_counts,
                const std::vector<int64_t>& send_displs, const at::Tensor& recv_tensor,
                const std::vector<int64_t>& recv_counts, const std::vector<int64_t>& recv_displs,
                const Communicator& comm) {
  CommunicatorCall call(comm, "alltoall_v");
  if (call.takes(send_tensor, "send_tensor") && call.takes_output(recv_tensor, "recv_tensor") &&
      call.are_alike(send_tensor, recv_tensor) &&
      takes_parts(call, send_tensor, "send", send_counts, send_displs) &&
      takes_parts(call, recv_tensor, "recv", recv_counts, recv_displs)) {
    are_disjoint(call, recv_counts, recv_displs);
  }
  agree_on_type(call, send_tensor);
  call.exchanges(send_counts, recv_counts);
  call.run([&](c10d::Backend& backend) {
    Tensors inputs = moved(call, parts_of(call.flat_to_read(call.apart(send_tensor, recv_tensor)),
                                          send_counts, send_displs));
    // Holes keep what they have, also where the tensor is written through a copy.
    Tensors outputs =
        moved(call, parts_of(call.flat_to_update(recv_tensor), recv_counts, recv_displs));
    return backend.alltoall(outputs, inputs, blocking<c10d::AllToAllOptions>());
  });
}

void alltoall_v_inplace(const at::Tensor& tensor, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& send_displs,
                        const std::vector<int64_t>& recv_counts,
                        const std::vector<int64_t>& recv_displs, const Communicator& comm) {
  alltoall_v(tensor, send_counts, send_displs, tensor, recv_counts, recv_displs, comm);
}

void send(const at::Tensor& tensor, IntArgument dst, const Communicator& comm) {
  CommunicatorCall call(comm, "send");
  call.is_message();
  call.is_rank(dst, call.size(), "dst");
  call.require(dst != call.rank(), [] { return std::string("dst is this rank itself"); });
  call.takes(tensor, "tensor");
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {moved(call, call.flat_to_read(tensor))};
    return backend.send(tensors, dst, /*tag=*/0);
  });
}

void recv(const at::Tensor& tensor, IntArgument src, const Communicator& comm) {
  CommunicatorCall call(comm, "recv");
  call.is_message();
  call.is_rank(src, call.size(), "src");
  call.require(src != call.rank(), [] { return std::string("src is this rank itself"); });
  call.takes_output(tensor, "tensor");
  call.run([&](c10d::Backend& backend) {
    Tensors tensors = {moved(call, call.flat_to_write(tensor))};
    return backend.recv(tensors, src, /*tag=*/0);
  });
}

void barrier(const Communicator& comm) {
  CommunicatorCall call(comm, "barrier");
  call.run(
      [&](c10d::Backend& backend) { return backend.barrier(blocking<c10d::BarrierOptions>()); });
}

}  // namespace meshrun::bagua
