// Keys and values of the rendezvous store.
#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>

#include "coordinator/state_machine/rendezvous_store.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Rows of one value beside its first.
constexpr uint32_t kMostChunks = 16'384;
// Kept for a CompareSet that has written its value. No response is serialized as these bytes.
constexpr std::string_view kWritten = "w";

}  // namespace

template <typename Response>
bool RendezvousStore::Repeat(uint64_t call_id, const Job& job, std::string_view method,
                             const std::string& request_id) {
  const KeptAnswer* const kept = FindAnswer(job, method, request_id);
  if (kept == nullptr) return false;
  Response response;
  response.ParseFromString(kept->response);
  context_.Reply(call_id, std::move(response));
  return true;
}

const RendezvousStore::KeptAnswer* RendezvousStore::FindAnswer(const Job& job,
                                                               std::string_view method,
                                                               const std::string& request_id) {
  if (request_id.empty()) return nullptr;
  const Generation& generation = Of(job);
  const auto it = generation.answers.find(fmt::format("{}/{}", method, request_id));
  return it == generation.answers.end() ? nullptr : &it->second;
}

template <typename Response>
void RendezvousStore::Answer(uint64_t call_id, const Job& job, std::string_view method,
                             const std::string& request_id, const Response& response) {
  Remember(job, method, request_id, response.SerializeAsString());
  context_.Reply(call_id, response);
}

absl::Status RendezvousStore::Write(const Job& job, const std::string& key, std::string value) {
  Generation& generation = Of(job);
  const auto it = generation.values.find(key);
  const size_t before = it == generation.values.end() ? 0 : it->second.size() + key.size();
  const size_t after = generation.bytes - before + value.size() + key.size();
  MESHRUN_RETURN_IF_ERROR(CheckValue(key, value.size()));
  MESHRUN_RETURN_IF_ERROR(CheckRoom(generation, key, after));
  SetBytes(generation, after);
  EraseChunks(job, generation, key);
  context_.Put(v1::STATE_TABLE_VALUES, RowKey(job, "k", key), value);
  generation.values[key] = std::move(value);
  if (const auto waiting = generation.key_waiters.find(key);
      waiting != generation.key_waiters.end()) {
    Wake(job, waiting->second);
  }
  return absl::OkStatus();
}

void RendezvousStore::Set(uint64_t call_id, const v1::SetValuesRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr || Repeat<v1::SetValuesResponse>(call_id, *job, "set", request.request_id()))
    return;
  // In the order of keys: a map on the wire has none.
  const std::map<std::string, std::string> values(request.values().begin(), request.values().end());
  for (const auto& [key, value] : values) {
    if (absl::Status status = Write(*job, key, value); !status.ok()) {
      context_.Reply(call_id, status);
      return;
    }
  }
  Answer(call_id, *job, "set", request.request_id(), v1::SetValuesResponse());
}

void RendezvousStore::AddTo(uint64_t call_id, const v1::AddValueRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr || Repeat<v1::AddValueResponse>(call_id, *job, "add", request.request_id()))
    return;
  const auto& values = Of(*job).values;
  int64_t number = 0;
  if (const auto it = values.find(request.key()); it != values.end()) {
    const std::string& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size()) {
      context_.Reply(call_id, absl::InvalidArgumentError(fmt::format(
                                  "value of key '{}' ({} bytes) is not a decimal integer",
                                  request.key(), text.size())));
      return;
    }
  }
  v1::AddValueResponse response;
  // Wraps, as the integer that PyTorch's own store keeps does.
  response.set_value(static_cast<int64_t>(static_cast<uint64_t>(number) +
                                          static_cast<uint64_t>(request.amount())));
  if (absl::Status status = Write(*job, request.key(), std::to_string(response.value()));
      !status.ok()) {
    context_.Reply(call_id, status);
    return;
  }
  Answer(call_id, *job, "add", request.request_id(), response);
}

void RendezvousStore::CompareSet(uint64_t call_id, const v1::CompareSetValueRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  v1::CompareSetValueResponse response;
  if (const KeptAnswer* const kept = FindAnswer(*job, "compare_set", request.request_id());
      kept != nullptr) {
    // An older coordinator has kept the whole response, also where nothing was written.
    if (kept->response == kWritten) {
      response.set_value(request.desired());
    } else {
      response.ParseFromString(kept->response);
    }
    context_.Reply(call_id, std::move(response));
    return;
  }
  const auto& values = Of(*job).values;
  const auto it = values.find(request.key());
  const bool write =
      it == values.end() ? request.expected().empty() : it->second == request.expected();
  if (write) {
    if (absl::Status status = Write(*job, request.key(), request.desired()); !status.ok()) {
      context_.Reply(call_id, status);
      return;
    }
    response.set_value(request.desired());
    // A repeated request has the value itself. One that changed nothing may be looked at again.
    Remember(*job, "compare_set", request.request_id(), std::string(kWritten));
  } else if (it != values.end()) {
    response.set_value(it->second);
  }
  context_.Reply(call_id, std::move(response));
}

void RendezvousStore::Append(uint64_t call_id, const v1::AppendValueRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr ||
      Repeat<v1::AppendValueResponse>(call_id, *job, "append", request.request_id())) {
    return;
  }
  if (absl::Status status = Extend(*job, request.key(), request.value()); !status.ok()) {
    context_.Reply(call_id, status);
    return;
  }
  Answer(call_id, *job, "append", request.request_id(), v1::AppendValueResponse());
}

absl::Status RendezvousStore::Extend(const Job& job, const std::string& key,
                                     const std::string& more) {
  Generation& generation = Of(job);
  const auto it = generation.values.find(key);
  if (it == generation.values.end()) return Write(job, key, more);
  MESHRUN_RETURN_IF_ERROR(CheckValue(key, it->second.size() + more.size()));
  MESHRUN_RETURN_IF_ERROR(CheckRoom(generation, key, generation.bytes + more.size()));
  // Written whole whenever it has doubled: all appends together write a few times their bytes.
  Generation::Chunks& chunks = generation.chunks[key];
  if (chunks.count == kMostChunks || (chunks.bytes + more.size()) * 2 > it->second.size()) {
    return Write(job, key, it->second + more);
  }
  context_.Put(v1::STATE_TABLE_VALUES, ChunkRowKey(job, key, chunks.count), more);
  ++chunks.count;
  chunks.bytes += more.size();
  it->second += more;
  SetBytes(generation, generation.bytes + more.size());
  return absl::OkStatus();
}

void RendezvousStore::Delete(uint64_t call_id, const v1::DeleteKeyRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr ||
      Repeat<v1::DeleteKeyResponse>(call_id, *job, "delete", request.request_id())) {
    return;
  }
  Generation& generation = Of(*job);
  v1::DeleteKeyResponse response;
  if (const auto it = generation.values.find(request.key()); it != generation.values.end()) {
    SetBytes(generation, generation.bytes - it->first.size() - it->second.size());
    EraseChunks(*job, generation, request.key());
    generation.values.erase(it);
    context_.Erase(v1::STATE_TABLE_VALUES, RowKey(*job, "k", request.key()));
    response.set_deleted(true);
  }
  Answer(call_id, *job, "delete", request.request_id(), response);
}

void RendezvousStore::CountKeys(uint64_t call_id, const v1::CountKeysRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  const auto& values = Of(*job).values;
  v1::CountKeysResponse response;
  response.set_total(values.size());
  for (const std::string& key : request.keys()) {
    if (values.contains(key)) response.set_existing(response.existing() + 1);
  }
  context_.Reply(call_id, std::move(response));
}

}  // namespace meshrun::coordinator
