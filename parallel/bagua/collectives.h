// Bagua's collectives: blocking, on flat element counts, with a communicator as the last argument.
//
//   const at::Tensor send = at::arange(2) + 1 + 2 * rank, recv = at::zeros({2}, at::kLong);
//   allreduce(send, recv);                                        recv: [4, 6] on both of two ranks
//   allgather_inplace(tensor, group.get_intra_node_communicator());
//
// What counts is the number of elements, in row-major order; shapes may differ. n is comm.nranks();
// "block r" is the r-th of n equal parts; src and dst are ranks in the communicator. All dtypes
// that the backend has, bf16, f64, i32, bool and complex ones among them. Tensors are used where
// they lie if they are contiguous, else copied once. They may be views of each other. No gradients.
//
//   function                      each rank gives               what it finds afterwards
//   allreduce(send, recv)         send, recv: k                 recv: the reduction, equal bits
//   reduce(send, recv, dst)       send: k; dst: recv: k         recv at dst: the reduction
//   broadcast(t, src)             t: k                          t: that of src
//   allgather(send, recv)         send: k, recv: n k            recv: block r is rank r's send
//   allgather_inplace(t)          t: n k, block rank            t: block r is rank r's
//   gather(send, recv, dst)       send: k; dst: recv: n k       recv at dst, as in allgather
//   gather_inplace(t, k, dst)     t: k; dst: n k, block dst     t at dst, as in allgather_inplace
//   scatter(send, recv, src)      recv: k; src: send: n k       recv: block rank of src's send
//   scatter_inplace(t, k, src)    t: k; src: n k                t: block rank of src's; src: as it
//   was reduce_scatter(send, recv)    send: n k, recv: k            recv: block rank of the
//   reduction reduce_scatter_inplace(t)     t: n k                        t: block rank is reduced,
//   the rest
//                                                               is left as it was
//   alltoall(send, recv)          send, recv: n k               recv: block r is rank r's block
//   rank alltoall_v                    counts and displacements by rank, in elements, holes allowed
//
// Sums are taken in rank order with ucx: the same bits in every run. AVG divides once by n.
//
// Calls return when the result is there; on CUDA the host waits too, as in Bagua, so any stream may
// use it. Errors: an argument that is wrong, on any rank, is a CollectiveArgumentError on all of
// them; arguments that do not go together, a CollectiveMismatchError that names two ranks and both
// sides (for CUDA tensors with MESHRUN_CHECK_COLLECTIVES=1, on Gloo on the rank itself, if at all).
// In send and recv a wrong argument is an error of that rank alone, before anything is sent; a
// message of another length, of the receiver. NotAMemberError on ranks that the communicator has
// not. The rest of collective_errors.h. After CollectiveArgumentError and CollectiveMismatchError
// the communicator can still be used.
//
// Corresponds to the functions of bagua.torch_api.communication.
#pragma once

#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/bagua/communicator.h"
#include "parallel/bagua/reduce_op.h"

namespace meshrun::bagua {

void allreduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
void allreduce_inplace(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                       const Communicator& comm = {});
// Each tensor for itself, of any dtype and size, in one operation.
void allreduce_coalesced_inplace(const std::vector<at::Tensor>& tensors,
                                 ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});

void reduce(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, int dst,
            ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
// Tensors of other ranks than dst are left as they are.
void reduce_inplace(const at::Tensor& tensor, int dst, ReduceOp op = ReduceOp::SUM,
                    const Communicator& comm = {});

void broadcast(const at::Tensor& tensor, int src = 0, const Communicator& comm = {});
void broadcast_coalesced(const std::vector<at::Tensor>& tensors, int src = 0,
                         const Communicator& comm = {});

void allgather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
               const Communicator& comm = {});
void allgather_inplace(const at::Tensor& tensor, const Communicator& comm = {});

// recv_tensor is not looked at but at dst.
void gather(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, int dst,
            const Communicator& comm = {});
void gather_inplace(const at::Tensor& tensor, int64_t count, int dst,
                    const Communicator& comm = {});

// send_tensor is not looked at but at src.
void scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor, int src,
             const Communicator& comm = {});
void scatter_inplace(const at::Tensor& tensor, int64_t count, int src,
                     const Communicator& comm = {});

void reduce_scatter(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
                    ReduceOp op = ReduceOp::SUM, const Communicator& comm = {});
void reduce_scatter_inplace(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                            const Communicator& comm = {});

void alltoall(const at::Tensor& send_tensor, const at::Tensor& recv_tensor,
              const Communicator& comm = {});
void alltoall_inplace(const at::Tensor& tensor, const Communicator& comm = {});
// send_counts[r] elements from send_displs[r] on go to rank r; what comes from it, recv_counts[r]
// elements, is written from recv_displs[r] on. Parts to send may overlap, parts to receive may not;
// elements of recv_tensor in no part are left as they are. Not on Gloo.
void alltoall_v(const at::Tensor& send_tensor, const std::vector<int64_t>& send_counts,
                const std::vector<int64_t>& send_displs, const at::Tensor& recv_tensor,
                const std::vector<int64_t>& recv_counts, const std::vector<int64_t>& recv_displs,
                const Communicator& comm = {});
// Sends from, and receives into, one tensor; all is sent as it was before the call.
void alltoall_v_inplace(const at::Tensor& tensor, const std::vector<int64_t>& send_counts,
                        const std::vector<int64_t>& send_displs,
                        const std::vector<int64_t>& recv_counts,
                        const std::vector<int64_t>& recv_displs, const Communicator& comm = {});

void send(const at::Tensor& tensor, int dst, const Communicator& comm = {});
void recv(const at::Tensor& tensor, int src, const Communicator& comm = {});

void barrier(const Communicator& comm = {});

}  // namespace meshrun::bagua
