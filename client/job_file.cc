#include "client/job_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "client/job_spec.h"
#include "client/suggest.h"
#include "core/env_entries.h"
#include "core/job_spec.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/proto_time.h"
#include "core/status.h"
#include "core/text.h"

namespace meshrun::client {
namespace {

// One value of the file, with its position for errors.
struct Value {
  std::string_view file;
  std::string field;
  YAML::Node node;

  absl::Status Wrong(std::string_view what) const { return WrongAt(node, what); }
  absl::Status WrongAt(const YAML::Node& at, std::string_view what) const {
    const YAML::Mark mark = at.Mark();
    return absl::InvalidArgumentError(
        fmt::format("{}:{}:{}: {}: {}", file, mark.line + 1, mark.column + 1, field, what));
  }
  absl::Status WrongAt(const YAML::Node& at, const absl::Status& status) const {
    return WrongAt(at, std::string_view(status.message().data(), status.message().size()));
  }

  absl::StatusOr<std::string> Text(std::string_view what_to_write) const {
    if (!node.IsScalar() || node.Scalar().empty()) return Wrong(what_to_write);
    return node.Scalar();
  }
  template <typename Int>
  absl::StatusOr<Int> Number(Int min, std::string_view example) const {
    Int value{};
    const std::string text = node.IsScalar() ? node.Scalar() : std::string();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || text.empty() || value < min) {
      return Wrong(fmt::format("{} is not a whole number from {} up: write for example {}: {}",
                               node.IsScalar() ? "'" + text + "'" : "this", min, field, example));
    }
    return value;
  }
};

using Setter = std::function<absl::Status(const Value&, v1::JobSpec*)>;

template <typename Int>
Setter NumberField(void (v1::JobSpec::*set)(Int), Int min, std::string example) {
  return [=](const Value& value, v1::JobSpec* spec) -> absl::Status {
    MESHRUN_ASSIGN_OR_RETURN(const Int number, value.Number<Int>(min, example));
    (spec->*set)(number);
    return absl::OkStatus();
  };
}

Setter TextField(void (*set)(v1::JobSpec*, const std::string&), std::string what_to_write) {
  return [=](const Value& value, v1::JobSpec* spec) -> absl::Status {
    MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text(what_to_write));
    set(spec, text);
    return absl::OkStatus();
  };
}

// `if_zero`: what to write in place of 0; empty: it is taken.
Setter DurationField(google::protobuf::Duration* (v1::JobSpec::*mutable_field)(),
                     std::string if_zero = "") {
  return [=](const Value& value, v1::JobSpec* spec) -> absl::Status {
    MESHRUN_ASSIGN_OR_RETURN(const std::string text,
                             value.Text("write for example 10s, 2m or 1h30m"));
    const auto duration = ParseDuration(text);
    if (!duration.ok()) return value.WrongAt(value.node, duration.status());
    if (duration->count() == 0 && !if_zero.empty()) return value.Wrong(if_zero);
    *(spec->*mutable_field)() = ToProtoDuration(*duration);
    return absl::OkStatus();
  };
}

Setter WordField(absl::Status (*set)(std::string_view, v1::JobSpec*), std::string what_to_write) {
  return [=](const Value& value, v1::JobSpec* spec) -> absl::Status {
    MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text(what_to_write));
    const absl::Status status = set(text, spec);
    return status.ok() ? status : value.WrongAt(value.node, status);
  };
}

Setter ListField(void (*add)(v1::JobSpec*, const std::string&), std::string what_to_write) {
  return [=](const Value& value, v1::JobSpec* spec) -> absl::Status {
    if (!value.node.IsSequence()) return value.Wrong(what_to_write);
    for (const YAML::Node& item : value.node) {
      if (!item.IsScalar() || item.Scalar().empty()) return value.WrongAt(item, what_to_write);
      add(spec, item.Scalar());
    }
    return absl::OkStatus();
  };
}

absl::Status SetHold(const Value& value, v1::JobSpec* spec) {
  bool hold = false;
  if (!value.node.IsScalar() || !YAML::convert<bool>::decode(value.node, hold)) {
    return value.Wrong("write hold: true or hold: false");
  }
  spec->set_hold(hold);
  return absl::OkStatus();
}

absl::Status SetName(const Value& value, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text("write for example name: geoid"));
  if (const absl::Status status = CheckJobName(text); !status.ok())
    return value.WrongAt(value.node, status);
  spec->set_name(text);
  return absl::OkStatus();
}

