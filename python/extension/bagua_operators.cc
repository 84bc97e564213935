#include "python/extension/bagua_operators.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/DispatchKey.h"
#include "core/mutex.h"
#include "fmt/format.h"
#include "parallel/bagua/collectives.h"
#include "parallel/base/errors.h"
#include "torch/library.h"

namespace meshrun::python {
namespace {

using at::IntArrayRef;
using at::Tensor;
using bagua::Communicator;
using bagua::ReduceOp;
using MaybeTensor = std::optional<Tensor>;
using Key = std::string;

struct Communicators {
  Mutex mu;
  std::map<std::string, Communicator> by_key MESHRUN_GUARDED_BY(mu);
  int64_t handles MESHRUN_GUARDED_BY(mu) = 0;  // made so far
};

// Never destroyed: a communicator may outlive the runtime's statics.
Communicators& communicators() {
  static auto& made = *new Communicators;
  return made;
}

ReduceOp reduction(int64_t number) { return static_cast<ReduceOp>(number); }

// Autograd must see that its saved copy of the tensor is old, as after PyTorch's own operators.
void wrote(const Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void wrote(at::TensorList tensors) {
  for (const Tensor& tensor : tensors) wrote(tensor);
}

std::vector<int64_t> numbers(IntArrayRef given) { return given.vec(); }

void allreduce(const Tensor& send, const Tensor& recv, int64_t op, Key comm) {
  bagua::allreduce(send, recv, reduction(op), communicator_of(comm));
  wrote(recv);
}

void allreduce_inplace(const Tensor& tensor, int64_t op, Key comm) {
  bagua::allreduce_inplace(tensor, reduction(op), communicator_of(comm));
  wrote(tensor);
}

void allreduce_coalesced_inplace(at::TensorList tensors, int64_t op, Key comm) {
  bagua::allreduce_coalesced_inplace(tensors.vec(), reduction(op), communicator_of(comm));
  wrote(tensors);
}

void reduce(const Tensor& send, const MaybeTensor& recv, int64_t dst, int64_t op, Key comm) {
  bagua::reduce(send, recv.value_or(Tensor()), dst, reduction(op), communicator_of(comm));
  if (recv) wrote(*recv);
}

void reduce_inplace(const Tensor& tensor, int64_t dst, int64_t op, Key comm) {
  bagua::reduce_inplace(tensor, dst, reduction(op), communicator_of(comm));
  wrote(tensor);
}

void broadcast(const Tensor& tensor, int64_t src, Key comm) {
  bagua::broadcast(tensor, src, communicator_of(comm));
  wrote(tensor);
}

void broadcast_coalesced(at::TensorList tensors, int64_t src, Key comm) {
  bagua::broadcast_coalesced(tensors.vec(), src, communicator_of(comm));
  wrote(tensors);
}

void allgather(const Tensor& send, const Tensor& recv, Key comm) {
  bagua::allgather(send, recv, communicator_of(comm));
  wrote(recv);
}

void allgather_inplace(const Tensor& tensor, Key comm) {
  bagua::allgather_inplace(tensor, communicator_of(comm));
  wrote(tensor);
}

void gather(const Tensor& send, const MaybeTensor& recv, int64_t dst, Key comm) {
  bagua::gather(send, recv.value_or(Tensor()), dst, communicator_of(comm));
  if (recv) wrote(*recv);
}

void gather_inplace(const Tensor& tensor, int64_t count, int64_t dst, Key comm) {
  bagua::gather_inplace(tensor, count, dst, communicator_of(comm));
  wrote(tensor);
}

void scatter(const MaybeTensor& send, const Tensor& recv, int64_t src, Key comm) {
  bagua::scatter(send.value_or(Tensor()), recv, src, communicator_of(comm));
  wrote(recv);
}

void scatter_inplace(const Tensor& tensor, int64_t count, int64_t src, Key comm) {
  bagua::scatter_inplace(tensor, count, src, communicator_of(comm));
  wrote(tensor);
}

void reduce_scatter(const Tensor& send, const Tensor& recv, int64_t op, Key comm) {
  bagua::reduce_scatter(send, recv, reduction(op), communicator_of(comm));
  wrote(recv);
}

void reduce_scatter_inplace(const Tensor& tensor, int64_t op, Key comm) {
  bagua::reduce_scatter_inplace(tensor, reduction(op), communicator_of(comm));
  wrote(tensor);
}

void alltoall(const Tensor& send, const Tensor& recv, Key comm) {
  bagua::alltoall(send, recv, communicator_of(comm));
  wrote(recv);
}

void alltoall_inplace(const Tensor& tensor, Key comm) {
  bagua::alltoall_inplace(tensor, communicator_of(comm));
  wrote(tensor);
}

void alltoall_v(const Tensor& send, IntArrayRef send_counts, IntArrayRef send_displs,
                const Tensor& recv, IntArrayRef recv_counts, IntArrayRef recv_displs, Key comm) {
  bagua::alltoall_v(send, numbers(send_counts), numbers(send_displs), recv, numbers(recv_counts),
                    numbers(recv_displs), communicator_of(comm));
  wrote(recv);
}

void alltoall_v_inplace(const Tensor& tensor, IntArrayRef send_counts, IntArrayRef send_displs,
                        IntArrayRef recv_counts, IntArrayRef recv_displs, Key comm) {
  bagua::alltoall_v_inplace(tensor, numbers(send_counts), numbers(send_displs),
                            numbers(recv_counts), numbers(recv_displs), communicator_of(comm));
  wrote(tensor);
}

void send(const Tensor& tensor, int64_t dst, Key comm) {
  bagua::send(tensor, dst, communicator_of(comm));
}

void recv(const Tensor& tensor, int64_t src, Key comm) {
  bagua::recv(tensor, src, communicator_of(comm));
  wrote(tensor);
}

// Calls `with` for each operator, by what follows "meshrun::bagua_" in its schema.
template <typename With>
void each_operator(const With& with) {
  with("allreduce(Tensor send_tensor, Tensor(a!) recv_tensor, int op, str comm) -> ()", allreduce);
  with("allreduce_inplace(Tensor(a!) tensor, int op, str comm) -> ()", allreduce_inplace);
  with("allreduce_coalesced_inplace(Tensor(a!)[] tensors, int op, str comm) -> ()",
       allreduce_coalesced_inplace);
  with("reduce(Tensor send_tensor, Tensor(a!)? recv_tensor, int dst, int op, str comm) -> ()",
       reduce);
  with("reduce_inplace(Tensor(a!) tensor, int dst, int op, str comm) -> ()", reduce_inplace);
  with("broadcast(Tensor(a!) tensor, int src, str comm) -> ()", broadcast);
  with("broadcast_coalesced(Tensor(a!)[] tensors, int src, str comm) -> ()", broadcast_coalesced);
  with("allgather(Tensor send_tensor, Tensor(a!) recv_tensor, str comm) -> ()", allgather);
  with("allgather_inplace(Tensor(a!) tensor, str comm) -> ()", allgather_inplace);
  with("gather(Tensor send_tensor, Tensor(a!)? recv_tensor, int dst, str comm) -> ()", gather);
  with("gather_inplace(Tensor(a!) tensor, int count, int dst, str comm) -> ()", gather_inplace);
  with("scatter(Tensor? send_tensor, Tensor(a!) recv_tensor, int src, str comm) -> ()", scatter);
  with("scatter_inplace(Tensor(a!) tensor, int count, int src, str comm) -> ()", scatter_inplace);
  with("reduce_scatter(Tensor send_tensor, Tensor(a!) recv_tensor, int op, str comm) -> ()",
       reduce_scatter);
  with("reduce_scatter_inplace(Tensor(a!) tensor, int op, str comm) -> ()", reduce_scatter_inplace);
  with("alltoall(Tensor send_tensor, Tensor(a!) recv_tensor, str comm) -> ()", alltoall);
  with("alltoall_inplace(Tensor(a!) tensor, str comm) -> ()", alltoall_inplace);
  with(
      "alltoall_v(Tensor send_tensor, int[] send_counts, int[] send_displs, "
      "Tensor(a!) recv_tensor, int[] recv_counts, int[] recv_displs, str comm) -> ()",
      alltoall_v);
  with(
      "alltoall_v_inplace(Tensor(a!) tensor, int[] send_counts, int[] send_displs, "
      "int[] recv_counts, int[] recv_displs, str comm) -> ()",
      alltoall_v_inplace);
  with("send(Tensor tensor, int dst, str comm) -> ()", send);
  with("recv(Tensor(a!) tensor, int src, str comm) -> ()", recv);
}

std::string full_schema(const std::string& schema) { return "bagua_" + schema; }

std::string name_in(const std::string& schema) {
  return full_schema(schema.substr(0, schema.find('(')));
}

bool is_fake(const Tensor& tensor) { return tensor.key_set().has(c10::DispatchKey::Python); }
bool is_fake(const MaybeTensor& tensor) { return tensor && is_fake(*tensor); }
bool is_fake(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return is_fake(t); });
}
template <typename NotATensor>
bool is_fake(const NotATensor& /*argument*/) {
  return false;
}

}  // namespace

