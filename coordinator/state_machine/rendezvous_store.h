// What the ranks of a generation tell each other: keys and values, barriers, unique ids, groups.
//
// Everything belongs to the current generation of one job and goes when that generation is over. A
// call that waits is answered later: when what it waits for is there, at its deadline, or when the
// generation ends. A repeated mutating call with the same request_id gets the recorded answer of
// the first.
//
// rendezvous_store.cc has what all share: who may call, and the answers that are kept. Then there
// are store_values.cc, store_groups.cc with unique ids, store_waiters.cc for the calls that wait
// for either, and barriers.cc.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/deadline_index.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

class RendezvousStore {
 public:
  static constexpr size_t kMaxValueBytes = 16u << 20;
  static constexpr size_t kMaxGenerationBytes = 256u << 20;
  // What all jobs have, beside the answers that are kept. A job may have half of what the others
  // leave, and kLeastBytes always (ShareOf): a coordinator with 2 GiB can restart.
  static constexpr size_t kMaxBytes = 512u << 20;
  static constexpr size_t kLeastBytes = 1u << 20;
  static constexpr size_t kMaxUniqueIdBytes = 64u << 10;
  // Answers kept for retries, per generation, the oldest of which go first; their bytes are as
  // ShareOf says, with so many for each rank at least.
  static constexpr size_t kMaxRequests = 65'536;
  static constexpr size_t kMaxAnswerBytes = 64u << 20;
  static constexpr size_t kLeastAnswerBytes = 64u << 10;
  static constexpr size_t kRankAnswerBytes = 8u << 10;
  // What an answer takes beside its key and itself, about.
  static constexpr size_t kAnswerBytes = 256;

  RendezvousStore(Context& context, NodeTable& nodes, JobTable& jobs)
      : context_(context), nodes_(nodes), jobs_(jobs) {}

  // The job of a call that is of its current generation; null when the call has been answered with
  // an error. `rank`: who calls, where the request says it.
  Job* Admit(uint64_t call_id, const v1::Fence& fence, int rank = -1);

  // Calls of ranks. Each is answered at once, or waits.
  void Set(uint64_t call_id, const v1::SetValuesRequest& request);
  void Get(uint64_t call_id, const v1::GetValuesRequest& request);
  void WaitForKeys(uint64_t call_id, const v1::WaitKeysRequest& request);
  void AddTo(uint64_t call_id, const v1::AddValueRequest& request);
  void CompareSet(uint64_t call_id, const v1::CompareSetValueRequest& request);
  void Append(uint64_t call_id, const v1::AppendValueRequest& request);
  void Delete(uint64_t call_id, const v1::DeleteKeyRequest& request);
  void CountKeys(uint64_t call_id, const v1::CountKeysRequest& request);
  void Enter(uint64_t call_id, const v1::EnterBarrierRequest& request);
  void Publish(uint64_t call_id, const v1::PublishUniqueIdRequest& request);
  void AwaitId(uint64_t call_id, const v1::AwaitUniqueIdRequest& request);
  void Register(uint64_t call_id, const v1::RegisterGroupRequest& request);
  void World(uint64_t call_id, const v1::GetWorldRequest& request);

  // A rank has left: barriers that still need it fail.
  void OnRankGone(const Job& job, int rank, const std::string& how);
  // Waiting calls get `why`, the rest is dropped.
  void EndGeneration(const Job& job, const std::string& why);
  // False when no such call waits.
  bool CancelCall(uint64_t call_id);
  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const { return deadlines_.Next(); }

  // Takes its rows in the order of the store.
  void Restore(const v1::StateRow& row);

