#include "coordinator/policy_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/labels.h"
#include "core/log.h"
#include "core/os/files.h"
#include "core/parse_integer.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/suggest.h"
#include "core/text.h"
#include "core/yaml/file_value.h"
#include "core/yaml/yaml_tree.h"

namespace meshrun::coordinator {
namespace {

constexpr double kLeastWeight = 0.001;
constexpr double kMostWeight = 1000;

using google::protobuf::Duration;
using Names = google::protobuf::RepeatedPtrField<std::string>;

// What a key of a map means.
struct Key {
  std::string name;
  std::function<absl::Status(const FileValue&)> set;
};

absl::Status ReadMap(const FileValue& value, const std::vector<Key>& keys) {
  if (value.node.IsNull()) return absl::OkStatus();
  std::vector<std::string> known;
  for (const Key& key : keys) known.push_back(key.name);
  if (!value.node.IsMap())
    return value.Wrong(fmt::format("write a map of {}", fmt::join(known, ", ")));
  for (const auto& entry : value.node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const auto key = std::find_if(keys.begin(), keys.end(),
                                  [&name](const Key& each) { return each.name == name; });
    if (key == keys.end()) {
      const std::string nearest = DidYouMean(name, known);
      return value.WrongAt(
          entry.first,
          fmt::format(
              "no such field '{}'{}", name,
              nearest.empty() ? fmt::format(": there are {}", fmt::join(known, ", ")) : nearest));
    }
    const std::string path = value.key.empty() ? name : value.key + "." + name;
    MESHRUN_RETURN_IF_ERROR(key->set({value.file, path, entry.second}));
  }
  return absl::OkStatus();
}

// Each key of the map is a name that the file gives.
absl::Status ReadNamed(
    const FileValue& value,
    const std::function<absl::Status(const std::string&, const FileValue&)>& set) {
  if (value.node.IsNull()) return absl::OkStatus();
  if (!value.node.IsMap()) return value.Wrong("write a map of names");
  for (const auto& entry : value.node) {
    if (!entry.first.IsScalar() || entry.first.Scalar().empty())
      return value.WrongAt(entry.first, "write a name");
    const std::string& name = entry.first.Scalar();
    MESHRUN_RETURN_IF_ERROR(set(name, {value.file, value.key + "." + name, entry.second}));
  }
  return absl::OkStatus();
}

absl::Status ReadTime(const FileValue& value, bool above_0, Duration* out) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text("write a time, for example 1h30m"));
  const auto time = ParseDuration(text);
  if (!time.ok()) return value.Wrong(time.status());
  if (time->count() == 0 && above_0) return value.Wrong("write a time above 0");
  *out = ToProtoDuration(*time);
  return absl::OkStatus();
}

template <typename Int>
absl::Status ReadNumber(const FileValue& value, const std::function<void(Int)>& set) {
  const auto number = value.node.IsScalar() ? ParseInteger<Int>(value.node.Scalar()) : std::nullopt;
  if (!number.has_value()) return value.Wrong("write a whole number from 0 up");
  set(*number);
  return absl::OkStatus();
}

absl::Status ReadBytes(const FileValue& value, const std::function<void(uint64_t)>& set) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text("write bytes, for example 100M"));
  const auto bytes = ParseBytes(text);
  if (!bytes.ok()) return value.Wrong(bytes.status());
  set(*bytes);
  return absl::OkStatus();
}

absl::Status ReadNames(const FileValue& value, Names* names) {
  if (!value.node.IsSequence()) return value.Wrong("write a list, for example [ada, bob]");
  if (value.node.size() == 0) return value.Wrong("the list is empty: leave it out for everybody");
  for (const YAML::Node& item : value.node) {
    if (!item.IsScalar() || item.Scalar().empty()) return value.WrongAt(item, "write a name");
    *names->Add() = item.Scalar();
  }
  return absl::OkStatus();
}

// {default: ..., max: ...}, or the most alone.
Key DefaultAndMost(const std::string& name, std::function<absl::Status(const FileValue&)> usual,
                   std::function<absl::Status(const FileValue&)> most) {
  return {name, [usual = std::move(usual), most = std::move(most)](const FileValue& value) {
            if (!value.node.IsMap()) return most(value);
            return ReadMap(value, {{"default", usual}, {"max", most}});
          }};
}

Key TimeLimit(const std::string& name, bool above_0, Duration* (v1::UserLimits::*usual)(),
              Duration* (v1::UserLimits::*most)(), v1::UserLimits* out) {
  const auto read = [out, above_0](Duration* (v1::UserLimits::*field)()) {
    return [out, above_0, field](const FileValue& value) {
      return ReadTime(value, above_0, (out->*field)());
    };
  };
  return DefaultAndMost(name, read(usual), read(most));
}

