#include "tests/parallel/collectives/faults/every_operation.h"

#include <ATen/ATen.h>

#include "parallel/collectives/collectives.h"
#include "third_party/libtorch/shims.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Counts = std::vector<int64_t>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

// Number of float32 elements: 2 MiB, enough for rendezvous messages of many segments.
constexpr int64_t kCount = 1 << 19;
constexpr int64_t kRows = kCount / 64;

Tensor some() { return at::ones({kCount}); }
Tensors list(const Group& group) { return Tensors(group->getSize(), some()); }
Tensors own_list(const Group& group) {
  Tensors tensors;
  for (int rank = 0; rank < group->getSize(); ++rank) tensors.push_back(some());
  return tensors;
}
Tensor for_all(const Group& group) { return at::ones({kCount * group->getSize()}); }
Tensor rows(int64_t count) { return at::ones({count, 64}); }
// Uneven: rank r has (r + 1) shares.
Counts sizes(const Group& group) {
  Counts sizes;
  for (int rank = 0; rank < group->getSize(); ++rank) sizes.push_back((rank + 1) * kRows / 2);
  return sizes;
}
int64_t total(const Group& group) {
  return group->getSize() * (group->getSize() + 1) / 2 * (kRows / 2);
}

void ring(const Group& group, bool from_any) {
  const int above = (group->getRank() + 1) % group->getSize();
  const int below = (group->getRank() + group->getSize() - 1) % group->getSize();
  Tensors sent = {some()}, received = {some()};
  const auto sending = group->send(sent, above, 1);
  const auto receiving =
      from_any ? group->recvAnysource(received, 1) : group->recv(received, below, 1);
  receiving->wait();
  sending->wait();
}

void indexed(const Group& group) {
  const std::vector<Counts> table(group->getSize(), Counts(group->getSize(), kRows));
  const Tensors indices(group->getSize(), at::arange(kRows, at::kLong));
  indexed_all_to_all_v(rows(kRows), indices, table, true, 0, group);
}

std::vector<NamedOperation> make_operations() {
  return {
      {"broadcast",
       [](const Group& group) {
         Tensors tensors = {some()};
         group->broadcast(tensors)->wait();
       }},
      {"allreduce",
       [](const Group& group) {
         Tensors tensors = {some()};
         group->allreduce(tensors)->wait();
       }},
      {"allreduce_coalesced",
       [](const Group& group) {
         Tensors tensors = {some(), some()};
         group->allreduce_coalesced(tensors)->wait();
       }},
      {"reduce",
       [](const Group& group) {
         Tensors tensors = {some()};
         group->reduce(tensors)->wait();
       }},
      {"allgather",
       [](const Group& group) {
         std::vector<Tensors> outputs = {own_list(group)};
         Tensors inputs = {some()};
         group->allgather(outputs, inputs)->wait();
       }},
      {"_allgather_base",
       [](const Group& group) {
         Tensor output = for_all(group), input = some();
         libtorch::all_gather_single(*group, output, input)->wait();
       }},
      {"allgather_coalesced",
       [](const Group& group) {
         std::vector<Tensors> outputs;
         for (int rank = 0; rank < group->getSize(); ++rank) outputs.push_back({some(), some()});
         Tensors inputs = {some(), some()};
         group->allgather_coalesced(outputs, inputs)->wait();
       }},
      {"allgather_into_tensor_coalesced",
       [](const Group& group) {
         Tensors outputs = {for_all(group), for_all(group)}, inputs = {some(), some()};
         libtorch::all_gather_single_coalesced(*group, outputs, inputs)->wait();
       }},
      {"gather",
       [](const Group& group) {
         std::vector<Tensors> outputs;
         if (group->getRank() == 0) outputs.push_back(own_list(group));
         Tensors inputs = {some()};
         group->gather(outputs, inputs)->wait();
       }},
      {"scatter",
       [](const Group& group) {
         std::vector<Tensors> inputs;
         if (group->getRank() == 0) inputs.push_back(list(group));
         Tensors outputs = {some()};
         group->scatter(outputs, inputs)->wait();
       }},
      {"reduce_scatter",
       [](const Group& group) {
         std::vector<Tensors> inputs = {list(group)};
         Tensors outputs = {some()};
         group->reduce_scatter(outputs, inputs)->wait();
       }},
      {"_reduce_scatter_base",
       [](const Group& group) {
         Tensor output = some(), input = for_all(group);
         libtorch::reduce_scatter_single(*group, output, input)->wait();
       }},
      {"reduce_scatter_tensor_coalesced",
       [](const Group& group) {
         Tensors outputs = {some(), some()}, inputs = {for_all(group), for_all(group)};
         libtorch::reduce_scatter_single_coalesced(*group, outputs, inputs)->wait();
       }},
      {"alltoall_base",
       [](const Group& group) {
         Tensor output = for_all(group), input = for_all(group);
         Counts none;
         libtorch::all_to_all_single(*group, output, input, none, none)->wait();
       }},
      {"alltoall",
       [](const Group& group) {
         Tensors outputs = own_list(group), inputs = list(group);
         group->alltoall(outputs, inputs)->wait();
       }},
      {"send and recv", [](const Group& group) { ring(group, /*from_any=*/false); }},
      {"send and recvAnysource", [](const Group& group) { ring(group, /*from_any=*/true); }},
      {"barrier", [](const Group& group) { group->barrier()->wait(); }},
      {"all_gather_v",
       [](const Group& group) {
         all_gather_v(rows(sizes(group)[group->getRank()]), sizes(group), 0, true, group);
       }},
      {"gather_v",
       [](const Group& group) {
         gather_v(rows(sizes(group)[group->getRank()]), sizes(group), 0, 0, group);
       }},
      {"scatter_v",
       [](const Group& group) {
         scatter_v(rows(group->getRank() == 0 ? total(group) : 0), sizes(group), 0, 0, group);
       }},
      {"reduce_scatter_v",
       [](const Group& group) {
         reduce_scatter_v(rows(total(group)), sizes(group), 0, true, group);
       }},
      {"indexed_all_to_all_v", indexed},
  };
}

}  // namespace

const std::vector<NamedOperation>& every_operation() {
  static const auto& operations = *new std::vector<NamedOperation>(make_operations());
  return operations;
}

}  // namespace meshrun
