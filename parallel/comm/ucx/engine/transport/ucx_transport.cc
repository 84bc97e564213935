#include "parallel/comm/ucx/engine/transport/ucx_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "core/os/shared_memory.h"
#include "parallel/base/process.h"
#include "parallel/comm/ucx/engine/transport/rails_transport.h"

namespace meshrun::ucx {
namespace {

MessageStatus status_of(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return MessageStatus::kOk;
    case UCS_ERR_CANCELED:
      return MessageStatus::kCancelled;
    case UCS_ERR_MESSAGE_TRUNCATED:
      return MessageStatus::kTruncated;
    default:
      return MessageStatus::kFailed;
  }
}

thread_local bool is_closing = false;

// What UCX says of its own accord where nothing is wrong: messages that nobody took when a worker
// closes, and memory of a process that has ended meanwhile. PeerWatch reports ended ranks, with the
// reason.
ucs_log_func_rc_t drop_harmless(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* format, va_list) {
  const int error = errno;
  thread_local bool is_gone = false;  // the memory, by the message before
  const std::string_view text = format;
  const bool was_gone =
      std::exchange(is_gone, text.starts_with("shmat(") && (error == EINVAL || error == EIDRM));
  const bool follows = was_gone && text.starts_with("mm ep failed to connect to remote FIFO");
  errno = error;
  if (level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  return is_closing || is_gone || follows ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

// A user who sets UCX_LOG_LEVEL wants all messages.
void quieten_ucx() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_log_push_handler(drop_harmless);
  });
}

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxDevices& allowed) : allowed_(allowed) {}
  ~UcxTransport() override { close(); }

  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  absl::Status start();

  const std::string& address() const override { return address_; }
  PeerId connect(std::string_view address) override;
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override;
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override;
  void cancel(Request& receive) override;
  bool progress(Completions& completions) override;
  bool arm() override;
  int event_fd() const override { return event_fd_; }
  void wake() override { ucp_worker_signal(worker_); }
  void close() override;

 private:
  struct Peer {
    UcxTransport* transport;
    PeerId id;
    ucp_ep_h endpoint = nullptr;
    bool broken = false;
  };

  static void on_sent(void* handle, ucs_status_t status, void* request);
  static void on_received(void* handle, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* request);
  static void on_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  void end(Request& request, ucs_status_t status);
  void mark_broken(Peer& peer, std::string reason);
  absl::Status unavailable(const std::string& text) const;
  absl::Status error(const char* call, ucs_status_t status) const;
  // The error of creating the worker, which takes its part of /dev/shm.
  absl::Status worker_error(ucs_status_t status) const;

  const UcxDevices allowed_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  std::string devices_;  // UCX_TLS in force
  // By address. UCX keeps pointers to the peers.
  std::map<std::string, std::unique_ptr<Peer>, std::less<>> peers_;
  std::vector<Peer*> peers_by_id_;
  // UCX calls back from within any call; what it said waits here for progress().
  Completions pending_;
};

// UCX has no call that reads one variable of a configuration.
std::string devices_of(const ucp_config_t* config) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const std::string all(text, size);
  std::free(text);
  static constexpr std::string_view kName = "UCX_TLS=";
  const size_t start = all.find(kName);
  if (start == std::string::npos) return {};
  return all.substr(start, all.find('\n', start) - start);
}

absl::Status UcxTransport::unavailable(const std::string& text) const {
  return absl::UnavailableError(allowed_.rail.empty() ? text : allowed_.rail + ": " + text);
}

absl::Status UcxTransport::error(const char* call, ucs_status_t status) const {
  return unavailable(fmt::format(
      "{}: {} ({}); `ucx_info -d` lists what UCX finds on this host, and UCX_LOG_LEVEL=info says "
      "what it chooses",
      call, ucs_status_string(status), devices_));
}