Key Number(const std::string& name, void (v1::UserLimits::*set)(uint32_t), v1::UserLimits* out) {
  return {name, [set, out](const FileValue& value) {
            return ReadNumber<uint32_t>(value, [set, out](uint32_t n) { (out->*set)(n); });
          }};
}

absl::Status ReadLimits(const FileValue& value, v1::UserLimits* out) {
  const auto bytes = [out](void (v1::UserLimits::*set)(uint64_t)) {
    return [out, set](const FileValue& each) {
      return ReadBytes(each, [out, set](uint64_t n) { (out->*set)(n); });
    };
  };
  using L = v1::UserLimits;
  return ReadMap(
      value,
      {TimeLimit("kill_grace", false, &L::mutable_default_kill_grace, &L::mutable_kill_grace, out),
       TimeLimit("time_limit", true, &L::mutable_default_time_limit, &L::mutable_time_limit, out),
       DefaultAndMost("max_restarts", Number("", &L::set_default_max_restarts, out).set,
                      Number("", &L::set_max_restarts, out).set),
       DefaultAndMost("log_bytes", bytes(&L::set_default_log_bytes), bytes(&L::set_log_bytes)),
       Number("ranks", &L::set_ranks, out), Number("queued_jobs", &L::set_queued_jobs, out),
       Number("running_jobs", &L::set_running_jobs, out),
       Number("running_ranks", &L::set_running_ranks, out),
       Number("running_gpus", &L::set_running_gpus, out)});
}

Key Limits(v1::UserLimits* out) {
  return {"limits", [out](const FileValue& value) { return ReadLimits(value, out); }};
}

Key ListOf(const std::string& name, Names* out) {
  return {name, [out](const FileValue& value) { return ReadNames(value, out); }};
}

absl::Status ReadUser(const FileValue& value, v1::UserPolicy* user) {
  return ReadMap(value, {{"weight",
                          [user](const FileValue& each) {
                            double weight = 0;
                            const bool good = YAML::convert<double>::decode(each.node, weight) &&
                                              weight >= kLeastWeight && weight <= kMostWeight;
                            if (!good) {
                              return each.Wrong(fmt::format("write a number from {} to {}",
                                                            kLeastWeight, kMostWeight));
                            }
                            user->set_weight(weight);
                            return absl::OkStatus();
                          }},
                         {"account",
                          [user](const FileValue& each) {
                            MESHRUN_ASSIGN_OR_RETURN(*user->mutable_account(),
                                                     each.Text("write the name of an account"));
                            return absl::OkStatus();
                          }},
                         Limits(user->mutable_limits())});
}

absl::Status ReadPartition(const std::string& name, const FileValue& value, v1::Policy* policy) {
  v1::PartitionPolicy& partition = (*policy->mutable_partitions())[name];
  const auto nodes = [&partition](const FileValue& each) -> absl::Status {
    MESHRUN_RETURN_IF_ERROR(ReadNames(each, partition.mutable_nodes()));
    for (const std::string& constraint : partition.nodes()) {
      const absl::Status status = CheckConstraint(constraint);
      if (!status.ok()) return each.Wrong(status);
    }
    return absl::OkStatus();
  };
  const auto is_default = [&](const FileValue& each) -> absl::Status {
    bool on = false;
    if (!YAML::convert<bool>::decode(each.node, on)) return each.Wrong("write true or false");
    if (on && !policy->default_partition().empty()) {
      return each.Wrong(fmt::format("{} is the default already", policy->default_partition()));
    }
    if (on) policy->set_default_partition(name);
    return absl::OkStatus();
  };
  return ReadMap(value, {{"nodes", nodes},
                         ListOf("users", partition.mutable_users()),
                         ListOf("accounts", partition.mutable_accounts()),
                         {"default", is_default},
                         Limits(partition.mutable_limits())});
}

