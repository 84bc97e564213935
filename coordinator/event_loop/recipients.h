// Where actions go: the calls and sessions that are open, by the ids that the shell gave them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/state_machine/actions.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

// A call that waits for its answer. It lives at least until Reply, which the loop's thread calls
// exactly once (for a call that reads logs, OpenRelay instead).
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  virtual void Reply(const absl::Status& status, const MessagePtr& response) = 0;
  // Only streaming calls.
  virtual void Item(const MessagePtr&) {}
  virtual void OpenRelay(OpenLogRelay&&) {}
};

// A worker's session. Thread-safe; after Close, or once the peer is gone, Send does nothing.
class Session {
 public:
  virtual ~Session() = default;
  virtual void Send(v1::OpenSessionResponse message) = 0;
  // Ends the stream once what was sent before has left.
  virtual void Close(const absl::Status& status) = 0;
};

// Thread-safe.
class Recipients {
 public:
  void AddCall(uint64_t call_id, PendingCall* call);
  // False when Reply was called already, or is being called.
  bool RemoveCall(uint64_t call_id);
  void AddSession(uint64_t session_id, std::shared_ptr<Session> session);

  // While it says no, no action is carried out, and neither Reply nor Send does anything: EndCalls
  // and EndSessions have what is left. Set before the first action.
  void SetGate(std::function<bool()> leads) { leads_ = std::move(leads); }

  // Ends the uploads of a lost node; null: nothing does.
  using EndUploadsOf = std::function<void(const std::string& node_id, const absl::Status& why)>;
  void SetUploads(EndUploadsOf end_uploads);

  void Reply(uint64_t call_id, const absl::Status& status, const MessagePtr& response);
  void Send(uint64_t session_id, v1::OpenSessionResponse message);
  void Close(uint64_t session_id, const absl::Status& status);

  // Carries out the actions of a batch. Only on the loop's thread.
  void Deliver(std::vector<Action> actions);
  // Ends every call, every session, with `why`.
  void EndCalls(const absl::Status& why);
  // Ends the calls of `ids` that are open.
  void EndCalls(const absl::Status& why, const std::set<uint64_t>& ids);
  void EndSessions(const absl::Status& why);

 private:
  PendingCall* TakeCall(uint64_t call_id);
  bool MaySpeak() const { return leads_ == nullptr || leads_(); }

  std::function<bool()> leads_;
  Mutex mu_;
  std::map<uint64_t, PendingCall*> calls_ MESHRUN_GUARDED_BY(mu_);
  std::map<uint64_t, std::shared_ptr<Session>> sessions_ MESHRUN_GUARDED_BY(mu_);
  EndUploadsOf end_uploads_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::coordinator