absl::Status UcxTransport::worker_error(ucs_status_t status) const {
  constexpr const char* kCall = "ucp_worker_create";
  const bool lacks_memory = status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE;
  const std::optional<os::SharedMemoryRoom> room = os::FindSharedMemoryRoom();
  if (!lacks_memory || !room) return error(kCall, status);
  // Other ranks that start now, and fail too, may have given theirs back since.
  return unavailable(fmt::format(
      "{}: {}: {} is too small for the ranks of this host. {}. Make it larger (--shm-size of a "
      "container, an emptyDir with medium: Memory in Kubernetes, the tmpfs's size=), or keep ranks "
      "off it by UCX_TLS=tcp,self ({} now).",
      kCall, ucs_status_string(status), os::kSharedMemoryPath, os::Describe(*room), devices_));
}

absl::Status UcxTransport::start() {
  quieten_ucx();
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return error("ucp_config_read", status);
  devices_ = devices_of(config);
  status = ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
  const char* call = "ucp_config_modify(RNDV_SCHEME)";
  if (status == UCS_OK && !allowed_.interfaces.empty()) {
    const std::string names = fmt::format("{}", fmt::join(allowed_.interfaces, ","));
    status = ucp_config_modify(config, "NET_DEVICES", names.c_str());
    call = "ucp_config_modify(NET_DEVICES)";
  }
  if (status == UCS_OK && !allowed_.shared_memory) {
    status = ucp_config_modify(config, "SHM_DEVICES", "");
    call = "ucp_config_modify(SHM_DEVICES)";
  }
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    call = "ucp_init";
    status = ucp_init(&params, config, &context_);
  }
  ucp_config_release(config);
  if (status != UCS_OK) return error(call, status);

  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return worker_error(status);
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return error("ucp_worker_get_efd", status);
  ucp_address_t* address = nullptr;
  size_t length = 0;
  status = ucp_worker_get_address(worker_, &address, &length);
  if (status != UCS_OK) return error("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

PeerId UcxTransport::connect(std::string_view address) {
  const auto known = peers_.find(address);
  if (known != peers_.end()) return known->second->id;
  const auto id = static_cast<PeerId>(peers_by_id_.size());
  const auto [entry, inserted] = peers_.emplace(std::string(address), std::make_unique<Peer>());
  Peer& peer = *entry->second;
  peer.transport = this;
  peer.id = id;
  peers_by_id_.push_back(&peer);

  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(entry->first.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler.cb = &UcxTransport::on_error;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    mark_broken(peer, error("ucp_ep_create", status).ToString());
  }
  return id;
}

bool UcxTransport::send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) {
  request.status = MessageStatus::kOk;
  request.transport = this;
  request.handle = nullptr;
  const Peer& peer = *peers_by_id_[static_cast<size_t>(to)];
  if (peer.broken) {
    request.status = MessageStatus::kFailed;
    return true;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::on_sent;
  param.user_data = &request;
  const ucs_status_ptr_t handle =
      ucp_tag_send_nbx(peer.endpoint, bytes.data(), bytes.size(), tag, &param);
  if (handle == nullptr) return true;
  if (UCS_PTR_IS_ERR(handle)) {
    request.status = status_of(UCS_PTR_STATUS(handle));
    return true;
  }
  request.handle = handle;
  return false;
}

void UcxTransport::receive(PeerId, Tag tag, Tag mask, std::span<std::byte> bytes,
                           Request& request) {
  request.status = MessageStatus::kOk;
  request.transport = this;
  request.handle = nullptr;
  ucp_request_param_t param{};
  // A receive that UCX 1.13 completes at once leaves tag and length unset where it is asked for
  // them by UCP_OP_ATTR_FIELD_RECV_INFO; the callback has them.
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = &UcxTransport::on_received;
  param.user_data = &request;
  const ucs_status_ptr_t handle =
      ucp_tag_recv_nbx(worker_, bytes.data(), bytes.size(), tag, mask, &param);
  if (request.transport == nullptr) return;  // called back already
  if (UCS_PTR_IS_ERR(handle)) {
    end(request, UCS_PTR_STATUS(handle));
  } else {
    request.handle = handle;
  }
}

void UcxTransport::cancel(Request& receive) {
  if (receive.handle != nullptr) ucp_request_cancel(worker_, receive.handle);
}

bool UcxTransport::progress(Completions& completions) {
  const bool moved = ucp_worker_progress(worker_) != 0;
  if (pending_.done.empty() && pending_.broken.empty()) return moved;
  completions.done.insert(completions.done.end(), pending_.done.begin(), pending_.done.end());
  pending_.done.clear();
  for (BrokenPeer& broken : pending_.broken) completions.broken.push_back(std::move(broken));
  pending_.broken.clear();
  return true;
}

bool UcxTransport::arm() {
  return pending_.done.empty() && pending_.broken.empty() && ucp_worker_arm(worker_) == UCS_OK;
}

void UcxTransport::close() {
  // It calls back for every send that is pending.
  is_closing = true;
  if (worker_ != nullptr) ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucp_cleanup(std::exchange(context_, nullptr));
  is_closing = false;
  pending_ = {};
}

void UcxTransport::on_sent(void* handle, ucs_status_t status, void* request) {
  auto& sent = *static_cast<Request*>(request);
  static_cast<UcxTransport*>(sent.transport)->end(sent, status);
  ucp_request_free(handle);
}

void UcxTransport::on_received(void* handle, ucs_status_t status, const ucp_tag_recv_info_t* info,
                               void* request) {
  auto& received = *static_cast<Request*>(request);
  if (status == UCS_OK) {
    received.bytes = static_cast<int64_t>(info->length);
    received.tag = info->sender_tag;
  }
  static_cast<UcxTransport*>(received.transport)->end(received, status);
  ucp_request_free(handle);
}

void UcxTransport::on_error(void* peer, ucp_ep_h, ucs_status_t status) {
  auto& broken = *static_cast<Peer*>(peer);
  const std::string& rail = broken.transport->allowed_.rail;
  broken.transport->mark_broken(
      broken, rail.empty() ? ucs_status_string(status) : rail + ": " + ucs_status_string(status));
}

void UcxTransport::end(Request& request, ucs_status_t status) {
  request.status = status_of(status);
  request.transport = nullptr;
  request.handle = nullptr;
  pending_.done.push_back(&request);
}

void UcxTransport::mark_broken(Peer& peer, std::string reason) {
  if (std::exchange(peer.broken, true)) return;
  pending_.broken.push_back({peer.id, std::move(reason)});
}

}  // namespace

