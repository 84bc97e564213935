#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/cli/job_flags.h"
#include "core/env_entries.h"
#include "tests/coordinator/support/harness.h"

namespace meshrun::coordinator::testing {
namespace {

// What the command says of a job before it submits it.
absl::Status ClientJudges(v1::JobSpec spec) {
  client::JobContext context;
  context.variable = [](const std::string&) { return std::nullopt; };
  context.find_program = [](const std::string&) { return absl::OkStatus(); };
  return client::ApplyJobFlags({}, {}, context, &spec);
}

// The client refuses what the coordinator would refuse, and nothing else, in the same words.
TEST(JobSpecAgreementTest, ClientAndCoordinatorJudgeTheSameSpecsAlike) {
  const struct {
    const char* what;
    std::function<void(v1::JobSpec&)> change;
    bool accepted;
  } cases[] = {
      {"plain", [](auto&) {}, true},
      {"no name", [](auto& s) { s.clear_name(); }, true},
      {"dash inside", [](auto& s) { s.set_name("a-b"); }, true},
      {"dash last", [](auto& s) { s.set_name("train-"); }, false},
      {"dash first", [](auto& s) { s.set_name("-train"); }, false},
      {"capital", [](auto& s) { s.set_name("Train"); }, false},
      {"40 characters", [](auto& s) { s.set_name(std::string(40, 'a')); }, true},
      {"41 characters", [](auto& s) { s.set_name(std::string(41, 'a')); }, false},
      {"no command", [](auto& s) { s.clear_command(); }, false},
      {"empty command", [](auto& s) { s.set_command(0, ""); }, false},
      {"max below min", [](auto& s) { s.set_min_nodes(3), s.set_max_nodes(2); }, false},
      {"no max", [](auto& s) { s.set_min_nodes(3), s.set_max_nodes(0); }, true},
      {"too many nodes", [](auto& s) { s.set_max_nodes(100'001); }, false},
      {"too many ranks of a node", [](auto& s) { s.mutable_procs_per_node()->set_count(4097); },
       false},
      {"zero ranks", [](auto& s) { s.mutable_procs_per_node()->set_count(0); }, true},
      {"too many CPUs", [](auto& s) { s.set_cpus_per_proc(4097); }, false},
      {"too much memory", [](auto& s) { s.set_memory_bytes(~uint64_t{0}); }, false},
      {"negative grace", [](auto& s) { s.mutable_kill_grace()->set_seconds(-1); }, false},
      {"no grace", [](auto& s) { s.mutable_kill_grace(); }, true},
      {"endless queue", [](auto& s) { s.mutable_queue_timeout()->set_seconds(1LL << 40); }, false},
      {"wrong variable", [](auto& s) { SetEnv(*s.mutable_env(), "A=B", ""); }, false},
      {"mesh of no world",
       [](auto& s) {
         s.add_mesh()->set_name("dp");
         s.mutable_mesh(0)->set_size(3);
       },
       false},
      {"mesh axis twice",
       [](auto& s) {
         for (int i = 0; i < 2; ++i) {
           s.add_mesh()->set_name("dp");
           s.mutable_mesh(i)->set_size(1);
         }
       },
       false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    v1::JobSpec spec = MakeSpec(1, 2);
    spec.set_working_dir("/data");
    c.change(spec);
    Harness harness;
    const absl::Status coordinator = harness.TrySubmit(spec).status;
    EXPECT_EQ(coordinator.ok(), c.accepted) << coordinator;
    EXPECT_EQ(ClientJudges(spec), coordinator);
  }
}

}  // namespace
}  // namespace meshrun::coordinator::testing