absl::Status CheckDefaults(std::string_view file, const std::string& where,
                           const v1::UserLimits& limits) {
  const auto longer = [](bool both, const Duration& usual, const Duration& most) {
    return both && FromProto(usual) > FromProto(most);
  };
  const v1::UserLimits& l = limits;
  for (const auto& [field, wrong] :
       {std::pair("kill_grace", longer(l.has_default_kill_grace() && l.has_kill_grace(),
                                       l.default_kill_grace(), l.kill_grace())),
        std::pair("time_limit", longer(l.has_default_time_limit() && l.has_time_limit(),
                                       l.default_time_limit(), l.time_limit())),
        std::pair("max_restarts", l.has_default_max_restarts() && l.has_max_restarts() &&
                                      l.default_max_restarts() > l.max_restarts()),
        std::pair("log_bytes", l.has_default_log_bytes() && l.has_log_bytes() &&
                                   l.default_log_bytes() > l.log_bytes())}) {
    if (wrong) {
      return absl::InvalidArgumentError(
          fmt::format("{}: {}.{}: the default is more than the most", file, where, field));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllDefaults(std::string_view file, const v1::Policy& policy) {
  MESHRUN_RETURN_IF_ERROR(CheckDefaults(file, "limits", policy.limits()));
  for (const auto& [name, user] : policy.users())
    MESHRUN_RETURN_IF_ERROR(CheckDefaults(file, "users." + name + ".limits", user.limits()));
  for (const auto& [name, account] : policy.accounts())
    MESHRUN_RETURN_IF_ERROR(CheckDefaults(file, "accounts." + name + ".limits", account.limits()));
  for (const auto& [name, partition] : policy.partitions()) {
    MESHRUN_RETURN_IF_ERROR(
        CheckDefaults(file, "partitions." + name + ".limits", partition.limits()));
  }
  return absl::OkStatus();
}

// Names that stand for something must be there, and let in whom they are given to.
absl::Status CheckNames(std::string_view file, const v1::Policy& policy) {
  const auto missing = [&](std::string_view where, const std::string& account) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {}: there is no account '{}' below accounts", file, where, account));
  };
  for (const auto& [name, user] : policy.users()) {
    if (!user.account().empty() && !policy.accounts().contains(user.account()))
      return missing("users." + name, user.account());
    if (user.account().empty()) continue;
    const auto& users = policy.accounts().at(user.account()).users();
    if (!users.empty() && std::find(users.begin(), users.end(), name) == users.end()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: users.{}: the account '{}' does not have {} among its users", file, name,
                      user.account(), name));
    }
  }
  for (const auto& [name, partition] : policy.partitions()) {
    for (const std::string& account : partition.accounts()) {
      if (!policy.accounts().contains(account)) return missing("partitions." + name, account);
    }
    const bool closed = !partition.users().empty() || !partition.accounts().empty();
    if (closed && policy.default_partition().empty()) {
      return absl::InvalidArgumentError(
          fmt::format("{}: partitions.{}: it is for some alone, and a job that names no partition "
                      "could use its nodes: give another one `default: true`, with nodes that are "
                      "not its own",
                      file, name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Policy> ParsePolicy(std::string_view name, const std::string& text) {
  v1::Policy policy;
  try {
    MESHRUN_ASSIGN_OR_RETURN(const YAML::Node root,
                             LoadYaml(name, text, "a policy is one document"));
    const auto users = [&policy](const std::string& user, const FileValue& value) {
      return ReadUser(value, &(*policy.mutable_users())[user]);
    };
    const auto accounts = [&policy](const std::string& account, const FileValue& value) {
      v1::AccountPolicy& out = (*policy.mutable_accounts())[account];
      return ReadMap(value, {ListOf("users", out.mutable_users()), Limits(out.mutable_limits())});
    };
    const auto partitions = [&policy](const std::string& partition, const FileValue& value) {
      return ReadPartition(partition, value, &policy);
    };
    const auto private_jobs = [&policy](const FileValue& value) -> absl::Status {
      bool on = false;
      if (!YAML::convert<bool>::decode(value.node, on)) return value.Wrong("write true or false");
      policy.set_private_jobs(on);
      return absl::OkStatus();
    };
    MESHRUN_RETURN_IF_ERROR(ReadMap(
        {name, "", root},
        {Limits(policy.mutable_limits()),
         {"users", [&](const FileValue& value) { return ReadNamed(value, users); }},
         {"accounts", [&](const FileValue& value) { return ReadNamed(value, accounts); }},
         {"partitions", [&](const FileValue& value) { return ReadNamed(value, partitions); }},
         {"private_jobs", private_jobs}}));
  } catch (const YAML::Exception& error) {
    return WrongIn(name, error.mark, error.msg);
  }
  MESHRUN_RETURN_IF_ERROR(CheckAllDefaults(name, policy));
  MESHRUN_RETURN_IF_ERROR(CheckNames(name, policy));
  return policy;
}

absl::StatusOr<v1::Policy> ReadPolicy(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path));
  return ParsePolicy(path, text);
}

absl::StatusOr<v1::Policy> PolicyFile::Read() {
  auto policy = ReadPolicy(path_);
  if (policy.ok()) {
    const MutexLock lock(mu_);
    last_ = *policy;
  }
  return policy;
}

absl::StatusOr<v1::Policy> PolicyFile::ReadOrKeep(const Note& note) {
  auto policy = Read();
  if (policy.ok()) return policy;
  std::optional<v1::Policy> last;
  {
    const MutexLock lock(mu_);
    last = last_;
  }
  if (!last.has_value()) return policy;
  Refuse(policy.status(), note);
  return *std::move(last);
}

void PolicyFile::Refuse(const absl::Status& why, const Note& note) {
  log::Error("the policy stays as it was", {{"error", why}});
  note("PolicyRefused", "the policy stays as it was: " + std::string(why.message()));
}

}  // namespace meshrun::coordinator
