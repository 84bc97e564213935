#include "coordinator/state_machine/rendezvous_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::coordinator {
namespace {

std::string ValueKey(const Job& job, std::string_view kind, std::string_view key) {
  return fmt::format("{}/{}/{}", GenerationKey(job.id(), job.view.generation()), kind, key);
}

}  // namespace

Job* RendezvousStore::Admit(uint64_t call_id, const v1::Fence& fence, int rank) {
  Job* job = jobs_.Find(fence.job_id());
  const Node* node = nullptr;
  if (!fence.node_id().empty()) {
    node = nodes_.Find(fence.node_id());
  } else if (job != nullptr && rank >= 0 && rank < job->view.ranks_size()) {
    node = nodes_.Find(job->view.ranks(rank).assignment().node_id());
  }
  std::string why;
  if (fence.term() > context_.term) {
    why = fmt::format(
        "this coordinator is in term {}, and term {} is known: another one has taken over",
        context_.term, fence.term());
  } else if (fence.term() != 0 && fence.term() < context_.term) {
    why =
        fmt::format("term {} is over: this coordinator is in term {}", fence.term(), context_.term);
  } else if (job == nullptr) {
    why = fmt::format("no job '{}'", fence.job_id());
  } else if (fence.generation() != job->view.generation()) {
    why = fmt::format("generation {} of job {} is not the current one, which is {}",
                      fence.generation(), job->id(), job->view.generation());
  } else if (!job->active()) {
    why = fmt::format("generation {} of job {} is over: the job is {}", fence.generation(),
                      job->id(), StateName(job->view.state()));
  } else if (fence.incarnation() != 0 && node != nullptr &&
             fence.incarnation() < node->record.incarnation()) {
    // A higher incarnation belongs to a restarted daemon whose Hello is still on its way: its ranks
    // live on.
    why = fmt::format("incarnation {} of node {} is over: {} has registered since",
                      fence.incarnation(), node->record.name(), node->record.incarnation());
  } else {
    return job;
  }
  context_.Reply(call_id, absl::FailedPreconditionError(why));
  return nullptr;
}

RendezvousStore::Generation& RendezvousStore::Of(const Job& job) {
  Generation& generation = generations_[job.id()];
  generation.number = job.view.generation();
  return generation;
}

template <typename Response>
bool RendezvousStore::Repeat(uint64_t call_id, const Job& job, std::string_view method,
                             const std::string& request_id) {
  if (request_id.empty()) return false;
  const Generation& generation = Of(job);
  const auto it = generation.answers.find(fmt::format("{}/{}", method, request_id));
  if (it == generation.answers.end()) return false;
  Response response;
  response.ParseFromString(it->second.response);
  context_.Reply(call_id, std::move(response));
  return true;
}

void RendezvousStore::Remember(const Job& job, std::string_view method,
                               const std::string& request_id, std::string response) {
  if (request_id.empty()) return;
  const std::string key = fmt::format("{}/{}", method, request_id);
  context_.Put(v1::STATE_TABLE_REQUESTS, GenerationKey(job.id(), job.view.generation()) + "/" + key,
               response);
  Keep(Of(job), key, {std::move(response), /*shares_row=*/false});
  DropOldAnswers(job);
}

void RendezvousStore::Keep(Generation& generation, const std::string& key, KeptAnswer answer) {
  generation.answer_bytes += key.size() + answer.response.size();
  const auto [it, is_new] = generation.answers.try_emplace(key);
  if (is_new) {
    generation.answer_order.push_back(key);
  } else {
    generation.answer_bytes -= key.size() + it->second.response.size();
  }
  it->second = std::move(answer);
}

void RendezvousStore::DropOldAnswers(const Job& job) {
  Generation& generation = Of(job);
  const std::string prefix = GenerationKey(job.id(), job.view.generation()) + "/";
  while (generation.answer_order.size() > kMaxRequests ||
         generation.answer_bytes > kMaxAnswerBytes) {
    const auto oldest = generation.answers.find(generation.answer_order.front());
    if (!oldest->second.shares_row) {
      context_.Erase(v1::STATE_TABLE_REQUESTS, prefix + oldest->first);
    }
    generation.answer_bytes -= oldest->first.size() + oldest->second.response.size();
    generation.answers.erase(oldest);
    generation.answer_order.pop_front();
  }
}

template <typename Response>
void RendezvousStore::Answer(uint64_t call_id, const Job& job, std::string_view method,
                             const std::string& request_id, const Response& response) {
  Remember(job, method, request_id, response.SerializeAsString());
  context_.Reply(call_id, response);
}