KeyedCommunicator::KeyedCommunicator(Communicator communicator)
    : communicator_(std::move(communicator)), key_([this] {
        Communicators& all = communicators();
        const MutexLock lock(all.mu);
        std::string key = fmt::format("{}#{}", communicator_.name(), all.handles++);
        all.by_key.emplace(key, communicator_);
        return key;
      }()) {}

KeyedCommunicator::~KeyedCommunicator() {
  const MutexLock lock(communicators().mu);
  communicators().by_key.erase(key_);
}

Communicator communicator_of(const std::string& key) {
  if (key.empty()) return {};
  const MutexLock lock(communicators().mu);
  const auto found = communicators().by_key.find(key);
  if (found == communicators().by_key.end()) {
    throw GroupError(fmt::format(
        "there is no communicator \"{}\": pass the key of a handle that a process group returned "
        "and that is still kept",
        key));
  }
  return found->second;
}

// Does nothing: registered as having an effect, so that what wrote into the tensors is kept.
Tensor keep(at::TensorList tensors) { return tensors.front().new_empty({0}); }

TORCH_LIBRARY_FRAGMENT(meshrun, m) {
  each_operator([&](const char* schema, auto*) { m.def(full_schema(schema).c_str()); });
  m.def("bagua_keep(Tensor[] tensors) -> Tensor", {at::Tag::pt2_compliant_tag});
}

// Sparse tensors, tensors of other devices and empty lists come here too: the function refuses them
// on all ranks, and PyTorch's dispatcher would on this rank alone.
TORCH_LIBRARY_IMPL(meshrun, CompositeExplicitAutograd, m) {
  m.impl("bagua_keep", TORCH_FN(keep));
  each_operator([&](const char* schema, auto* kernel) { m.impl(name_in(schema).c_str(), kernel); });
}

// A program that is traced has fake tensors. A meta tensor in a program that runs is refused.
TORCH_LIBRARY_IMPL(meshrun, Meta, m) {
  each_operator([&]<typename... Arguments>(const char* schema, void (*kernel)(Arguments...)) {
    m.impl(name_in(schema).c_str(), [kernel](Arguments... arguments) {
      if (!(is_fake(arguments) || ...)) kernel(arguments...);
    });
  });
}

}  // namespace meshrun::python
