#include "parallel/bagua/broadcast_object.h"

#include <string>
#include <vector>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/zeros.h"
#include "fmt/format.h"
#include "parallel/bagua/collectives.h"
#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "torch/csrc/jit/serialization/pickle.h"

namespace meshrun::bagua {
namespace {

std::string text_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

struct Packet {
  bool is_object = true;
  std::vector<char> bytes;  // of the object, or of the text that says why there are none
};

Packet packet_of(const c10::IValue& obj) {
  try {
    return {true, torch::jit::pickle_save(obj)};
  } catch (const std::exception& error) {
    const std::string text = text_of(error);
    return {false, {text.begin(), text.end()}};
  }
}

}  // namespace

c10::IValue broadcast_object(const c10::IValue& obj, IntArgument src, const Communicator& comm) {
  check_collectives_allowed([] { return "broadcast_object"; });
  const bool is_src = comm.rank() == src;
  const CallScope scope("broadcast_object");
  Packet packet;
  if (is_src) packet = packet_of(obj);

  const at::Tensor head = at::zeros({2}, at::kLong);
  auto* numbers = head.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(packet.bytes.size());
  numbers[1] = packet.is_object ? 1 : 0;
  broadcast(head, src, comm);
  packet.bytes.resize(static_cast<size_t>(numbers[0]));
  packet.is_object = numbers[1] == 1;
  broadcast(at::from_blob(packet.bytes.data(), {numbers[0]}, at::kByte), src, comm);

  if (!packet.is_object) {
    throw ObjectError(fmt::format(
        "broadcast_object: rank {} of the communicator \"{}\" cannot "
        "write its object as bytes: {}",
        int64_t{src}, comm.name(), std::string(packet.bytes.begin(), packet.bytes.end())));
  }
  if (is_src) return obj;
  try {
    return torch::jit::pickle_load(packet.bytes);
  } catch (const std::exception& error) {
    throw ObjectError(
        fmt::format("broadcast_object: rank {} of the communicator \"{}\" cannot read "
                    "the {} bytes of rank {}'s object: {}",
                    comm.rank(), comm.name(), packet.bytes.size(), int64_t{src}, text_of(error)));
  }
}

}  // namespace meshrun::bagua