absl::Status SetCommand(const Value& value, v1::JobSpec* spec) {
  static constexpr char kWrite[] =
      "write the program and its arguments, as text or as a list: [./train, --steps, 100]";
  if (value.node.IsScalar()) {
    const auto parts = SplitCommandLine(value.node.Scalar());
    if (!parts.ok()) return value.WrongAt(value.node, parts.status());
    for (const std::string& part : *parts) spec->add_command(part);
  } else if (value.node.IsSequence()) {
    for (const YAML::Node& part : value.node) {
      if (!part.IsScalar()) return value.WrongAt(part, kWrite);
      spec->add_command(part.Scalar());
    }
  }
  return spec->command().empty() ? value.Wrong(kWrite) : absl::OkStatus();
}

absl::Status SetNodes(const Value& value, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text,
                           value.Text("write for example nodes: 2 or nodes: \"1:4\""));
  const auto range = ParseNodeRange(text);
  if (!range.ok()) return value.WrongAt(value.node, range.status());
  spec->set_min_nodes(range->min);
  spec->set_max_nodes(range->max);
  return absl::OkStatus();
}

absl::Status SetProcs(const Value& value, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text("write a number, gpu or cpu"));
  const auto procs = ParseProcsPerNode(text, true);
  if (!procs.ok()) return value.WrongAt(value.node, procs.status());
  *spec->mutable_procs_per_node() = *procs;
  return absl::OkStatus();
}

absl::Status SetMemory(const Value& value, v1::JobSpec* spec) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string text, value.Text("write for example memory: 4G"));
  const auto bytes = ParseBytes(text);
  if (!bytes.ok()) return value.WrongAt(value.node, bytes.status());
  spec->set_memory_bytes(*bytes);
  return absl::OkStatus();
}

absl::Status SetMeshField(const Value& value, v1::JobSpec* spec) {
  std::string text;
  if (value.node.IsMap()) {
    for (const auto& axis : value.node) {
      if (!axis.first.IsScalar() || !axis.second.IsScalar()) {
        return value.WrongAt(axis.second, "write for example mesh: {dp: -1, spatial: 2}");
      }
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.first.Scalar(),
                          axis.second.Scalar());
    }
  } else if (value.node.IsScalar()) {
    text = value.node.Scalar();
  }
  if (text.empty()) return value.Wrong("write for example mesh: {dp: -1, spatial: 2}");
  const absl::Status status = SetMesh(text, spec);
  return status.ok() ? status : value.WrongAt(value.node, status);
}

absl::Status SetEnvField(const Value& value, v1::JobSpec* spec) {
  if (!value.node.IsMap()) return value.Wrong("write a map, for example env: {OMP_NUM_THREADS: 2}");
  for (const auto& entry : value.node) {
    if (!entry.first.IsScalar() || !(entry.second.IsScalar() || entry.second.IsNull())) {
      return value.WrongAt(entry.first, "each variable has one text as its value");
    }
    SetEnv(*spec->mutable_env(), entry.first.Scalar(),
           entry.second.IsNull() ? "" : entry.second.Scalar());
  }
  return absl::OkStatus();
}

const std::map<std::string, Setter>& Fields() {
  static const auto* const fields = [] {
    const auto shipped =
        TextField([](v1::JobSpec* s, const std::string& t) { s->set_shipped_job(t); },
                  "write the name of a shipped job, for example geoid");
    return new std::map<std::string, Setter>{
        {"name", SetName},
        {"command", SetCommand},
        {"args", SetCommand},
        {"job", shipped},
        {"shipped_job", shipped},
        {"working_dir",
         TextField([](v1::JobSpec* s, const std::string& t) { s->set_working_dir(t); },
                   "write a directory")},
        {"env", SetEnvField},
        {"nodes", SetNodes},
        {"min_nodes", NumberField<uint32_t>(&v1::JobSpec::set_min_nodes, 1, "1")},
        {"max_nodes", NumberField<uint32_t>(&v1::JobSpec::set_max_nodes, 1, "4")},
        {"procs_per_node", SetProcs},
        {"gpus_per_proc", NumberField<uint32_t>(&v1::JobSpec::set_gpus_per_proc, 0, "1")},
        {"cpus_per_proc", NumberField<uint32_t>(&v1::JobSpec::set_cpus_per_proc, 1, "1")},
        {"memory", SetMemory},
        {"memory_bytes", SetMemory},
        {"mesh", SetMeshField},
        {"max_restarts", NumberField<uint32_t>(&v1::JobSpec::set_max_restarts, 0, "3")},
        {"hang_timeout", DurationField(&v1::JobSpec::mutable_hang_timeout)},
        {"recovery", WordField(&SetRecovery, "write auto or respawn")},
        {"replace", WordField(&SetReplace, "write at-once")},
        {"grow", WordField(&SetGrowth, "write checkpoint, at-once or never")},
        {"kill_grace", DurationField(&v1::JobSpec::mutable_kill_grace)},
        {"time_limit", DurationField(&v1::JobSpec::mutable_time_limit,
                                     "write a time above 0, for example 1h30m, or leave it out to "
                                     "run without limit")},
        {"constraints",
         ListField([](v1::JobSpec* s, const std::string& t) { s->add_constraints(t); },
                   "write for example constraints: [zone=a, nvlink]")},
        {"exclude_nodes",
         ListField([](v1::JobSpec* s, const std::string& t) { s->add_exclude_nodes(t); },
                   "write for example exclude_nodes: [node-a, node-b]")},
        {"hold", SetHold},
        {"queue_timeout", DurationField(&v1::JobSpec::mutable_queue_timeout)},
        {"priority", NumberField<int32_t>(&v1::JobSpec::set_priority,
                                          std::numeric_limits<int32_t>::min(), "5")},
    };
  }();
  return *fields;
}

