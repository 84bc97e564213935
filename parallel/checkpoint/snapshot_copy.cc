#include "parallel/checkpoint/snapshot_copy.h"

#include <ATen/ATen.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/checkpoint/tensor_stream.h"
#include "parallel/checkpoint/told_json.h"

namespace meshrun::detail {
namespace {

using nlohmann::json;

std::string encode_head(const SnapshotId& id, const std::vector<SnapshotCopy::Part>& parts) {
  json coded = json::array();
  for (const SnapshotCopy::Part& part : parts) {
    coded.push_back({part.elements.kind, part.elements.name, json(part.elements.region),
                     part.offset, part.bytes});
  }
  return json{
      {"generation", id.generation}, {"number", id.number}, {"step", id.step}, {"parts", coded}}
      .dump();
}

bool is_sent(const FileTensor& tensor) { return tensor.cut != nullptr || tensor.is_of_rank_0; }

// Whether this rank has values of it that count.
bool is_copied(const FileTensor& tensor, int rank) {
  const bool is_other_ranks = tensor.cut == nullptr && tensor.is_of_rank_0 && rank != 0;
  return !is_other_ranks && tensor.bytes.defined() && tensor.bytes.size() > 0;
}

Region region_of(const FileTensor& tensor) {
  if (tensor.cut == nullptr) return Region::whole(tensor.info.shape);
  return stored_region(tensor.cut->own(), tensor.info);
}

}  // namespace

at::Tensor SnapshotCopy::bytes_of(const Part& part) const {
  return memory.narrow(0, static_cast<int64_t>(begin + part.offset),
                       static_cast<int64_t>(part.bytes));
}

at::Tensor bytes_in(at::Tensor spare, uint64_t bytes) {
  const auto size = static_cast<int64_t>(bytes);
  const uint64_t there = spare.defined() ? spare.storage().nbytes() : 0;
  // What a smaller world needed is given back.
  if (there >= bytes && there / 2 <= bytes) {
    return spare.set_(spare.storage(), 0, {size}, {1});
  }
  spare.reset();
  return at::empty({size}, at::kByte);
}

SnapshotCopy copy_state(const SnapshotId& id, const FileTensors& tensors, int rank,
                        at::Tensor spare) {
  SnapshotCopy copy{id, {}, {}, 0, 0};
  std::vector<const StoredValues*> values;
  uint64_t end = 0;
  const auto place = [&](bool sent) {
    for (size_t kind = 0; kind < tensors.size(); ++kind) {
      for (const auto& [name, tensor] : tensors[kind]) {
        if (is_sent(tensor) != sent || !is_copied(tensor, rank)) continue;
        const uint64_t bytes = tensor.bytes.size();
        copy.parts.push_back({{static_cast<FileKind>(kind), name, region_of(tensor)}, end, bytes});
        values.push_back(&tensor.bytes);
        end = aligned_in_stream(end + bytes);
      }
    }
  };
  place(true);
  const std::string head = encode_head(id, copy.parts);
  const uint64_t length = head.size();
  copy.begin = aligned_in_stream(sizeof length + length);
  copy.sent_bytes = copy.begin + end;
  place(false);
  copy.memory = bytes_in(std::move(spare), copy.begin + end);
  auto* const memory = static_cast<char*>(copy.memory.mutable_data_ptr());
  std::memcpy(memory, &length, sizeof length);
  std::memcpy(memory + sizeof length, head.data(), head.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i]->read(0, {memory + copy.begin + copy.parts[i].offset, copy.parts[i].bytes});
  }
  return copy;
}

SnapshotCopy decode_copy(at::Tensor message) {
  const auto* const bytes = static_cast<const char*>(message.const_data_ptr());
  uint64_t length = 0;
  std::memcpy(&length, bytes, sizeof length);
  const json head = json::parse(bytes + sizeof length, bytes + sizeof length + length);
  SnapshotCopy copy;
  copy.id = {head.at("generation").get<uint64_t>(), head.at("number").get<int64_t>(),
             head.at("step").get<int64_t>()};
  copy.begin = aligned_in_stream(sizeof length + length);
  copy.sent_bytes = message.nbytes();
  for (const json& part : head.at("parts")) {
    copy.parts.push_back(
        {{part.at(0).get<FileKind>(), part.at(1).get<std::string>(), part.at(2).get<Region>()},
         part.at(3).get<uint64_t>(),
         part.at(4).get<uint64_t>()});
  }
  copy.memory = std::move(message);
  return copy;
}

}  // namespace meshrun::detail
