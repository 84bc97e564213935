#include "worker/generations/state_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/hash.h"
#include "core/os/files.h"
#include "core/os/private_directory.h"
#include "core/rpc/default_address.h"
#include "core/status.h"

namespace meshrun::worker {
namespace {

// "/g/0123456789-1234567/r123456.sock"
constexpr size_t kLongestBelow = 36;

std::string ShortHash(std::string_view text) { return HexEncode(Sha256(text)).substr(0, 10); }

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    out.push_back(entry.path().string());
  }
  return out;
}

}  // namespace

absl::StatusOr<StateDir> StateDir::Open(const std::string& path, IdSource& ids,
                                        const std::string& join_cluster) {
  StateDir out;
  std::error_code error;
  out.path_ = std::filesystem::absolute(path, error).lexically_normal().string();
  while (out.path_.size() > 1 && out.path_.back() == '/') out.path_.pop_back();
  MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(out.path_));

  const std::string lock_path = out.path_ + "/lock";
  out.lock_.reset(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!out.lock_) return os::ErrnoStatus(errno, lock_path);
  if (::flock(out.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(fmt::format(
        "another worker uses the state directory {}: stop it, or pass --state-dir", out.path_));
  }
  MESHRUN_ASSIGN_OR_RETURN(out.run_dir_, rpc::SocketDirectory(out.path_, kLongestBelow));
  for (const std::string& below : {out.run_dir_ + "/g", out.run_dir_ + "/j", out.LogRoot()}) {
    MESHRUN_RETURN_IF_ERROR(os::MakePrivateDirectory(below));
  }

  const std::string node_path = out.path_ + "/node.json";
  if (const auto content = os::ReadFile(node_path); content.ok()) {
    const auto node = nlohmann::json::parse(*content, nullptr, /*allow_exceptions=*/false);
    if (!node.is_object() || !node.contains("node_id") || !node["node_id"].is_string() ||
        !node.contains("incarnation") || !node["incarnation"].is_number_unsigned()) {
      return absl::DataLossError(
          fmt::format("{} is damaged: remove it, and this host joins as a new node", node_path));
    }
    out.node_id_ = node["node_id"].get<std::string>();
    out.incarnation_ = node["incarnation"].get<uint64_t>();
    if (node.contains("cluster_id") && node["cluster_id"].is_string()) {
      out.cluster_id_ = node["cluster_id"].get<std::string>();
    }
    if (node.contains("term") && node["term"].is_number_unsigned())
      out.term_ = node["term"].get<uint64_t>();
  } else if (content.status().code() == absl::StatusCode::kNotFound) {
    out.node_id_ = "node-" + ids.Suffix(10);
  } else {
    return content.status();
  }
  ++out.incarnation_;
  if (!join_cluster.empty() && join_cluster != out.cluster_id_) {
    out.cluster_id_ = join_cluster;
    out.term_ = 0;
  }
  MESHRUN_RETURN_IF_ERROR(out.WriteNode());
  return out;
}

absl::Status StateDir::WriteNode() const {
  nlohmann::json node = {{"node_id", node_id_}, {"incarnation", incarnation_}};
  if (term_ != 0) node["term"] = term_;
  if (!cluster_id_.empty()) node["cluster_id"] = cluster_id_;
  return os::WriteFileAtomically(path_ + "/node.json", node.dump() + "\n", 0600);
}

absl::Status StateDir::CheckCluster(const std::string& cluster_id) const {
  if (cluster_id_.empty() || cluster_id == cluster_id_) return absl::OkStatus();
  return absl::FailedPreconditionError(fmt::format(
      "this worker belongs to cluster {}, and the coordinator {}: {}", cluster_id_,
      cluster_id.empty() ? "keeps no state" : "is of cluster " + cluster_id,
      cluster_id.empty() ? "pass another --state-dir"
                         : fmt::format("look at --coordinator, or leave the old cluster with "
                                       "--join-cluster {}",
                                       cluster_id)));
}

absl::Status StateDir::JoinCluster(const std::string& cluster_id) {
  if (!cluster_id_.empty() || cluster_id.empty()) return absl::OkStatus();
  cluster_id_ = cluster_id;
  return WriteNode();
}

absl::Status StateDir::KeepTerm(uint64_t term) {
  // Without a cluster a coordinator keeps no state, and its terms begin anew.
  if (cluster_id_.empty() || term <= term_) return absl::OkStatus();
  term_ = term;
  return WriteNode();
}

absl::Status StateDir::OpenToRanks() {
  constexpr char kRoot[] = "/run/meshrun-ranks";
  const std::string own = fmt::format("{}/{}", kRoot, ShortHash(path_));
  for (const std::string& directory : {std::string(kRoot), own}) {
    MESHRUN_RETURN_IF_ERROR(os::MakePassableDirectory(directory));
  }
  ranks_dir_ = own;
  return absl::OkStatus();
}

std::string StateDir::JobDirectory(const std::string& job_id) const {
  if (!ranks_dir_.empty()) return fmt::format("{}/{}", ranks_dir_, ShortHash(job_id));
  return fmt::format("{}/j/{}", run_dir_, ShortHash(job_id));
}

std::vector<std::string> StateDir::JobDirectories() const {
  return ListDirectory(ranks_dir_.empty() ? run_dir_ + "/j" : ranks_dir_);
}

std::string StateDir::GenerationDirectory(const std::string& job_id, uint64_t generation) const {
  return fmt::format("{}/g/{}-{}", run_dir_, ShortHash(job_id), generation);
}

std::string StateDir::LogDirectory(const std::string& job_id, uint64_t generation) const {
  return fmt::format("{}/{}/{}", LogRoot(), job_id, generation);
}

std::vector<std::string> StateDir::GenerationDirectories() const {
  return ListDirectory(run_dir_ + "/g");
}

}  // namespace meshrun::worker
