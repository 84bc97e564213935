// Each flag and each key of a job file, given alone, sets the fields of JobSpec that it is named
// after, and no other.
#include "client/job_fields.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/cli/job_flags.h"
#include "client/job_file.h"

namespace meshrun::client {
namespace {

struct FieldCase {
  // Every name of the flag, separated by commas. Empty: the field has no flag.
  std::string flags;
  std::string keys;
  // What is given: to the flag (empty: it is a switch), and in a file.
  std::string text;
  std::string yaml;
  // What that sets.
  void (*set)(v1::JobSpec& spec);
  // Lines that a file needs before it.
  std::string before = "";
};

// No two cases give the same number.
std::vector<FieldCase> Cases() {
  return {
      {"--nodes,--nnodes", "nodes", "3:5", "\"3:5\"",
       [](v1::JobSpec& spec) {
         spec.set_min_nodes(3);
         spec.set_max_nodes(5);
       }},
      {"", "min_nodes", "", "15", [](v1::JobSpec& spec) { spec.set_min_nodes(15); }},
      {"", "max_nodes", "", "16", [](v1::JobSpec& spec) { spec.set_max_nodes(16); }},
      {"--procs-per-node,--nproc-per-node,--nproc", "procs_per_node", "6", "6",
       [](v1::JobSpec& spec) { spec.mutable_procs_per_node()->set_count(6); }},
      {"--mesh", "mesh", "dp=-1,spatial=1", "{dp: -1, spatial: 1}",
       [](v1::JobSpec& spec) {
         v1::MeshAxis* axis = spec.add_mesh();
         axis->set_name("dp");
         axis->set_size(-1);
         axis = spec.add_mesh();
         axis->set_name("spatial");
         axis->set_size(1);
       }},
      {"--gpus-per-proc", "gpus_per_proc", "2", "2",
       [](v1::JobSpec& spec) { spec.set_gpus_per_proc(2); }},
      {"--cpus-per-proc", "cpus_per_proc", "4", "4",
       [](v1::JobSpec& spec) { spec.set_cpus_per_proc(4); }},
      {"--numa-binding", "numa_binding", "core-complex", "core-complex",
       [](v1::JobSpec& spec) { spec.set_numa_binding(v1::NUMA_BINDING_CORE_COMPLEX); }},
      {"--memory", "memory,memory_bytes", "7G", "7G",
       [](v1::JobSpec& spec) { spec.set_memory_bytes(uint64_t{7} << 30); }},
      {"--env", "env", "SEED=8", "{SEED: 8}",
       [](v1::JobSpec& spec) {
         v1::EnvEntry& entry = *spec.add_env();
         entry.set_name("SEED");
         entry.set_value("8");
       }},
      {"--priority", "priority", "-9", "-9", [](v1::JobSpec& spec) { spec.set_priority(-9); }},
      {"--constraint", "constraints", "zone=a", "[zone=a]",
       [](v1::JobSpec& spec) { spec.add_constraints("zone=a"); }},
      {"--exclude", "exclude_nodes", "node-a", "[node-a]",
       [](v1::JobSpec& spec) { spec.add_exclude_nodes("node-a"); }},
      {"--hold", "hold", "", "true", [](v1::JobSpec& spec) { spec.set_hold(true); }},
      {"--after", "after", "ok:a-x1y2z3", "[ok:a-x1y2z3]",
       [](v1::JobSpec& spec) { spec.add_after("ok:a-x1y2z3"); }},
      {"--account", "account", "physics", "physics",
       [](v1::JobSpec& spec) { spec.set_account("physics"); }},
      {"--partition", "partition", "gpu", "gpu",
       [](v1::JobSpec& spec) { spec.set_partition("gpu"); }},
      {"--array", "array", "3,5-6%2", "3,5-6%2",
       [](v1::JobSpec& spec) {
         for (const uint32_t index : {3, 5, 6}) spec.mutable_array()->add_indices(index);
         spec.mutable_array()->set_at_once(2);
       }},
      {"--private", "private", "", "true", [](v1::JobSpec& spec) { spec.set_private_(true); }},
      {"--virtual-local-rank", "virtual_local_rank", "", "true",
       [](v1::JobSpec& spec) { spec.set_virtual_local_rank(true); }},
      {"--log-limit", "log_limit,log_bytes", "100M", "100M",
       [](v1::JobSpec& spec) { spec.set_log_bytes(100 << 20); }},
      {"", "command", "", "[./run, --fast]",
       [](v1::JobSpec& spec) {
         spec.add_command("./run");
         spec.add_command("--fast");
       }},
      {"", "args", "", "[--steps]",
       [](v1::JobSpec& spec) {
         spec.set_shipped_job("geoid");
         spec.add_command("--steps");
       },
       "job: geoid\n"},
      {"--job", "job,shipped_job", "geoid", "geoid",
       [](v1::JobSpec& spec) { spec.set_shipped_job("geoid"); }},
      {"--name", "name", "mine", "mine", [](v1::JobSpec& spec) { spec.set_name("mine"); }},
      {"--working-dir", "working_dir", "/there", "/there",
       [](v1::JobSpec& spec) { spec.set_working_dir("/there"); }},
      {"--tensorboard", "tensorboard", "curves", "curves",
       [](v1::JobSpec& spec) { spec.set_tensorboard("curves"); }},
      {"--max-restarts", "max_restarts", "10", "10",
       [](v1::JobSpec& spec) { spec.set_max_restarts(10); }},
      {"--recovery", "recovery", "respawn", "respawn",
       [](v1::JobSpec& spec) { spec.set_recovery(v1::RECOVERY_RESPAWN); }},
      {"--replace", "replace", "at-once", "at-once",
       [](v1::JobSpec& spec) { spec.set_replace_at_once(true); }},
      {"--grow", "grow", "never", "never",
       [](v1::JobSpec& spec) { spec.set_growth(v1::GROWTH_NEVER); }},
      {"--kill-grace", "kill_grace", "11s", "11s",
       [](v1::JobSpec& spec) { spec.mutable_kill_grace()->set_seconds(11); }},
      {"--hang-timeout", "hang_timeout", "12s", "12s",
       [](v1::JobSpec& spec) { spec.mutable_hang_timeout()->set_seconds(12); }},
      {"--queue-timeout", "queue_timeout", "13s", "13s",
       [](v1::JobSpec& spec) { spec.mutable_queue_timeout()->set_seconds(13); }},
      {"--time-limit", "time_limit", "14s", "14s",
       [](v1::JobSpec& spec) { spec.mutable_time_limit()->set_seconds(14); }},
  };
}

std::vector<std::string> Names(const std::string& list) {
  std::vector<std::string> names;
  for (size_t at = 0; at < list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    names.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

// What the words of a command line before its command, ./train, make of a job that has a name and
// a directory: neither then follows from anything else.
v1::JobSpec FromFlags(std::vector<std::string> words) {
  CLI::App app("Runs a job", "run");
  JobFlags values;
  FlagSet flags(app);
  AddJobFlags(flags, &values);
  app.parse(words);
  JobContext context;
  context.working_dir = "/work";
  context.variable = [](const std::string&) { return std::optional<std::string>(); };
  context.find_program = [](const std::string&) { return absl::OkStatus(); };
  v1::JobSpec spec;
  spec.set_name("base");
  spec.set_working_dir("/base");
  const absl::Status status = ApplyJobFlags(values, {"./train"}, context, &spec);
  EXPECT_TRUE(status.ok()) << status;
  return spec;
}

TEST(JobFieldsTest, EachFlagAloneSetsWhatItsNameSays) {
  for (const FieldCase& c : Cases()) {
    for (const std::string& flag : Names(c.flags)) {
      v1::JobSpec expected = FromFlags({});
      c.set(expected);
      const v1::JobSpec spec = FromFlags({c.text.empty() ? flag : flag + "=" + c.text});
      EXPECT_EQ(spec.ShortDebugString(), expected.ShortDebugString()) << flag;
    }
  }
}

TEST(JobFieldsTest, EachKeyAloneSetsWhatItsNameSays) {
  for (const FieldCase& c : Cases()) {
    for (const std::string& key : Names(c.keys)) {
      v1::JobSpec expected;
      c.set(expected);
      const auto spec = ParseJobText(c.before + key + ": " + c.yaml + "\n", "job.yaml");
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(spec->ShortDebugString(), expected.ShortDebugString()) << key;
    }
  }
}

// A new flag, key or field of JobSpec needs a case here.
TEST(JobFieldsTest, EveryFlagAndKeyAndFieldHasACase) {
  std::set<std::string> flags, keys, case_flags, case_keys;
  for (const JobField& field : JobFields()) {
    for (const std::string& flag : Names(field.flag)) flags.insert(flag);
    keys.insert(field.keys.begin(), field.keys.end());
  }
  v1::JobSpec all;
  for (const FieldCase& c : Cases()) {
    for (const std::string& flag : Names(c.flags)) case_flags.insert(flag);
    for (const std::string& key : Names(c.keys)) case_keys.insert(key);
    c.set(all);
  }
  EXPECT_EQ(case_flags, flags);
  EXPECT_EQ(case_keys, keys);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  all.GetReflection()->ListFields(all, &set);
  EXPECT_EQ(static_cast<int>(set.size()), v1::JobSpec::descriptor()->field_count())
      << "all of them: " << all.ShortDebugString();
}

}  // namespace
}  // namespace meshrun::client
