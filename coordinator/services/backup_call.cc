#include "coordinator/services/backup_call.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/state_store/meta_keys.h"
#include "coordinator/state_store/sqlite_state_store.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/os/files.h"

namespace meshrun::coordinator {
namespace {

constexpr size_t kChunkBytes = 256u << 10;
constexpr size_t kTransactionBytes = 16u << 20;

// A directory that ends with the object. The state holds what users hide from each other.
class PrivateDirectory {
 public:
  absl::Status Make() {
    const char* const base = ::getenv("TMPDIR");
    std::string path = std::string(base == nullptr ? "/tmp" : base) + "/meshrun-backup-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return os::ErrnoStatus(errno, path);
    path_ = std::move(path);
    return absl::OkStatus();
  }
  ~PrivateDirectory() {
    if (!path_.empty()) os::RemoveTree(path_).IgnoreError();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class BackupCall : public grpc::ServerWriteReactor<v1::BackupResponse> {
 public:
  // `turn`: true while a backup is under way.
  BackupCall(const Shell& shell, std::atomic<bool>* turn) : shell_(shell), turn_(turn) {}

  void Begin(const v1::Caller& caller) {
    // A disk may hang in it, and the reader may be slow.
    std::thread([this, caller] {
      const absl::Status status = Run();
      turn_->store(false);
      Record(caller, status);
      Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
    }).detach();
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    broken_ |= !ok;
    changed_.NotifyAll();
  }
  void OnCancel() override {
    MutexLock lock(mu_);
    broken_ = true;
    changed_.NotifyAll();
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Run() {
    PrivateDirectory directory;
    MESHRUN_RETURN_IF_ERROR(directory.Make());
    const std::string state = directory.path() + "/state";
    MESHRUN_RETURN_IF_ERROR(Copy(state));
    // The copy's log is moved into its file at the close. Without room for that it stays beside it.
    std::error_code unused;
    if (std::filesystem::file_size(state + "/state.sqlite-wal", unused) > 0 && !unused)
      return absl::ResourceExhaustedError("there is no room for a copy of the state");
    const uintmax_t size = std::filesystem::file_size(state + "/state.sqlite", unused);
    std::ifstream file(state + "/state.sqlite", std::ios::binary);
    Sha256Stream digest;
    for (uintmax_t left = size; left > 0;) {
      v1::BackupResponse response;
      std::string& data = *response.mutable_data();
      data.resize(std::min<uintmax_t>(left, kChunkBytes));
      if (!file.read(data.data(), static_cast<std::streamsize>(data.size())))
        return absl::InternalError("the copy of the state cannot be read");
      digest.Add(data);
      left -= data.size();
      if (left == 0) {
        response.set_sha256(digest.Finish());
        response.set_term(shell_.loop.term());
      }
      MESHRUN_RETURN_IF_ERROR(Write(std::move(response)));
    }
    return absl::OkStatus();
  }

  // The state as it is now, into a new directory, in transactions of a bounded size. The term comes
  // last: it tells who may write.
  absl::Status Copy(const std::string& directory) {
    MESHRUN_ASSIGN_OR_RETURN(const auto copy, SqliteStateStore::Open(directory));
    absl::Status status = absl::OkStatus();
    std::vector<v1::StateRow> rows;
    v1::StateRow term;
    size_t bytes = 0;
    MESHRUN_RETURN_IF_ERROR(shell_.store->ForEachRow([&](v1::StateRow row) {
      if (row.table() == v1::STATE_TABLE_META && row.key() == TermRow(0).key()) {
        term = std::move(row);
        return true;
      }
      // This copy is a new one: no roll call of it is over.
      if (row.table() == v1::STATE_TABLE_META && row.key().starts_with(kConfirmedPrefix)) {
        return true;
      }
      bytes += row.key().size() + row.value().size();
      rows.push_back(std::move(row));
      if (bytes < kTransactionBytes) return true;
      bytes = 0;
      status = copy->Commit(/*term=*/0, std::exchange(rows, {}));
      return status.ok();
    }));
    MESHRUN_RETURN_IF_ERROR(status);
    if (!term.key().empty()) rows.push_back(std::move(term));
    return copy->Commit(/*term=*/0, rows);
  }

  absl::Status Write(v1::BackupResponse response) {
    response_ = std::move(response);
    MutexLock lock(mu_);
    if (broken_) return absl::CancelledError("the reader went away");
    writing_ = true;
    StartWrite(&response_);
    while (writing_) changed_.Wait(mu_);
    return broken_ ? absl::CancelledError("the reader went away") : absl::OkStatus();
  }

  void Record(const v1::Caller& caller, const absl::Status& status) {
    v1::StateEvent event;
    *event.mutable_caller() = caller;
    event.mutable_outside_call()->set_method("Backup");
    event.mutable_outside_call()->set_code(static_cast<int>(status.code()));
    event.mutable_outside_call()->set_message(std::string(status.message()));
    shell_.loop.PostEnd(std::move(event));
  }

  const Shell shell_;
  std::atomic<bool>* const turn_;
  v1::BackupResponse response_;
  Mutex mu_;
  CondVar changed_;
  bool writing_ MESHRUN_GUARDED_BY(mu_) = false;
  bool broken_ MESHRUN_GUARDED_BY(mu_) = false;
};

class RefusedBackup : public grpc::ServerWriteReactor<v1::BackupResponse> {
 public:
  explicit RefusedBackup(const absl::Status& status) {
    Finish(rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<v1::BackupResponse>* BeginBackup(const Shell& shell, const Sender& sender,
                                                          const v1::BackupRequest& request) {
  static std::atomic<bool> turn{false};
  absl::Status status = shell.Receive(sender, request);
  if (status.ok() && shell.store == nullptr)
    status = absl::FailedPreconditionError("this coordinator keeps no state: it is --ephemeral");
  if (status.ok() && turn.exchange(true))
    status = absl::ResourceExhaustedError("another backup is under way: try again when it is done");
  if (!status.ok()) return new RefusedBackup(status);
  v1::StateEvent event;
  event.mutable_outside_call()->set_method("Backup");
  StampCaller(sender, shell.standing, event);
  auto* const call = new BackupCall(shell, &turn);
  call->Begin(event.caller());
  return call;
}

}  // namespace meshrun::coordinator
