// What a daemon does with the generations of its host.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/state_machine/jobs.h"
#include "core/job_spec.h"
#include "core/proto_time.h"
#include "tests/coordinator/simulation/host.h"
#include "tests/coordinator/simulation/rank_program.h"
#include "tests/coordinator/simulation/world.h"

namespace meshrun::coordinator::simulation {

Host::Runs::iterator Host::Newest(const std::string& job_id) {
  auto it = runs_.upper_bound({job_id, UINT64_MAX});
  if (it == runs_.begin() || (--it)->first.first != job_id) return runs_.end();
  return it;
}

bool Host::HasProcesses(const GenerationKey& upto) const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& entry) {
    const RankProcess& process = entry.second;
    return process.job_id == upto.first && process.generation <= upto.second && !process.gone;
  });
}

bool Host::HasSeat(const Run& run, const RankProcess& process) {
  return std::any_of(run.seats.begin(), run.seats.end(), [&](const auto& entry) {
    return entry.second.process_generation() == process.process_generation &&
           entry.second.process_rank() == process.process_rank;
  });
}

void Host::Handle(const v1::OpenSessionResponse& message) {
  const GenerationKey key{message.fence().job_id(), message.fence().generation()};
  const auto run = runs_.find(key);
  if (message.has_prepare()) {
    Prepare(message);
  } else if (message.has_start()) {
    const auto newest = Newest(key.first);
    if (run == runs_.end() && newest != runs_.end() && HasProcesses(key)) {
      Stop(key, newest->second.kill_grace, /*forget=*/false);
    } else if (run == runs_.end() || run->second.ended || run->second.stopping) {
      if (!HasProcesses(key)) SendEnded(key);
    } else {
      Start(key, run->second);
    }
  } else if (message.has_stop()) {
    Stop(key, FromProto(message.stop().grace()), /*forget=*/false);
  } else if (message.has_forget()) {
    Stop(key, nanoseconds(0), /*forget=*/true);
  } else if (message.has_quiesce()) {
    Quiesce(key);
  } else if (message.has_peer_news()) {
    Tell(key, message.peer_news());
  }
}

void Host::Tell(const GenerationKey& key, const v1::PeerNews& news) {
  for (const v1::WaitVerdict& verdict : news.verdicts()) {
    world_.ledger.OnVerdict(key, verdict);
    for (auto& [number, process] : processes_) {
      if (process.key() == key && !process.exited) process.program->OnVerdict();
    }
  }
}

void Host::Prepare(const v1::OpenSessionResponse& message) {
  const v1::Prepare& prepare = message.prepare();
  const GenerationKey key{message.fence().job_id(), message.fence().generation()};
  world_.ledger.OnPrepare(node_id(), message.fence(), prepare);
  if (const auto known = runs_.find(key); known != runs_.end()) {
    if (known->second.prepared || known->second.ended) AnswerPrepare(key);
    return;
  }
  if (const auto newest = Newest(key.first); newest != runs_.end()) {
    if (newest->first.second > key.second) return;
    // It is replaced before its start.
    if (!newest->second.started) runs_.erase(newest);
  }
  if (draining_ || !prepare_error_.empty()) {
    AnswerPrepare(key);
    return;
  }
  Run& run = runs_[key];
  run.kill_grace = KillGrace(prepare.spec());
  run.world_size = static_cast<int>(prepare.world_size());
  run.work = prepare.spec().name();
  for (const v1::RankAssignment& seat : prepare.ranks()) {
    run.seats[seat.rank()] = seat;
    run.kept |= !IsFresh(seat, key.second);
  }
  // A process that has not come so far is replaced.
  for (auto& [number, process] : processes_) {
    if (run.kept && process.job_id == key.first && !HasSeat(run, process)) {
      StopProcess(process, std::min<nanoseconds>(run.kill_grace, seconds(5)));
    }
  }
  Ping();
  WatchDaemon();
  Later(world_.random.Between(milliseconds(1), milliseconds(40)),
        [this, key] { AnswerWhenReady(key); });
}

