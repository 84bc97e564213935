#include "coordinator/etcd/client.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "core/certificates/authority.h"
#include "core/os/files.h"
#include "core/rpc/channel.h"
#include "core/status.h"
#include "core/text.h"
#include "third_party/etcd/rpc.grpc.pb.h"

namespace meshrun::coordinator::etcd {
namespace {

using std::chrono::steady_clock;
namespace tls = grpc::experimental;

constexpr std::chrono::milliseconds kFirstPause(20);
constexpr std::chrono::milliseconds kLongestPause(200);

absl::Status CheckCertificate(std::string_view flag, const std::string& path) {
  const auto content = os::ReadFile(path);
  if (!content.ok()) return Annotate(content.status(), flag);
  return Annotate(certificates::KeyFingerprint(*content).status(),
                  fmt::format("{}: {}", flag, path));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(
    const Client::Options& options) {
  const rpc::TlsFiles& files = options.tls;
  if (files.empty()) {
    for (const std::string& endpoint : options.endpoints) {
      if (options.insecure_loopback && rpc::IsLocalAddress(endpoint)) continue;
      return absl::InvalidArgumentError(fmt::format(
          "etcd at {}: plaintext is refused: pass --etcd-ca, with --etcd-cert and --etcd-key where "
          "its members want client certificates",
          endpoint));
    }
    return grpc::InsecureChannelCredentials();
  }
  if (files.ca.empty() || files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        "TLS to etcd needs --etcd-ca, and --etcd-cert and --etcd-key both or neither");
  }
  MESHRUN_RETURN_IF_ERROR(CheckCertificate("--etcd-ca", files.ca));
  const auto reread = static_cast<unsigned>(rpc::Security().reread.count());
  tls::TlsChannelCredentialsOptions tls_options;
  if (files.cert.empty()) {
    tls_options.set_certificate_provider(
        std::make_shared<tls::FileWatcherCertificateProvider>(files.ca, reread));
  } else {
    MESHRUN_RETURN_IF_ERROR(CheckCertificate("--etcd-cert", files.cert));
    MESHRUN_RETURN_IF_ERROR(Annotate(os::ReadFile(files.key).status(), "--etcd-key"));
    tls_options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
        files.key, files.cert, files.ca, reread));
    tls_options.watch_identity_key_cert_pairs();
  }
  tls_options.watch_root_certs();
  return tls::TlsCredentials(tls_options);
}

}  // namespace

absl::StatusOr<std::string> ReadPassword(const std::string& file) {
  MESHRUN_ASSIGN_OR_RETURN(const std::string content, os::ReadFile(file));
  std::string password = content.substr(0, content.find_first_of("\r\n"));
  if (!password.empty()) return password;
  return absl::InvalidArgumentError(fmt::format("the first line of {} is empty", file));
}

absl::StatusOr<std::unique_ptr<Client>> Client::Make(Options options) {
  if (options.endpoints.empty()) return absl::InvalidArgumentError("etcd: no member is named");
  if (options.user.empty() != options.password_file.empty()) {
    return absl::InvalidArgumentError(
        "etcd: --etcd-user and --etcd-password-file are given both or neither");
  }
  MESHRUN_ASSIGN_OR_RETURN(auto credentials, CredentialsOf(options));
  return std::unique_ptr<Client>(new Client(std::move(options), std::move(credentials)));
}

Client::Client(Options options, std::shared_ptr<grpc::ChannelCredentials> credentials)
    : options_(std::move(options)),
      credentials_(std::move(credentials)),
      timeout_(options_.timeout) {
  for (const std::string& endpoint : options_.endpoints) {
    members_.push_back({endpoint, Connect(endpoint)});
  }
}

std::shared_ptr<grpc::Channel> Client::Connect(const std::string& address) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A new channel is a new connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, credentials_, arguments);
}

void Client::SetTimeout(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  timeout_ = timeout;
}

void Client::Interrupt() {
  MutexLock lock(mu_);
  ++interrupts_;
  for (grpc::ClientContext* const context : under_way_) context->TryCancel();
}

grpc::Status Client::Try(const Attempt& attempt, const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext& context) {
  {
    MutexLock lock(mu_);
    under_way_.insert(&context);
  }
  grpc::Status status = attempt(channel, context);
  MutexLock lock(mu_);
  under_way_.erase(&context);
  return status;
}

void Client::Leave(size_t member, bool silent) {
  MutexLock lock(mu_);
  if (silent) members_[member].channel = Connect(members_[member].address);
  // Else another call has left it before.
  if (current_ == member) current_ = (member + 1) % members_.size();
}

absl::Status Client::Call(std::string_view what, Needs needs, const Attempt& attempt) {
  steady_clock::time_point end;
  bool has_token;
  {
    MutexLock lock(mu_);
    end = steady_clock::now() + timeout_;
    has_token = !token_.empty();
  }
  const bool with_token = !options_.user.empty();
  if (with_token && !has_token) MESHRUN_RETURN_IF_ERROR(Authenticate(end));
  return CallUntil(end, what, needs, attempt, with_token);
}

