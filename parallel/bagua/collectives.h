// Bagua's collectives: blocking, on flat element counts, with a communicator as the last argument.
//
//   const at::Tensor send = at::arange(2) + 1 + 2 * rank, recv = at::zeros({2}, at::kLong);
//   allreduce(send, recv);                                        recv: [4, 6] on both of two ranks
//   allgather_inplace(tensor, group.get_intra_node_communicator());
//
// Only the number of elements counts, in row-major order; shapes may differ. n is comm.nranks();
// "block r" is the r-th of n equal parts; src and dst are ranks in the communicator. Every dtype of
// the backend is taken: bf16, f64, i32, bool and complex ones too. NCCL and Gloo lack some. There
// what only moves goes as bytes; complex numbers are reduced as pairs, by SUM and AVG alone, and
// int16 is reduced as int32. A contiguous tensor is used in place; any other is copied once.
// Tensors may be views of each other. No gradients.
//
//   function                    each rank gives              what it finds afterwards
//   allreduce(send, recv)       send, recv: k                recv: the reduction, equal bits
//   reduce(send, recv, dst)     send: k; dst: recv: k        recv at dst: the reduction
//   broadcast(t, src)           t: k                         t: that of src
//   allgather(send, recv)       send: k; recv: n k           recv: block r is rank r's send
//   allgather_inplace(t)        t: n k, own block filled     t: block r is rank r's
//   gather(send, recv, dst)     send: k; dst: recv: n k      recv at dst, as in allgather
//   gather_inplace(t, k, dst)   t: k; dst: n k, own filled   t at dst, as in allgather_inplace
//   scatter(send, recv, src)    recv: k; src: send: n k      recv: own block of src's send
//   scatter_inplace(t, k, src)  t: k; src: n k               t: own block of src's; src: unchanged
//   reduce_scatter(send, recv)  send: n k; recv: k           recv: own block of the reduction
//   reduce_scatter_inplace(t)   t: n k                       t: own block is reduced, the others
//                                                            are unchanged
//   alltoall(send, recv)        send, recv: n k              recv: block r is what r sent here
//   alltoall_v                  counts and displacements by rank, in elements; holes are allowed
//
// With ucx sums are taken in rank order; on several hosts of several ranks it may add each host's
// first, unless MESHRUN_REDUCTION_ORDER=rank. Every run gives the same bits. AVG divides once by n.
//
// A call returns when its result is there. On CUDA the host waits too, as in Bagua, so any stream
// may use the result.
//
// Errors: a wrong argument on any rank is a CollectiveArgumentError on all of them. Arguments that
// do not go together are a CollectiveMismatchError, which names two ranks and both sides' values.
// For CUDA tensors both need MESHRUN_CHECK_COLLECTIVES=1; on Gloo only the rank itself reports, and
// it does not see every mismatch, save in alltoall, which is compared there too. In send and recv a
// wrong argument is an error of that rank alone, before anything is sent; the receiver reports a
// message of another length. NotAMemberError: this rank is not in the communicator. Otherwise as in
// collective_errors.h. The communicator stays usable after CollectiveArgumentError and
// CollectiveMismatchError.
//
// Corresponds to the functions of bagua.torch_api.communication.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/reduce_op.h"
#include "parallel/base/arguments.h"

namespace meshrun::bagua {

void allreduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
void allreduce_inplace(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                       const Communicator& comm = {});
// Each tensor for itself, of any dtype and size, in one operation.
void allreduce_coalesced_inplace(const std::vector<at::Tensor>& tensors,
                                 ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});

void reduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
// The tensors of the other ranks are unchanged.
void reduce_inplace(const at::Tensor& tensor, IntArgument dst, ReduceOp op = ReduceOp::SUM,
                    const Communicator& comm = {});

void broadcast(const at::Tensor& tensor, IntArgument src = 0, const Communicator& comm = {});
void broadcast_coalesced(const std::vector<at::Tensor>& tensors, IntArgument src = 0,
                         const Communicator& comm = {});

void allgather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               const Communicator& comm = {});
void allgather_inplace(const at::Tensor& tensor, const Communicator& comm = {});

// recv_tensor is used only at dst.
void gather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument dst,
            const Communicator& comm = {});
void gather_inplace(const at::Tensor& tensor, IntArgument count, IntArgument dst,
                    const Communicator& comm = {});

// send_tensor is used only at src.
void scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, IntArgument src,
             const Communicator& comm = {});
void scatter_inplace(const at::Tensor& tensor, IntArgument count, IntArgument src,
                     const Communicator& comm = {});

void reduce_scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
                    ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
void reduce_scatter_inplace(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                            const Communicator& comm = {});

void alltoall(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
              const Communicator& comm = {});
void alltoall_inplace(const at::Tensor& tensor, const Communicator& comm = {});
// Sends send_counts[r] elements from send_displs[r] on to rank r, and writes the recv_counts[r]
// elements that rank r sends from recv_displs[r] on. Parts to send may overlap, parts to receive
// may not. Elements of recv_tensor outside all parts are unchanged. Not on Gloo.
void alltoall_v(const at::Tensor& send_tensor, const std::vector<int64_t>& send_counts,
                const std::vector<int64_t>& send_displs, const at::Tensor& recv_tensor,
                const std::vector<int64_t>& recv_counts, const std::vector<int64_t>& recv_displs,
                const Communicator& comm = {});
// Sends from and receives into one tensor; what is sent is what it held before the call.
void alltoall_v_inplace(const at::Tensor& tensor, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& send_displs,
                        const std::vector<int64_t>& recv_counts,
                        const std::vector<int64_t>& recv_displs, const Communicator& comm = {});

void send(const at::Tensor& tensor, IntArgument dst, const Communicator& comm = {});
void recv(const at::Tensor& tensor, IntArgument src, const Communicator& comm = {});

void barrier(const Communicator& comm = {});

}  // namespace meshrun::bagua