// What earlier generations have left must be gone first, unless it lives on.
void Host::AnswerWhenReady(const GenerationKey& key) {
  const auto it = runs_.find(key);
  if (it == runs_.end() || it->second.prepared) return;
  const auto is_in_the_way = [&](const auto& entry) {
    const RankProcess& process = entry.second;
    return process.job_id == key.first && process.generation < key.second && !process.gone &&
           (process.exited || !HasSeat(it->second, process));
  };
  if (std::any_of(processes_.begin(), processes_.end(), is_in_the_way)) {
    Later(milliseconds(50), [this, key] { AnswerWhenReady(key); });
    return;
  }
  it->second.prepared = true;
  AnswerPrepare(key);
}

void Host::AnswerPrepare(const GenerationKey& key) {
  v1::OpenSessionRequest message;
  v1::PrepareResult& result = *message.mutable_prepare_result();
  const auto run = runs_.find(key);
  if (draining_) {
    result.set_error("the worker is stopping");
    result.set_draining(true);
  } else if (run == runs_.end()) {
    result.set_error(prepare_error_.empty() ? "no free port" : prepare_error_);
    result.set_bad_command(bad_command_);
  } else if (run->second.ended || run->second.stopping) {
    result.set_error("the generation has ended here");
  } else {
    result.set_ok(true);
    result.set_master_port(static_cast<uint32_t>(20'000 + world_.random.Below(1'000)));
  }
  Send(key, std::move(message));
}

void Host::Start(const GenerationKey& key, Run& run) {
  if (std::exchange(run.started, true)) return;
  const bool to_end = run.stopping;
  for (const auto& [rank, seat] : run.seats) {
    RankProcess* process = nullptr;
    if (IsFresh(seat, key.second)) {
      const uint64_t number = world_.next_process++;
      process = &processes_[number];
      process->number = number;
      process->job_id = key.first;
      process->process_generation = key.second;
      process->process_rank = rank;
      process->program = std::make_shared<RankProgram>(world_, *this, number);
      world_.ledger.OnStarted(number, {node_id(), key, rank},
                              {seat.gpus().begin(), seat.gpus().end()});
    } else {
      for (auto& [number, other] : processes_) {
        if (other.job_id == key.first && other.process_generation == seat.process_generation() &&
            other.process_rank == seat.process_rank()) {
          process = &other;
        }
      }
      if (process == nullptr || process->exited || process->killed) continue;
      world_.ledger.OnTaken(process->number, key, rank);
    }
    process->generation = key.second;
    process->rank = rank;
    process->world_size = run.world_size;
    process->work = run.work;
    process->joined = false;
    process->step = -1;
  }
  for (auto& [number, process] : processes_) {
    if (process.key() == key && !process.exited && !to_end) process.program->BeginGeneration();
  }
  // What is left of earlier generations has been told, and is gone or part of this one.
  std::erase_if(runs_, [&](const auto& entry) {
    return entry.first.first == key.first && entry.first.second < key.second &&
           !HasProcesses(entry.first);
  });
  std::erase_if(processes_, [&](const auto& entry) {
    return entry.second.job_id == key.first && entry.second.generation < key.second &&
           entry.second.gone;
  });
  SendStarted(key);
  if (run.kept) CheckEnded(key.first);
}

void Host::Stop(const GenerationKey& key, nanoseconds grace, bool forget) {
  // Nobody waits for the end of what is forgotten, unless it is not here and this session's Hello
  // has named it, or an earlier one.
  const bool here = runs_.contains(key);
  bool awaited = !forget;
  if (forget && here) {
    named_.erase(key);
  } else if (forget) {
    awaited = std::erase_if(named_, [&](const GenerationKey& named) {
                return named.first == key.first && named.second <= key.second;
              }) > 0;
  }
  const auto newest = Newest(key.first);
  if (newest == runs_.end()) {
    if (awaited && !HasProcesses(key)) SendEnded(key);
    return;
  }
  const bool lower = key.second < newest->first.second;
  if (lower && (newest->second.started || newest->second.kept)) {
    const auto run = runs_.find(key);
    if (forget && run != runs_.end() && run->second.ended) runs_.erase(run);
    if (awaited) SendEnded(key);
    return;
  }
  bool left = false;
  bool told = true;
  for (auto it = runs_.begin(); it != runs_.end();) {
    if (it->first.first != key.first || it->first.second > key.second) {
      ++it;
      continue;
    }
    Run& run = it->second;
    told &= run.ended || run.stopping;
    run.stopping = true;
    run.forgotten |= forget;
    run.ends_as = std::max(run.ends_as, key.second);
    if (run.ended && forget) {
      it = runs_.erase(it);
      continue;
    }
    left |= !run.ended;
    ++it;
  }
  if (!left) {
    // Nothing of it runs. A run that ended before is not the end of one that lives.
    if (awaited && !HasProcesses(key)) SendEnded(key);
    ForgetGone(key.first);
    return;
  }
  // What was told to end keeps its grace.
  if (forget && !here && told) return;
  for (auto& [number, process] : processes_) {
    if (process.job_id == key.first && process.generation <= key.second) {
      StopProcess(process, grace);
    }
  }
  CheckEnded(key.first);
}