// Fields that say the same thing in two ways.
constexpr std::pair<const char*, const char*> kExclusive[] = {
    {"nodes", "min_nodes"}, {"nodes", "max_nodes"},     {"job", "shipped_job"},
    {"job", "command"},     {"shipped_job", "command"}, {"memory", "memory_bytes"},
};

absl::Status WrongIn(std::string_view file, const YAML::Mark& mark, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("{}:{}:{}: {}", file, std::max(mark.line, 0) + 1,
                                                std::max(mark.column, 0) + 1, what));
}

// yaml-cpp takes a quoted text that ends with the file for a whole one.
bool IsClosed(const std::string& text, const YAML::Node& node) {
  const auto begin = static_cast<size_t>(node.Mark().pos);
  if (node.Tag() != "!" || begin >= text.size()) return true;
  const char quote = text[begin];
  if (quote != '"' && quote != '\'') return true;
  for (size_t at = begin + 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      if (quote == '"' || at + 1 >= text.size() || text[at + 1] != quote) return true;
      ++at;
    }
  }
  return false;
}

// What yaml-cpp accepts and nobody means: quotes that are never closed, keys that are set twice.
absl::Status CheckTree(std::string_view file, const std::string& text, const YAML::Node& node,
                       int depth) {
  constexpr int kDeepest = 32;
  if (depth > kDeepest) return WrongIn(file, node.Mark(), "nested too deeply");
  if (node.IsScalar() && !IsClosed(text, node)) {
    return WrongIn(file, node.Mark(), "this quote is never closed");
  }
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, item, depth + 1));
    }
  }
  if (!node.IsMap()) return absl::OkStatus();
  std::map<std::string, int> lines;
  for (const auto& entry : node) {
    MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, entry.first, depth + 1));
    MESHRUN_RETURN_IF_ERROR(CheckTree(file, text, entry.second, depth + 1));
    if (!entry.first.IsScalar()) continue;
    const auto [known, is_new] = lines.emplace(entry.first.Scalar(), entry.first.Mark().line + 1);
    if (!is_new) {
      return WrongIn(file, entry.first.Mark(),
                     fmt::format("{}: set before, at line {}: remove one of the two",
                                 entry.first.Scalar(), known->second));
    }
  }
  return absl::OkStatus();
}

constexpr size_t kMostBytes = size_t{2} << 20;

// kMostBytes and one, at most: pipes are welcome, and what never ends is not.
absl::StatusOr<std::string> ReadSome(const std::string& path) {
  const os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return os::ErrnoStatus(errno, path);
  std::string content(kMostBytes + 1, '\0');
  size_t size = 0;
  while (size < content.size()) {
    const ssize_t n = ::read(fd.get(), content.data() + size, content.size() - size);
    if (n == 0) break;
    if (n > 0) {
      size += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      // A directory, for one.
      return absl::InvalidArgumentError(std::string(os::ErrnoStatus(errno, path).message()));
    }
  }
  content.resize(size);
  return content;
}