 private:
  struct Waiter {
    enum class Kind { kGet, kWait, kUniqueId } kind;
    std::string job_id;
    // For kUniqueId: the group.
    std::vector<std::string> keys;
    std::chrono::nanoseconds timeout{0};
  };
  struct Arrival {
    uint64_t call_id = 0;
    std::string request_id;
  };
  struct Barrier {
    // Sorted.
    std::vector<int> ranks;
    // Those are all of the generation.
    bool everyone = false;
    std::map<int, Arrival> arrived;
  };
  // Before the request ids of those that have passed.
  static constexpr char kBarrierAnswers[] = "barrier/";
  struct KeptAnswer {
    std::string response;
    // Its row in the durable state is another answer's.
    bool shares_row = false;
  };
  // What an answer takes, about.
  static ptrdiff_t Size(const std::string& key, const KeptAnswer& answer) {
    return static_cast<ptrdiff_t>(kAnswerBytes + key.size() + answer.response.size());
  }
  struct Generation {
    uint64_t number = 0;
    std::map<std::string, std::string> values;
    std::map<std::string, std::string> unique_ids;
    // Size of values and unique ids, with their keys.
    size_t bytes = 0;
    // What was appended to a value since its row was last written whole lies in rows of its own.
    struct Chunks {
      uint32_t count = 0;
      size_t bytes = 0;
    };
    // By key.
    std::map<std::string, Chunks> chunks;
    // By "method/request_id".
    std::map<std::string, KeptAnswer> answers;
    std::deque<std::string> answer_order;
    size_t answer_bytes = 0;
    std::map<std::string, Barrier> barriers;
    std::map<std::string, std::set<uint64_t>> key_waiters;
    std::map<std::string, std::set<uint64_t>> id_waiters;
  };

  Generation& Of(const Job& job);
  // Makes the row of a value (kind "k") or of a unique id (kind "u").
  static std::string RowKey(const Job& job, std::string_view kind, std::string_view key);
  // The row of a value's chunk: in the order of rows after all values, and each after the one
  // before.
  static std::string ChunkRowKey(const Job& job, std::string_view key, uint32_t number);
  // What was kept of the call's answer; null: it is new.
  const KeptAnswer* FindAnswer(const Job& job, std::string_view method,
                               const std::string& request_id);
  // Answers a repeated call; false when it is new.
  template <typename Response>
  bool Repeat(uint64_t call_id, const Job& job, std::string_view method,
              const std::string& request_id);
  template <typename Response>
  void Answer(uint64_t call_id, const Job& job, std::string_view method,
              const std::string& request_id, const Response& response);
  void Remember(const Job& job, std::string_view method, const std::string& request_id,
                std::string response);
  void Keep(Generation& generation, const std::string& key, KeptAnswer answer);
  void DropOldAnswers(const Job& job);
  // The generation's answers have so many bytes more, or fewer.
  void AddAnswerBytes(Generation& generation, ptrdiff_t bytes);

  // RESOURCE_EXHAUSTED when the generation would hold more than it may with so many bytes.
  absl::Status CheckRoom(const Generation& generation, const std::string& key, size_t bytes) const;
  static absl::Status CheckValue(const std::string& key, size_t bytes);
  void SetBytes(Generation& generation, size_t bytes);
  void EraseChunks(const Job& job, Generation& generation, const std::string& key);
  absl::Status Write(const Job& job, const std::string& key, std::string value);
  // Appends to a value; a missing one is made.
  absl::Status Extend(const Job& job, const std::string& key, const std::string& more);
  void Wake(const Job& job, const std::set<uint64_t>& waiters);
  void Wait(uint64_t call_id, const Job& job, Waiter waiter);
  bool IsReady(const Generation& generation, const Waiter& waiter) const;
  void Deliver(uint64_t call_id, const Generation& generation, const Waiter& waiter);
  void Forget(uint64_t call_id);
  std::string Missing(const Generation& generation, const Waiter& waiter) const;

  template <typename Request>
  void AwaitKeys(uint64_t call_id, const Request& request, Waiter::Kind kind);

  // barriers.cc
  // False: the call has been answered, because some or all of its ranks had passed already.
  bool NoneHasPassed(uint64_t call_id, const Job& job,
                     const std::vector<v1::BarrierEntry>& entries);
  // The rank waits by another call from now on.
  void LeaveCall(uint64_t call_id, int rank);
  void Open(const Job& job, Barrier&& barrier);
  // One row for the call.
  void RememberPassed(const Job& job, const std::vector<std::string>& request_ids);
  void FailBarrier(Generation& generation, std::map<std::string, Barrier>::iterator it,
                   const absl::Status& status);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  // By job_id: its current generation.
  std::map<std::string, Generation> generations_;
  // What all of them have, and their answers.
  size_t held_ = 0;
  size_t answers_held_ = 0;
  std::map<uint64_t, Waiter> waiters_;
  // Where a call waits in a barrier, and for which ranks.
  struct BarrierPlace {
    std::string job_id, name;
    std::vector<int> ranks;
    std::chrono::nanoseconds timeout{0};
  };
  void Withdraw(const BarrierPlace& place);
  std::map<uint64_t, BarrierPlace> barrier_calls_;
  DeadlineIndex<uint64_t> deadlines_;
};

}  // namespace meshrun::coordinator
