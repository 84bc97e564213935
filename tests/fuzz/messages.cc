#include "tests/fuzz/messages.h"

#include "core/env_entries.h"
#include "core/proto_time.h"
#include "meshrun/v1/error.pb.h"
#include "meshrun/v1/waiting.pb.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::fuzz {
namespace {

using coordinator::testing::FakeWorker;
using coordinator::testing::Harness;
using coordinator::testing::MakeSpec;

// Two nodes, and a job on both.
struct World {
  World() {
    first = &harness.AddWorker("a");
    harness.AddWorker("b");
    job_id = harness.Submit(MakeSpec(2, 2));
  }
  Harness harness;
  FakeWorker* first = nullptr;
  std::string job_id;
};

v1::WaitReport Report() {
  v1::WaitReport report;
  (*report.mutable_called())["world"] = 3;
  v1::WaitCall& call = *report.add_calls();
  call.set_group("world");
  for (int rank = 0; rank < 4; ++rank) call.add_members(rank);
  call.set_sequence(4);
  call.set_operation("all_reduce 4");
  return report;
}

}  // namespace

std::string WaitReportBytes() { return Report().SerializeAsString(); }

std::string ErrorStatusBytes() {
  v1::ErrorStatus status;
  status.set_code(10);
  v1::ErrorDetail detail;
  detail.set_origin(v1::ERROR_ORIGIN_WORKER);
  status.add_details()->PackFrom(detail);
  return status.SerializeAsString();
}

std::string JobSpecBytes() {
  v1::JobSpec spec = MakeSpec(2, 2);
  spec.add_mesh()->set_name("dp");
  spec.mutable_mesh(0)->set_size(-1);
  SetEnv(*spec.mutable_env(), "A", "b");
  *spec.mutable_kill_grace() = ToProtoDuration(std::chrono::seconds(5));
  return spec.SerializeAsString();
}

void StepStateMachine(std::string_view bytes) {
  v1::StateEvent event;
  if (!event.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  // From the coordinator itself, never from outside.
  if (event.has_restore() || event.has_session_closed() || event.has_call_cancelled()) return;
  World world;
  if (event.has_session_message()) {
    v1::OpenSessionRequest message = event.session_message().message();
    message.mutable_fence()->set_term(world.harness.term());
    message.mutable_fence()->set_incarnation(1);
    if (message.fence().job_id().empty()) {
      message.mutable_fence()->set_job_id(world.job_id);
      message.mutable_fence()->set_generation(1);
    }
    world.harness.Say(*world.first, {message});
  } else {
    // The fence of what a rank says, whichever message it is.
    const auto* const oneof = v1::StateEvent::descriptor()->FindOneofByName("event");
    const auto* const field = event.GetReflection()->GetOneofFieldDescriptor(event, oneof);
    if (field == nullptr) return;
    auto& body = *event.GetReflection()->MutableMessage(&event, field);
    if (const auto* fence = body.GetDescriptor()->FindFieldByName("fence")) {
      auto& own = dynamic_cast<v1::Fence&>(*body.GetReflection()->MutableMessage(&body, fence));
      own.set_term(0);
      own.set_job_id(world.job_id);
      own.set_generation(1);
      own.set_node_id(world.first->node_id());
      own.set_incarnation(1);
    } else if (const auto* job = body.GetDescriptor()->FindFieldByName("job_id")) {
      body.GetReflection()->SetString(&body, job, world.job_id);
    }
    world.harness.Call(event);
  }
  world.harness.Advance(std::chrono::seconds(2));
}

std::vector<std::string> EventSeeds() {
  std::vector<v1::StateEvent> events;
  const auto message = [&events]() -> v1::OpenSessionRequest& {
    return *events.emplace_back().mutable_session_message()->mutable_message();
  };
  v1::RankExit& exit = *message().mutable_rank_exit();
  exit.set_rank(1);
  exit.set_exit_code(3);
  exit.add_last_lines("last");
  (*message().mutable_ranks_started()->mutable_pids())[0] = 7;
  (*message().mutable_progress_report()->mutable_progress())[0].set_step(5);
  *message().mutable_wait_report() = Report();
  message().mutable_prepare_result()->set_ok(true);
  message().mutable_generation_ended();
  message().mutable_heartbeat()->set_sequence(3);
  v1::Hello& hello = *message().mutable_hello();
  hello.set_node_id("id-a");
  hello.set_name("a");
  hello.mutable_resources()->set_slots(8);
  hello.add_running()->set_job_id("x");
  (*events.emplace_back().mutable_set_values()->mutable_values())["k"] = "v";
  events.emplace_back().mutable_get_values()->add_keys("k");
  v1::AddValueRequest& add = *events.emplace_back().mutable_add_value();
  add.set_key("n");
  add.set_amount(INT64_MAX);
  add.set_request_id("r");
  v1::EnterBarrierRequest& barrier = *events.emplace_back().mutable_enter_barrier();
  barrier.set_name("world/x");
  barrier.add_ranks(0);
  barrier.add_ranks(2);
  v1::RegisterGroupRequest& group = *events.emplace_back().mutable_register_group();
  group.set_name("g");
  group.add_ranks(1);
  events.emplace_back().mutable_publish_unique_id()->set_group("g");
  events.emplace_back().mutable_get_world();
  events.emplace_back().mutable_report_finished()->set_rank(1);
  events.emplace_back().mutable_get_finished();
  *events.emplace_back().mutable_submit_job()->mutable_spec() = MakeSpec(1, 1);
  events.emplace_back().mutable_read_logs()->add_ranks(1);
  events.emplace_back().mutable_list_jobs()->set_page_token("2");
  events.emplace_back().mutable_cancel_job()->set_now(true);
  events.emplace_back().mutable_get_flight_records();
  events.emplace_back().mutable_upload_flight_record()->mutable_record()->set_rank(1);
  events.emplace_back().mutable_get_stacks();
  events.emplace_back().mutable_upload_stack()->mutable_stack()->set_rank(1);
  std::vector<std::string> out;
  for (v1::StateEvent& event : events) {
    event.set_call_id(1000);
    out.push_back(event.SerializeAsString());
  }
  return out;
}

}  // namespace meshrun::fuzz