absl::Status RendezvousStore::CheckRoom(const std::string& key, size_t bytes) {
  if (bytes <= kMaxGenerationBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("with key '{}' the generation would store {}, and {} are allowed", key,
                  FormatBytes(bytes), FormatBytes(kMaxGenerationBytes)));
}

absl::Status RendezvousStore::Write(const Job& job, const std::string& key, std::string value) {
  Generation& generation = Of(job);
  const auto it = generation.values.find(key);
  const size_t before = it == generation.values.end() ? 0 : it->second.size() + key.size();
  const size_t after = generation.bytes - before + value.size() + key.size();
  if (value.size() > kMaxValueBytes) {
    return absl::ResourceExhaustedError(fmt::format("value of key '{}' has {}, and {} are allowed",
                                                    key, FormatBytes(value.size()),
                                                    FormatBytes(kMaxValueBytes)));
  }
  MESHRUN_RETURN_IF_ERROR(CheckRoom(key, after));
  generation.bytes = after;
  context_.Put(v1::STATE_TABLE_VALUES, ValueKey(job, "k", key), value);
  generation.values[key] = std::move(value);
  if (const auto waiting = generation.key_waiters.find(key);
      waiting != generation.key_waiters.end()) {
    Wake(job, waiting->second);
  }
  return absl::OkStatus();
}

void RendezvousStore::Wake(const Job& job, std::set<uint64_t> waiters) {
  for (const uint64_t call_id : waiters) {
    const Waiter waiter = waiters_.at(call_id);
    if (!IsReady(Of(job), waiter)) continue;
    Forget(call_id);
    Deliver(call_id, Of(job), waiter);
  }
}

bool RendezvousStore::IsReady(const Generation& generation, const Waiter& waiter) const {
  const auto& have =
      waiter.kind == Waiter::Kind::kUniqueId ? generation.unique_ids : generation.values;
  return std::all_of(waiter.keys.begin(), waiter.keys.end(),
                     [&](const std::string& key) { return have.contains(key); });
}

void RendezvousStore::Deliver(uint64_t call_id, const Generation& generation,
                              const Waiter& waiter) {
  if (waiter.kind == Waiter::Kind::kGet) {
    v1::GetValuesResponse response;
    for (const std::string& key : waiter.keys) response.add_values(generation.values.at(key));
    context_.Reply(call_id, std::move(response));
  } else if (waiter.kind == Waiter::Kind::kWait) {
    context_.Reply(call_id, v1::WaitKeysResponse());
  } else {
    v1::AwaitUniqueIdResponse response;
    response.set_unique_id(generation.unique_ids.at(waiter.keys.front()));
    context_.Reply(call_id, std::move(response));
  }
}

void RendezvousStore::Wait(uint64_t call_id, const Job& job, Waiter waiter) {
  Generation& generation = Of(job);
  if (IsReady(generation, waiter)) {
    Deliver(call_id, generation, waiter);
    return;
  }
  if (waiter.timeout <= std::chrono::nanoseconds(0)) {
    const std::string missing = Missing(generation, waiter);
    context_.Reply(call_id, waiter.kind == Waiter::Kind::kUniqueId
                                ? absl::DeadlineExceededError("not published yet: " + missing)
                                : absl::NotFoundError("not set: " + missing));
    return;
  }
  auto& index =
      waiter.kind == Waiter::Kind::kUniqueId ? generation.id_waiters : generation.key_waiters;
  for (const std::string& key : waiter.keys) index[key].insert(call_id);
  deadlines_.Set(call_id, context_.now + waiter.timeout);
  waiters_[call_id] = std::move(waiter);
}

// Takes a waiting call out of every index.
void RendezvousStore::Forget(uint64_t call_id) {
  deadlines_.Clear(call_id);
  const auto it = waiters_.find(call_id);
  if (it == waiters_.end()) return;
  Generation& generation = generations_[it->second.job_id];
  auto& index =
      it->second.kind == Waiter::Kind::kUniqueId ? generation.id_waiters : generation.key_waiters;
  for (const std::string& key : it->second.keys) {
    const auto entry = index.find(key);
    if (entry == index.end()) continue;
    entry->second.erase(call_id);
    if (entry->second.empty()) index.erase(entry);
  }
  waiters_.erase(it);
}

std::string RendezvousStore::Missing(const Generation& generation, const Waiter& waiter) const {
  const bool ids = waiter.kind == Waiter::Kind::kUniqueId;
  const auto& have = ids ? generation.unique_ids : generation.values;
  std::string out;
  size_t missing = 0;
  for (const std::string& key : waiter.keys) {
    if (have.contains(key)) continue;
    if (++missing <= 8) out += fmt::format("{}'{}'", out.empty() ? "" : ", ", key);
  }
  if (missing > 8) out += fmt::format(" and {} more", missing - 8);
  return (ids ? "unique id of group " : missing == 1 ? "key " : "keys ") + out;
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

template <typename Request>
void RendezvousStore::AwaitKeys(uint64_t call_id, const Request& request, Waiter::Kind kind) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  Wait(call_id, *job,
       Waiter{kind,
              job->id(),
              {request.keys().begin(), request.keys().end()},
              FromProto(request.timeout())});
}

