#include "coordinator/event_loop/recipients.h"

#include <utility>

#include "core/log.h"

namespace meshrun::coordinator {

void Recipients::AddCall(uint64_t call_id, PendingCall* call) {
  MutexLock lock(mu_);
  calls_[call_id] = call;
}

bool Recipients::RemoveCall(uint64_t call_id) { return TakeCall(call_id) != nullptr; }

PendingCall* Recipients::TakeCall(uint64_t call_id) {
  MutexLock lock(mu_);
  const auto it = calls_.find(call_id);
  if (it == calls_.end()) return nullptr;
  PendingCall* const call = it->second;
  calls_.erase(it);
  return call;
}

void Recipients::AddSession(uint64_t session_id, std::shared_ptr<Session> session) {
  MutexLock lock(mu_);
  sessions_[session_id] = std::move(session);
}

void Recipients::SetUploads(EndUploadsOf end_uploads) {
  MutexLock lock(mu_);
  end_uploads_ = std::move(end_uploads);
}

void Recipients::Reply(uint64_t call_id, const absl::Status& status, const MessagePtr& response) {
  if (!MaySpeak()) return;
  if (PendingCall* call = TakeCall(call_id); call != nullptr) call->Reply(status, response);
}

void Recipients::Send(uint64_t session_id, v1::OpenSessionResponse message) {
  if (!MaySpeak()) return;
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mu_);
    const auto it = sessions_.find(session_id);
    if (it == sessions_.end()) return;
    session = it->second;
  }
  session->Send(std::move(message));
}

void Recipients::Close(uint64_t session_id, const absl::Status& status) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mu_);
    const auto it = sessions_.find(session_id);
    if (it == sessions_.end()) return;
    session = std::move(it->second);
    sessions_.erase(it);
  }
  session->Close(status);
}

void Recipients::Deliver(std::vector<Action> actions) {
  for (Action& action : actions) {
    // Before each: a process may stand still for minutes between two of them.
    if (!MaySpeak()) return;
    if (auto* send = std::get_if<SendToSession>(&action)) {
      Send(send->session_id, std::move(send->message));
    } else if (auto* close = std::get_if<CloseSession>(&action)) {
      Close(close->session_id, close->status);
    } else if (auto* reply = std::get_if<ReplyToCall>(&action)) {
      Reply(reply->call_id, reply->status, reply->response);
    } else if (auto* item = std::get_if<StreamItem>(&action)) {
      PendingCall* call = nullptr;
      {
        MutexLock lock(mu_);
        const auto it = calls_.find(item->call_id);
        if (it != calls_.end()) call = it->second;
      }
      // Outlives this line: only this thread's Reply lets it end.
      if (call != nullptr) call->Item(item->item);
    } else if (auto* relay = std::get_if<OpenLogRelay>(&action)) {
      PendingCall* const call = TakeCall(relay->call_id);
      if (call != nullptr) call->OpenRelay(std::move(*relay));
    } else if (const auto* lost = std::get_if<EndUploads>(&action)) {
      EndUploadsOf end_uploads;
      {
        MutexLock lock(mu_);
        end_uploads = end_uploads_;
      }
      if (end_uploads) end_uploads(lost->node_id, lost->why);
    } else if (const auto* line = std::get_if<WriteLog>(&action)) {
      line->warning ? log::Warning(line->text) : log::Info(line->text);
    }
  }
}

void Recipients::EndCalls(const absl::Status& why) {
  std::map<uint64_t, PendingCall*> calls;
  {
    MutexLock lock(mu_);
    calls.swap(calls_);
  }
  for (const auto& [id, call] : calls) call->Reply(why, nullptr);
}

void Recipients::EndCalls(const absl::Status& why, const std::set<uint64_t>& ids) {
  for (const uint64_t id : ids) {
    if (PendingCall* const call = TakeCall(id); call != nullptr) call->Reply(why, nullptr);
  }
}

void Recipients::EndSessions(const absl::Status& why) {
  std::map<uint64_t, std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(mu_);
    sessions.swap(sessions_);
  }
  for (const auto& [id, session] : sessions) session->Close(why);
}

}  // namespace meshrun::coordinator