absl::StatusOr<ChosenInterfaces> ucx_interfaces() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string_view(text == nullptr ? "" : text);
  };
  const std::string_view wanted = variable("MESHRUN_NET_DEVICES");
  if (wanted.empty() && !variable("UCX_NET_DEVICES").empty()) return ChosenInterfaces{};
  absl::StatusOr<ChosenInterfaces> chosen = choose_interfaces(network_interfaces(), wanted);
  if (!chosen.ok()) return chosen;
  if (wanted.empty() && chosen->left_out.empty()) chosen->names.clear();
  if (chosen->are_named && chosen->names.size() > kMostRails) chosen->names.resize(kMostRails);
  return chosen;
}

absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport(const UcxDevices& devices) {
  auto transport = std::make_unique<UcxTransport>(devices);
  absl::Status status = transport->start();
  if (!status.ok()) return status;
  return transport;
}

absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport(const ChosenInterfaces& chosen) {
  if (!chosen.are_named || chosen.names.size() < 2) {
    return create_ucx_transport(UcxDevices{.interfaces = chosen.names});
  }
  std::vector<std::unique_ptr<Transport>> rails;
  for (const std::string& name : chosen.names) {
    auto rail = create_ucx_transport(
        UcxDevices{.interfaces = {name}, .shared_memory = rails.empty(), .rail = name});
    if (!rail.ok()) return rail.status();
    rails.push_back(*std::move(rail));
  }
  return create_rails_transport(std::move(rails), node_identity(node_facts()));
}

absl::StatusOr<std::unique_ptr<Transport>> create_ucx_transport() {
  const absl::StatusOr<ChosenInterfaces> chosen = ucx_interfaces();
  if (!chosen.ok()) return chosen.status();
  return create_ucx_transport(*chosen);
}

}  // namespace meshrun::ucx