void RendezvousStore::Get(uint64_t call_id, const v1::GetValuesRequest& request) {
  AwaitKeys(call_id, request, Waiter::Kind::kGet);
}

void RendezvousStore::WaitForKeys(uint64_t call_id, const v1::WaitKeysRequest& request) {
  AwaitKeys(call_id, request, Waiter::Kind::kWait);
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
  if (job == nullptr ||
      Repeat<v1::CompareSetValueResponse>(call_id, *job, "compare_set", request.request_id())) {
    return;
  }
  const auto& values = Of(*job).values;
  const auto it = values.find(request.key());
  const bool write =
      it == values.end() ? request.expected().empty() : it->second == request.expected();
  v1::CompareSetValueResponse response;
  if (write) {
    if (absl::Status status = Write(*job, request.key(), request.desired()); !status.ok()) {
      context_.Reply(call_id, status);
      return;
    }
    response.set_value(request.desired());
  } else if (it != values.end()) {
    response.set_value(it->second);
  }
  Answer(call_id, *job, "compare_set", request.request_id(), response);
}

void RendezvousStore::Append(uint64_t call_id, const v1::AppendValueRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr ||
      Repeat<v1::AppendValueResponse>(call_id, *job, "append", request.request_id())) {
    return;
  }
  const auto& values = Of(*job).values;
  const auto it = values.find(request.key());
  std::string value = it == values.end() ? std::string() : it->second;
  value += request.value();
  if (absl::Status status = Write(*job, request.key(), std::move(value)); !status.ok()) {
    context_.Reply(call_id, status);
    return;
  }
  Answer(call_id, *job, "append", request.request_id(), v1::AppendValueResponse());
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
    generation.bytes -= it->first.size() + it->second.size();
    generation.values.erase(it);
    context_.Erase(v1::STATE_TABLE_VALUES, ValueKey(*job, "k", request.key()));
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

void RendezvousStore::Publish(uint64_t call_id, const v1::PublishUniqueIdRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  Generation& generation = Of(*job);
  const auto known = generation.unique_ids.find(request.group());
  if (known != generation.unique_ids.end() && known->second != request.unique_id()) {
    context_.Reply(call_id,
                   absl::AlreadyExistsError(fmt::format(
                       "group '{}' of job {} generation {} has a unique id already, and rank {} "
                       "publishes another",
                       request.group(), job->id(), generation.number, request.rank())));
    return;
  }
  if (known == generation.unique_ids.end()) {
    const size_t after = generation.bytes + request.group().size() + request.unique_id().size();
    absl::Status status = CheckRoom(request.group(), after);
    if (request.unique_id().size() > kMaxUniqueIdBytes) {
      status = absl::ResourceExhaustedError(
          fmt::format("the unique id of group '{}' has {}, and {} are allowed", request.group(),
                      FormatBytes(request.unique_id().size()), FormatBytes(kMaxUniqueIdBytes)));
    }
    if (!status.ok()) {
      context_.Reply(call_id, status);
      return;
    }
    generation.bytes = after;
    generation.unique_ids[request.group()] = request.unique_id();
    context_.Put(v1::STATE_TABLE_VALUES, ValueKey(*job, "u", request.group()), request.unique_id());
    const auto waiting = generation.id_waiters.find(request.group());
    if (waiting != generation.id_waiters.end()) Wake(*job, waiting->second);
  }
  context_.Reply(call_id, v1::PublishUniqueIdResponse());
}

void RendezvousStore::AwaitId(uint64_t call_id, const v1::AwaitUniqueIdRequest& request) {
  Job* job = Admit(call_id, request.fence(), request.rank());
  if (job == nullptr) return;
  Wait(call_id, *job,
       Waiter{Waiter::Kind::kUniqueId, job->id(), {request.group()}, FromProto(request.timeout())});
}

