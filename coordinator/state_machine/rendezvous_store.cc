#include "coordinator/state_machine/rendezvous_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/text.h"

namespace meshrun::coordinator {
namespace {

// Kind of the rows of chunks: after "k".
constexpr char kChunk[] = "n";
constexpr int kChunkDigits = 8;

}  // namespace

std::string RendezvousStore::RowKey(const Job& job, std::string_view kind, std::string_view key) {
  return fmt::format("{}/{}/{}", GenerationKey(job.id(), job.view.generation()), kind, key);
}

std::string RendezvousStore::ChunkRowKey(const Job& job, std::string_view key, uint32_t number) {
  return RowKey(job, kChunk, fmt::format("{:0{}}/{}", number, kChunkDigits, key));
}

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
  AddAnswerBytes(generation, Size(key, answer));
  const auto [it, is_new] = generation.answers.try_emplace(key);
  if (is_new) {
    generation.answer_order.push_back(key);
  } else {
    AddAnswerBytes(generation, -Size(key, it->second));
  }
  it->second = std::move(answer);
}

void RendezvousStore::AddAnswerBytes(Generation& generation, ptrdiff_t bytes) {
  generation.answer_bytes += static_cast<size_t>(bytes);
  answers_held_ += static_cast<size_t>(bytes);
}

void RendezvousStore::DropOldAnswers(const Job& job) {
  Generation& generation = Of(job);
  const size_t least =
      kLeastAnswerBytes + kRankAnswerBytes * static_cast<size_t>(job.view.ranks_size());
  const size_t share = ShareOf(kMaxAnswerBytes, answers_held_ - generation.answer_bytes, least);
  const std::string prefix = GenerationKey(job.id(), job.view.generation()) + "/";
  while (generation.answer_order.size() > kMaxRequests || generation.answer_bytes > share) {
    const auto oldest = generation.answers.find(generation.answer_order.front());
    if (!oldest->second.shares_row) {
      context_.Erase(v1::STATE_TABLE_REQUESTS, prefix + oldest->first);
    }
    AddAnswerBytes(generation, -Size(oldest->first, oldest->second));
    generation.answers.erase(oldest);
    generation.answer_order.pop_front();
  }
}

absl::Status RendezvousStore::CheckRoom(const Generation& generation, const std::string& key,
                                        size_t bytes) const {
  if (bytes > kMaxGenerationBytes) {
    return absl::ResourceExhaustedError(
        fmt::format("with key '{}' the generation would store {}, and {} are allowed", key,
                    FormatBytes(bytes), FormatBytes(kMaxGenerationBytes)));
  }
  const size_t others = held_ - generation.bytes;
  const size_t share = ShareOf(kMaxBytes, others, kLeastBytes);
  if (bytes <= share) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format(
      "with key '{}' the generation would store {}, and {} are allowed while other jobs store {}",
      key, FormatBytes(bytes), FormatBytes(share), FormatBytes(others)));
}

absl::Status RendezvousStore::CheckValue(const std::string& key, size_t bytes) {
  if (bytes <= kMaxValueBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("value of key '{}' has {}, and {} are allowed",
                                                  key, FormatBytes(bytes),
                                                  FormatBytes(kMaxValueBytes)));
}

void RendezvousStore::SetBytes(Generation& generation, size_t bytes) {
  held_ += bytes - generation.bytes;
  generation.bytes = bytes;
}

void RendezvousStore::EraseChunks(const Job& job, Generation& generation, const std::string& key) {
  const auto found = generation.chunks.find(key);
  if (found == generation.chunks.end()) return;
  for (uint32_t number = 0; number < found->second.count; ++number) {
    context_.Erase(v1::STATE_TABLE_VALUES, ChunkRowKey(job, key, number));
  }
  generation.chunks.erase(found);
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
  while (!generation.chunks.empty()) {
    EraseChunks(job, generation, std::string(generation.chunks.begin()->first));
  }
  for (const auto& [key, value] : generation.values) {
    context_.Erase(v1::STATE_TABLE_VALUES, fmt::format("{}k/{}", prefix, key));
  }
  for (const auto& [group, id] : generation.unique_ids) {
    context_.Erase(v1::STATE_TABLE_VALUES, fmt::format("{}u/{}", prefix, group));
  }
  for (const auto& [key, answer] : generation.answers) {
    if (!answer.shares_row) context_.Erase(v1::STATE_TABLE_REQUESTS, prefix + key);
  }
  held_ -= generation.bytes;
  answers_held_ -= generation.answer_bytes;
  generations_.erase(it);
}

void RendezvousStore::Restore(const v1::StateRow& row) {
  const auto key = ParseGenerationKey(row.key());
  const bool is_request = row.table() == v1::STATE_TABLE_REQUESTS;
  const bool is_chunk = !is_request && key.has_value() && key->rest.starts_with("n/") &&
                        key->rest.size() > kChunkDigits + 3;
  if (!key.has_value() ||
      (!is_request && !is_chunk && !key->rest.starts_with("k/") && !key->rest.starts_with("u/"))) {
    context_.Damaged(row);
    return;
  }
  const std::string& rest = key->rest;
  Generation& generation = generations_[key->job_id];
  generation.number = key->generation;
  if (is_request && rest.starts_with(kBarrierAnswers)) {
    v1::BarrierPassed passed;
    if (!passed.ParseFromString(row.value())) {
      context_.Damaged(row);
      return;
    }
    Keep(generation, rest, {});
    for (const std::string& id : passed.other_request_ids()) {
      Keep(generation, kBarrierAnswers + id, {"", /*shares_row=*/true});
    }
    return;
  }
  if (is_request) {
    Keep(generation, rest, {row.value(), /*shares_row=*/false});
    return;
  }
  if (is_chunk) {
    const std::string of = rest.substr(kChunkDigits + 3);
    Generation::Chunks& chunks = generation.chunks[of];
    ++chunks.count;
    chunks.bytes += row.value().size();
    generation.values[of] += row.value();
    SetBytes(generation, generation.bytes + row.value().size());
    return;
  }
  (rest[0] == 'k' ? generation.values : generation.unique_ids)[rest.substr(2)] = row.value();
  SetBytes(generation, generation.bytes + rest.size() - 2 + row.value().size());
}

}  // namespace meshrun::coordinator
