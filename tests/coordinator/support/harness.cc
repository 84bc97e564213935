#include "tests/coordinator/support/harness.h"

#include "core/proto_time.h"

namespace meshrun::coordinator::testing {

v1::JobSpec MakeSpec(uint32_t nodes, uint32_t procs) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.add_command("./train");
  spec.set_min_nodes(nodes);
  spec.mutable_procs_per_node()->set_count(procs);
  return spec;
}

void Harness::StartCoordinator() {
  sessions_.clear();
  wire_.clear();
  machine_ = std::make_unique<StateMachine>();
  term_ = *store_.BeginTerm();
  v1::StateEvent event;
  v1::RestoreEvent& restore = *event.mutable_restore();
  restore.set_term(term_);
  restore.set_cluster_id(cluster_id);
  *restore.mutable_lease() = ToProtoDuration(seconds(5));
  *restore.mutable_heartbeat_interval() = ToProtoDuration(seconds(1));
  *restore.mutable_retention() = retention;
  *restore.mutable_policy() = policy;
  *restore.mutable_quarantine() = quarantine;
  restore.set_restored(restored_);
  // Part by part, as the shell gives a state that is large.
  constexpr int kPartRows = 3;
  auto rows = *store_.Load();
  for (v1::StateRow& row : rows) {
    if (restore.rows_size() == kPartRows) {
      restore.set_more(true);
      Step(event);
      clock.Advance(part_takes);
      restore.clear_rows();
      restore.set_part(restore.part() + 1);
    }
    *restore.add_rows() = std::move(row);
  }
  restore.set_more(false);
  Step(std::move(event));
}

void Harness::RestoreCopy(const std::vector<v1::StateRow>& copy) {
  std::vector<v1::StateRow> rows = *store_.Load();
  for (v1::StateRow& row : rows) row.set_erased(true);
  rows.insert(rows.end(), copy.begin(), copy.end());
  (void)store_.Commit(term_, rows);
  restored_ = true;
  restored_summary.clear();
  StartCoordinator();
  for (const auto& [name, worker] : workers_) {
    if (name != silent) Connect(*worker);
  }
  Advance(seconds(8));
}

void Harness::StartCoordinatorWith(v1::StateTable table, const std::string& key,
                                   const std::string& value) {
  v1::StateRow row;
  row.set_table(table);
  row.set_key(key);
  row.set_value(value);
  (void)store_.Commit(term_, {row});
  StartCoordinator();
}

void Harness::Step(v1::StateEvent event) {
  event.set_now_nanos(clock.SteadyNow().count());
  *event.mutable_wall() = ToProtoTimestamp(clock.WallNow() + wall_ahead);
  event.set_random(next_id_ * 0x9e3779b97f4a7c15u);
  event.set_end_of_batch(true);
  if (record) history.push_back(event);
  Actions actions = machine_->Step(event);
  (void)store_.Commit(term_, actions.rows);
  std::optional<BeginAnew> anew;
  for (Action& action : actions.list) {
    if (const auto* const begin = std::get_if<BeginAnew>(&action)) anew = *begin;
    if (record) outcome.push_back(DebugText(action));
    if (auto* send = std::get_if<SendToSession>(&action)) {
      wire_.emplace_back(send->session_id, std::move(send->message));
    } else if (auto* close = std::get_if<CloseSession>(&action)) {
      const auto it = sessions_.find(close->session_id);
      if (it == sessions_.end()) continue;
      closed[it->second->name()] = close->status;
      sessions_.erase(it);
    } else if (auto* reply = std::get_if<ReplyToCall>(&action)) {
      Answer& answer = answers_[reply->call_id];
      answer.done = true;
      answer.status = reply->status;
      answer.response = reply->response;
    } else if (auto* item = std::get_if<StreamItem>(&action)) {
      answers_[item->call_id].items.push_back(item->item);
    }
  }
  if (!anew.has_value()) return;
  restored_summary = anew->message;
  restored_ = false;
  StartCoordinator();
  for (const auto& [name, worker] : workers_) {
    if (name != silent) Connect(*worker);
  }
}

void Harness::Settle() {
  while (!wire_.empty()) {
    auto [session_id, message] = std::move(wire_.front());
    wire_.pop_front();
    const auto it = sessions_.find(session_id);
    if (it != sessions_.end()) Say(*it->second, it->second->OnMessage(message));
  }
}

FakeWorker& Harness::AddWorkerWith(FakeWorker::Options options) {
  const std::string name = options.name;
  workers_[name] = std::make_unique<FakeWorker>(std::move(options));
  Connect(*workers_[name]);
  return *workers_[name];
}