absl::Status Client::Authenticate(steady_clock::time_point end) {
  const std::string what = fmt::format("cannot log in as {}", options_.user);
  const auto password = ReadPassword(options_.password_file);
  if (!password.ok()) {
    // It may be written just now.
    return absl::UnauthenticatedError(fmt::format("{}: --etcd-password-file: {}", what,
                                                  std::string(password.status().message())));
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(options_.user);
  request.set_password(*password);
  etcdserverpb::AuthenticateResponse response;
  MESHRUN_RETURN_IF_ERROR(CallUntil(
      end, what, Needs::kMajority,
      [&](const auto& channel, grpc::ClientContext& context) {
        return etcdserverpb::Auth::NewStub(channel)->Authenticate(&context, request, &response);
      },
      /*with_token=*/false));
  MutexLock lock(mu_);
  token_ = response.token();
  return absl::OkStatus();
}

absl::Status Client::CallUntil(steady_clock::time_point end, std::string_view what, Needs needs,
                               const Attempt& attempt, bool with_token) {
  const etcd::Call call = {.what = what, .user = options_.user, .prefix = options_.prefix};
  // What the members said last, in their order.
  std::map<size_t, Answer> answers;
  bool token_is_new = false;
  uint64_t interrupts;
  {
    MutexLock lock(mu_);
    interrupts = interrupts_;
  }
  std::chrono::milliseconds pause = kFirstPause;
  for (size_t tries = 1;; ++tries) {
    size_t current;
    Member member;
    std::string token;
    {
      MutexLock lock(mu_);
      current = current_;
      member = members_[current];
      token = token_;
      if (interrupts_ != interrupts) {
        return absl::CancelledError(fmt::format("{}: the call was interrupted", what));
      }
    }
    grpc::ClientContext context;
    const auto left = std::max<steady_clock::duration>(end - steady_clock::now(), kFirstPause);
    rpc::SetTimeout(context, std::min<std::chrono::nanoseconds>(left, options_.attempt));
    if (with_token) context.AddMetadata("token", token);
    // A member that has lost the majority says so at once, instead of nothing.
    if (needs == Needs::kMajority) context.AddMetadata("hasleader", "true");
    const grpc::Status status = Try(attempt, member.channel, context);
    if (status.ok()) return absl::OkStatus();
    if (with_token && IsTokenRefused(status) && !token_is_new) {
      token_is_new = true;
      MESHRUN_RETURN_IF_ERROR(Authenticate(end));
      continue;
    }
    if (!IsPassing(status)) return FromEtcd({member.address, status}, call);
    answers[current] = {member.address, status};
    Leave(current, status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
    if (tries % options_.endpoints.size() == 0) {
      // None has answered.
      const auto now = steady_clock::now();
      if (now < end)
        std::this_thread::sleep_for(std::min<steady_clock::duration>(pause, end - now));
      pause = std::min(pause * 2, kLongestPause);
    }
    if (steady_clock::now() >= end) {
      std::vector<Answer> all;
      for (auto& [index, answer] : answers) all.push_back(std::move(answer));
      return NobodyServes(all, call);
    }
  }
}

absl::StatusOr<etcdserverpb::RangeResponse> Client::Range(
    const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse response;
  const Needs needs = request.serializable() ? Needs::kMember : Needs::kMajority;
  MESHRUN_RETURN_IF_ERROR(Call("cannot read", needs, [&](const auto& channel, auto& context) {
    return etcdserverpb::KV::NewStub(channel)->Range(&context, request, &response);
  }));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> Client::Txn(const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  MESHRUN_RETURN_IF_ERROR(
      Call("cannot write", Needs::kMajority, [&](const auto& channel, auto& context) {
        return etcdserverpb::KV::NewStub(channel)->Txn(&context, request, &response);
      }));
  return response;
}

absl::Status Client::Compact(int64_t revision) {
  etcdserverpb::CompactionRequest request;
  request.set_revision(revision);
  etcdserverpb::CompactionResponse response;
  const absl::Status status =
      Call("cannot compact", Needs::kMajority, [&](const auto& channel, auto& context) {
        return etcdserverpb::KV::NewStub(channel)->Compact(&context, request, &response);
      });
  return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> Client::Grant(std::chrono::seconds ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  etcdserverpb::LeaseGrantResponse response;
  MESHRUN_RETURN_IF_ERROR(
      Call("cannot get a lease", Needs::kMajority, [&](const auto& channel, auto& context) {
        return etcdserverpb::Lease::NewStub(channel)->LeaseGrant(&context, request, &response);
      }));
  return response;
}

absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> Client::KeepAlive(int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  MESHRUN_RETURN_IF_ERROR(
      Call("cannot renew a lease", Needs::kMajority, [&](const auto& channel, auto& context) {
        const auto stream = etcdserverpb::Lease::NewStub(channel)->LeaseKeepAlive(&context);
        stream->Write(request);
        const bool answered = stream->Read(&response);
        stream->WritesDone();
        const grpc::Status status = stream->Finish();
        return answered ? grpc::Status::OK : status;
      }));
  if (response.ttl() > 0) return response;
  return absl::NotFoundError("cannot renew a lease: it has ended");
}

absl::Status Client::Revoke(int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  const absl::Status status =
      Call("cannot give a lease back", Needs::kMajority, [&](const auto& channel, auto& context) {
        return etcdserverpb::Lease::NewStub(channel)->LeaseRevoke(&context, request, &response);
      });
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<etcdserverpb::StatusResponse> Client::Status() {
  const etcdserverpb::StatusRequest request;
  etcdserverpb::StatusResponse response;
  MESHRUN_RETURN_IF_ERROR(
      Call("cannot ask for its size", Needs::kMember, [&](const auto& channel, auto& context) {
        return etcdserverpb::Maintenance::NewStub(channel)->Status(&context, request, &response);
      }));
  return response;
}

}  // namespace meshrun::coordinator::etcd