void Host::Quiesce(const GenerationKey& key) {
  for (auto& [number, process] : processes_) {
    if (process.key() == key && !process.exited) process.program->Quiesce();
  }
}

void Host::SendStarted(const GenerationKey& key) {
  v1::OpenSessionRequest message;
  auto& pids = *message.mutable_ranks_started()->mutable_pids();
  for (const auto& [number, process] : processes_) {
    if (process.key() == key && process.process_generation == key.second) {
      pids[process.rank] = static_cast<int64_t>(number);
    }
  }
  Say(key, std::move(message));
}

void Host::SendExit(const RankProcess& process) {
  v1::OpenSessionRequest message;
  *message.mutable_rank_exit() = process.exit;
  Say(process.key(), std::move(message));
}

void Host::SendEnded(const GenerationKey& key) {
  v1::OpenSessionRequest message;
  message.mutable_generation_ended();
  Say(key, std::move(message));
}

void Host::Report(RankProcess& process, int64_t step) {
  process.step = step;
  v1::OpenSessionRequest message;
  (*message.mutable_progress_report()->mutable_progress())[process.rank].set_step(step);
  Say(process.key(), std::move(message));
}

void Host::Join(RankProcess& process) {
  process.joined = true;
  v1::OpenSessionRequest message;
  message.mutable_ranks_joined()->add_ranks(process.rank);
  if (process.announced) {
    message.mutable_ranks_joined()->add_in_process(process.rank);
  }
  Say(process.key(), std::move(message));
}

void Host::Announce(RankProcess& process) {
  if (!world_.works[process.work].in_process || std::exchange(process.announced, true)) return;
  Join(process);
}

void Host::ReportQuiesced(const RankProcess& process, int64_t step) {
  v1::OpenSessionRequest message;
  (*message.mutable_ranks_quiesced()->mutable_steps())[process.rank] = step;
  Say(process.key(), std::move(message));
}

void Host::ReportWait(const RankProcess& process, uint64_t barrier) {
  v1::OpenSessionRequest message;
  v1::WaitReport& report = *message.mutable_wait_report();
  report.set_rank(process.rank);
  v1::WaitCall& call = *report.add_calls();
  call.set_group("world");
  call.add_member_rows(0);
  call.add_member_rows(process.world_size);
  call.add_member_rows(1);
  call.set_sequence(barrier);
  call.set_operation(fmt::format("barrier number {}", barrier));
  (*report.mutable_called())["world"] = barrier;
  *report.mutable_deadlock_after() = ToProtoDuration(seconds(3));
  Say(process.key(), std::move(message));
}

void Host::WithdrawWait(const RankProcess& process) {
  v1::OpenSessionRequest message;
  message.mutable_wait_withdrawn()->set_rank(process.rank);
  Say(process.key(), std::move(message));
}

void Host::StopAll() {
  std::map<std::string, uint64_t> newest;
  for (const auto& [key, run] : runs_) newest[key.first] = key.second;
  for (const auto& [job_id, generation] : newest) {
    const GenerationKey key{job_id, generation};
    Stop(key, runs_.at(key).kill_grace, /*forget=*/false);
  }
}

}  // namespace meshrun::coordinator::simulation