void Harness::Connect(FakeWorker& worker) {
  const uint64_t session_id = next_id_++;
  sessions_[session_id] = &worker;
  v1::StateEvent event;
  event.mutable_session_message()->set_session_id(session_id);
  *event.mutable_session_message()->mutable_message() = worker.Hello();
  if (worker.certificate_ends.count() != 0) {
    *event.mutable_caller()->mutable_certificate_begins_at() =
        ToProtoTimestamp(worker.certificate_ends - kCertificateLasts);
    *event.mutable_caller()->mutable_certificate_ends_at() =
        ToProtoTimestamp(worker.certificate_ends);
    *event.mutable_caller()->mutable_session_ends_at() =
        ToProtoTimestamp(worker.certificate_ends + kCertificateGrace);
  }
  Step(std::move(event));
  Settle();
}

void Harness::Disconnect(FakeWorker& worker) {
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (it->second != &worker) continue;
    v1::StateEvent event;
    event.mutable_session_closed()->set_session_id(it->first);
    sessions_.erase(it);
    Step(std::move(event));
    Settle();
    return;
  }
}

bool Harness::connected(const FakeWorker& worker) const {
  for (const auto& [id, other] : sessions_) {
    if (other == &worker) return true;
  }
  return false;
}

void Harness::Say(FakeWorker& worker, FakeWorker::Requests requests) {
  for (v1::OpenSessionRequest& request : requests) {
    for (const auto& [id, other] : sessions_) {
      if (other != &worker) continue;
      v1::StateEvent event;
      event.mutable_session_message()->set_session_id(id);
      *event.mutable_session_message()->mutable_message() = std::move(request);
      Step(std::move(event));
      break;
    }
  }
  Settle();
}

void Harness::Advance(std::chrono::nanoseconds by) {
  const SteadyNanos end = clock.SteadyNow() + by;
  SteadyNanos next_heartbeat = clock.SteadyNow() + seconds(1);
  while (clock.SteadyNow() < end) {
    SteadyNanos to = std::min(end, next_heartbeat);
    if (const auto due = machine_->NextDeadline(); due.has_value()) to = std::min(to, *due);
    clock.Advance(std::max(to, clock.SteadyNow()) - clock.SteadyNow());
    v1::StateEvent tick;
    tick.mutable_tick();
    Step(std::move(tick));
    Settle();
    if (clock.SteadyNow() < next_heartbeat) continue;
    next_heartbeat += seconds(1);
    if (!heartbeats) continue;
    const auto sessions = sessions_;
    for (const auto& [id, worker] : sessions) {
      if (!worker->deaf) Say(*worker, {worker->Heartbeat()});
    }
  }
}

uint64_t Harness::Call(v1::StateEvent event) {
  const uint64_t call_id = next_id_++;
  event.set_call_id(call_id);
  answers_[call_id];
  Step(std::move(event));
  Settle();
  return call_id;
}

void Harness::CancelCall(uint64_t call_id) {
  v1::StateEvent event;
  event.mutable_call_cancelled()->set_call_id(call_id);
  Step(std::move(event));
  Settle();
}

Harness::Answer& Harness::TrySubmit(const v1::JobSpec& spec, const std::string& request_id,
                                    bool must_fit) {
  v1::StateEvent event;
  *event.mutable_submit_job()->mutable_spec() = spec;
  event.mutable_submit_job()->set_request_id(request_id);
  event.mutable_submit_job()->set_must_fit(must_fit);
  return answer(Call(std::move(event)));
}

std::string Harness::Submit(const v1::JobSpec& spec) {
  return TrySubmit(spec).As<v1::SubmitJobResponse>().job().job_id();
}

Harness::Answer& Harness::TrySubmitAs(const std::string& user, const v1::JobSpec& spec) {
  v1::StateEvent event;
  event.mutable_caller()->set_user(user);
  *event.mutable_submit_job()->mutable_spec() = spec;
  return answer(Call(std::move(event)));
}

std::string Harness::SubmitAs(const std::string& user, const v1::JobSpec& spec) {
  return TrySubmitAs(user, spec).As<v1::SubmitJobResponse>().job().job_id();
}

void Harness::Cancel(const std::string& job_id, bool now) {
  v1::StateEvent event;
  event.mutable_cancel_job()->set_job_id(job_id);
  event.mutable_cancel_job()->set_now(now);
  Call(std::move(event));
}

v1::Fence Harness::fence(const std::string& job_id) const {
  v1::Fence fence;
  fence.set_job_id(job_id);
  fence.set_generation(job(job_id).generation());
  return fence;
}

std::vector<std::string> Harness::Said(const std::string& kind) {
  v1::StateEvent event;
  event.mutable_describe_cluster()->set_max_events(10'000);
  const auto described = answer(Call(event)).As<v1::DescribeClusterResponse>();
  std::vector<std::string> said;
  for (const auto& e : described.events()) {
    if (e.kind() == kind) said.push_back(e.message());
  }
  return said;
}

}  // namespace meshrun::coordinator::testing