absl::StatusOr<v1::JobSpec> ParseFields(const YAML::Node& root, std::string_view name) {
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: a job file is a list of 'field: value' lines, for example 'command: ./train'", name));
  }
  v1::JobSpec spec;
  std::map<std::string, YAML::Node> seen;
  for (const auto& entry : root) {
    const Value value{name, entry.first.IsScalar() ? entry.first.Scalar() : "this key",
                      entry.second};
    const auto field = Fields().find(value.field);
    if (field == Fields().end()) {
      std::vector<std::string> known;
      for (const auto& [field_name, setter] : Fields()) known.push_back(field_name);
      const std::string nearest = DidYouMean(value.field, known);
      return value.WrongAt(
          entry.first,
          fmt::format("no such field{}", nearest.empty()
                                             ? fmt::format(": there are {}", fmt::join(known, ", "))
                                             : nearest));
    }
    seen.emplace(value.field, entry.first);
    for (const auto& [one, other] : kExclusive) {
      const char* rival = value.field == one ? other : value.field == other ? one : nullptr;
      if (rival != nullptr && seen.count(rival) != 0) {
        return value.WrongAt(entry.first,
                             fmt::format("{} is set too, at line {}: write only one of them", rival,
                                         seen[rival].Mark().line + 1));
      }
    }
    MESHRUN_RETURN_IF_ERROR(field->second(value, &spec));
  }
  if (seen.count("args") != 0 && spec.shipped_job().empty()) {
    return Value{name, "args", seen["args"]}.Wrong(
        "these are the arguments of a shipped job, and there is no 'job:': write the whole call in "
        "'command:'");
  }
  if (spec.max_nodes() != 0 && spec.max_nodes() < spec.min_nodes()) {
    return Value{name, "max_nodes", seen["max_nodes"]}.Wrong(
        fmt::format("{} is less than min_nodes, {}", spec.max_nodes(), spec.min_nodes()));
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitCommandLine(std::string_view line) {
  std::vector<std::string> parts;
  std::string part;
  bool in_part = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else if (c == '\\' && quote == '"' && i + 1 < line.size() &&
                 (line[i + 1] == '"' || line[i + 1] == '\\' || line[i + 1] == '$')) {
        part += line[++i];
      } else {
        part += c;
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_part = true;
    } else if (c == '\\' && i + 1 < line.size()) {
      part += line[++i];
      in_part = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (in_part) parts.push_back(std::exchange(part, ""));
      in_part = false;
    } else if (std::string_view("|&;<>`$").find(c) != std::string_view::npos) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' would need a shell: quote it, or write the command as a list: [sh, -c, \"...\"]",
          c));
    } else {
      part += c;
      in_part = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(fmt::format("a {} is never closed", quote));
  }
  if (in_part) parts.push_back(part);
  return parts;
}

namespace {

// Keeps where the first node of a document begins.
class FirstNode : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Keep(mark, true); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Keep(mark, false); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    Keep(mark, false);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Keep(mark, false);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Keep(mark, false);
  }
  void OnMapEnd() override {}

  const YAML::Mark& mark() const { return mark_; }
  bool is_null() const { return is_null_; }

 private:
  void Keep(const YAML::Mark& mark, bool is_null) {
    if (kept_) return;
    kept_ = true;
    mark_ = mark;
    is_null_ = is_null;
  }

  bool kept_ = false;
  bool is_null_ = false;
  YAML::Mark mark_;
};

// Not by YAML::LoadAll: before yaml-cpp 0.9 it reads a comma outside of a list as an empty document
// and stays before it, so that documents without end fill the memory.
absl::Status CheckOneDocument(std::string_view name, const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstNode first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) {
    return absl::OkStatus();
  }
  return WrongIn(
      name, second.mark(),
      second.is_null()
          ? "a second document begins here, or this is not YAML: a job file holds one job"
          : "a second document begins here: a job file holds one job");
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobText(const std::string& text, std::string_view name) {
  // yaml-cpp throws; no exception leaves this function.
  try {
    const YAML::Node root = YAML::Load(text);
    MESHRUN_RETURN_IF_ERROR(CheckTree(name, text, root, 0));
    MESHRUN_RETURN_IF_ERROR(CheckOneDocument(name, text));
    return ParseFields(root, name);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(fmt::format("{}:{}:{}: this is not YAML: {}", name,
                                                  e.mark.line + 1, e.mark.column + 1, e.msg));
  }
}

absl::StatusOr<v1::JobSpec> ReadJobFile(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  const auto text = ReadSome(path == "-" ? "/dev/stdin" : path);
  if (!text.ok()) return text.status();
  if (const size_t zero = text->find('\0'); zero != std::string::npos) {
    YAML::Mark mark;
    mark.line = static_cast<int>(std::count(text->begin(), text->begin() + zero, '\n'));
    mark.column = 0;
    return WrongIn(name, mark, "a zero byte: this is not YAML");
  }
  if (text->size() > kMostBytes) {
    return WrongIn(
        name, YAML::Mark(),
        fmt::format("it has more than {}: this is not a job file", FormatBytes(kMostBytes)));
  }
  return ParseJobText(*text, name);
}

}  // namespace meshrun::client