void RendezvousStore::Register(uint64_t call_id, const v1::RegisterGroupRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  const std::set<int> ranks(request.ranks().begin(), request.ranks().end());
  if (ranks.empty() || *ranks.begin() < 0 || *ranks.rbegin() >= job->view.ranks_size()) {
    context_.Reply(call_id,
                   absl::InvalidArgumentError(fmt::format(
                       "group '{}' is announced with ranks {} in a world of {}", request.name(),
                       FormatRanks({ranks.begin(), ranks.end()}), job->view.ranks_size())));
    return;
  }
  v1::GroupInfo announced;
  announced.set_name(request.name());
  *announced.mutable_ranks() = request.ranks();
  announced.set_backend(request.backend());
  auto& groups = *job->view.mutable_groups();
  // Ranks do not announce the groups of the mesh: these have the backend of the world.
  if (static_cast<int>(ranks.size()) == job->view.ranks_size()) {
    for (v1::GroupInfo& group : groups) {
      if (group.backend().empty()) group.set_backend(request.backend());
    }
  }
  // In the place of the first group that it replaces, so that a mesh keeps the order of its axes.
  v1::GroupInfo* place = nullptr;
  for (auto it = groups.begin(); it != groups.end();) {
    const bool replaced =
        it->name() == request.name() && std::any_of(it->ranks().begin(), it->ranks().end(),
                                                    [&](int rank) { return ranks.contains(rank); });
    if (!replaced) {
      ++it;
    } else if (place == nullptr) {
      place = &*it++;
    } else {
      it = groups.erase(it);
    }
  }
  if (place == nullptr) place = job->view.add_groups();
  *place = std::move(announced);
  jobs_.Changed(*job);
  context_.Reply(call_id, v1::RegisterGroupResponse());
}

void RendezvousStore::World(uint64_t call_id, const v1::GetWorldRequest& request) {
  Job* job = Admit(call_id, request.fence());
  if (job == nullptr) return;
  const auto it = job->worlds.find(job->view.generation());
  if (it == job->worlds.end()) {
    context_.Reply(call_id, absl::NotFoundError(fmt::format("job {} has no table for generation {}",
                                                            job->id(), job->view.generation())));
    return;
  }
  v1::GetWorldResponse response;
  *response.mutable_world() = *it->second;
  context_.Reply(call_id, std::move(response));
}

void RendezvousStore::EndGeneration(const Job& job, const std::string& why) {
  const auto it = generations_.find(job.id());
  if (it == generations_.end()) return;
  Generation& generation = it->second;
  const absl::Status status = absl::FailedPreconditionError(
      fmt::format("generation {} of job {} is over: {}", generation.number, job.id(), why));
  std::set<uint64_t> calls;
  for (const auto& [key, waiting] : generation.key_waiters)
    calls.insert(waiting.begin(), waiting.end());
  for (const auto& [key, waiting] : generation.id_waiters)
    calls.insert(waiting.begin(), waiting.end());
  for (const uint64_t call_id : calls) {
    Forget(call_id);
    context_.Reply(call_id, status);
  }
  while (!generation.barriers.empty()) FailBarrier(generation, generation.barriers.begin(), status);
  const std::string prefix = GenerationKey(job.id(), generation.number) + "/";
  for (const auto& [key, value] : generation.values) {
    context_.Erase(v1::STATE_TABLE_VALUES, prefix + "k/" + key);
  }
  for (const auto& [group, id] : generation.unique_ids) {
    context_.Erase(v1::STATE_TABLE_VALUES, prefix + "u/" + group);
  }
  for (const auto& [key, answer] : generation.answers) {
    if (!answer.shares_row) context_.Erase(v1::STATE_TABLE_REQUESTS, prefix + key);
  }
  generations_.erase(it);
}

void RendezvousStore::Restore(const std::vector<v1::StateRow>& rows) {
  for (const v1::StateRow& row : rows) {
    if (row.table() != v1::STATE_TABLE_VALUES && row.table() != v1::STATE_TABLE_REQUESTS) continue;
    const auto key = ParseGenerationKey(row.key());
    const bool is_request = row.table() == v1::STATE_TABLE_REQUESTS;
    if (!key.has_value() ||
        (!is_request && !key->rest.starts_with("k/") && !key->rest.starts_with("u/"))) {
      context_.Damaged(row);
      continue;
    }
    const std::string& rest = key->rest;
    Generation& generation = generations_[key->job_id];
    generation.number = key->generation;
    if (is_request && rest.starts_with(kBarrierAnswers)) {
      v1::BarrierPassed passed;
      if (!passed.ParseFromString(row.value())) {
        context_.Damaged(row);
        continue;
      }
      Keep(generation, rest, {});
      for (const std::string& id : passed.other_request_ids()) {
        Keep(generation, kBarrierAnswers + id, {"", /*shares_row=*/true});
      }
      continue;
    }
    if (is_request) {
      Keep(generation, rest, {row.value(), /*shares_row=*/false});
      continue;
    }
    (rest[0] == 'k' ? generation.values : generation.unique_ids)[rest.substr(2)] = row.value();
    generation.bytes += rest.size() - 2 + row.value().size();
  }
}

}  // namespace meshrun::coordinator
