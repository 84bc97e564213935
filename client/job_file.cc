#include "client/job_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>
#include <vector>

#include "client/job_fields.h"
#include "core/os/fd.h"
#include "core/os/files.h"
#include "core/status.h"
#include "core/suggest.h"
#include "core/text.h"
#include "core/yaml/file_value.h"
#include "core/yaml/yaml_tree.h"

namespace meshrun::client {
namespace {

// Fields that say the same thing in two ways, or contradict each other.
constexpr std::pair<std::string_view, std::string_view> kExclusive[] = {
    {"nodes", "min_nodes"}, {"nodes", "max_nodes"}, {"job", "command"}, {"shipped_job", "command"}};

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

const JobField* FieldOf(std::string_view key) {
  for (const JobField& field : JobFields()) {
    if (std::find(field.keys.begin(), field.keys.end(), key) != field.keys.end()) return &field;
  }
  return nullptr;
}

std::string NoSuchField(const std::string& typed) {
  std::vector<std::string> known;
  for (const JobField& field : JobFields()) {
    known.insert(known.end(), field.keys.begin(), field.keys.end());
  }
  std::sort(known.begin(), known.end());
  const std::string nearest = DidYouMean(typed, known);
  return "no such field" +
         (nearest.empty() ? fmt::format(": there are {}", fmt::join(known, ", ")) : nearest);
}

// Keys that must not stand in a file beside this one.
std::vector<std::string> Rivals(const JobField& field, std::string_view key) {
  std::vector<std::string> rivals;
  for (const std::string& name : field.keys) {
    if (name != key) rivals.push_back(name);
  }
  for (const auto& [one, other] : kExclusive) {
    if (key == one) rivals.emplace_back(other);
    if (key == other) rivals.emplace_back(one);
  }
  return rivals;
}

absl::StatusOr<v1::JobSpec> ParseFields(const YAML::Node& root, std::string_view name) {
  if (!root.IsMap()) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: a job file is a list of 'field: value' lines, for example 'command: ./train'", name));
  }
  v1::JobSpec spec;
  std::map<std::string, YAML::Node> seen;
  for (const auto& entry : root) {
    const FileValue value{name, entry.first.IsScalar() ? entry.first.Scalar() : "this key",
                          entry.second};
    const JobField* const field = FieldOf(value.key);
    if (field == nullptr) return value.WrongAt(entry.first, NoSuchField(value.key));
    seen.emplace(value.key, entry.first);
    for (const std::string& rival : Rivals(*field, value.key)) {
      const auto found = seen.find(rival);
      if (found == seen.end()) continue;
      return value.WrongAt(entry.first,
                           fmt::format("{} is set too, at line {}: write only one of them", rival,
                                       found->second.Mark().line + 1));
    }
    MESHRUN_RETURN_IF_ERROR(field->set.from_file(value, &spec));
  }
  if (seen.count("args") != 0 && spec.shipped_job().empty()) {
    return FileValue{name, "args", seen["args"]}.Wrong(
        "these are the arguments of a shipped job, and there is no 'job:': write the whole call in "
        "'command:'");
  }
  if (spec.max_nodes() != 0 && spec.max_nodes() < spec.min_nodes()) {
    return FileValue{name, "max_nodes", seen["max_nodes"]}.Wrong(
        fmt::format("{} is less than min_nodes, {}", spec.max_nodes(), spec.min_nodes()));
  }
  return spec;
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobText(const std::string& text, std::string_view name) {
  // yaml-cpp throws; no exception leaves this function.
  try {
    MESHRUN_ASSIGN_OR_RETURN(const YAML::Node root,
                             LoadYaml(name, text, "a job file holds one job"));
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
