#include "client/http/http_client.h"

#include <fmt/format.h>
#include <httplib.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/parse_integer.h"
#include "core/rpc/unix_socket.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kConnect(5);

bool EqualInAnyCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Why there is no answer.
std::string Reason(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection comes about";
    case httplib::Error::Read:
    case httplib::Error::Write:
      return "the connection broke, or nothing came for too long";
    case httplib::Error::SSLConnection:
      return "TLS fails";
    case httplib::Error::SSLServerVerification:
      return "its certificate is not trusted";
    default:
      return httplib::to_string(error);
  }
}

class Exchange : public HttpExchange {
 public:
  Exchange(std::string address, std::unique_ptr<httplib::ClientImpl> client)
      : address_(std::move(address)), client_(std::move(client)) {
    client_->set_connection_timeout(kConnect);
    client_->set_url_encode(false);
  }

  absl::Status Perform(const HttpCall& call, const OnHead& on_head,
                       const OnData& on_data) override {
    client_->set_read_timeout(call.timeout);
    client_->set_write_timeout(call.timeout);
    httplib::Request request;
    request.method = call.method;
    request.path = call.path;
    for (const auto& [name, value] : call.headers) request.headers.emplace(name, value);
    request.body = call.body;
    bool ended = false;
    const auto head = [&](const httplib::Response& response) {
      HttpHead out{.status = response.status};
      for (const auto& [name, value] : response.headers) out.headers.emplace(name, value);
      ended = !on_head(out);
      return !ended;
    };
    request.response_handler = head;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      ended = ended || !on_data({data, size});
      return !ended;
    };
    httplib::Response response;
    httplib::Error error = httplib::Error::Success;
    const bool whole = client_->send(request, response, error);
    if (whole || ended || stopped_.load()) return absl::OkStatus();
    return absl::UnavailableError(fmt::format(
        "the coordinator's HTTP port at {} does not answer: {}", address_, Reason(error)));
  }

  void Stop() override {
    stopped_.store(true);
    client_->stop();
  }

 private:
  const std::string address_;
  const std::unique_ptr<httplib::ClientImpl> client_;
  std::atomic<bool> stopped_{false};
};

absl::StatusOr<std::pair<std::string, int>> HostAndPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  const auto port = colon == std::string::npos
                        ? std::nullopt
                        : ParseInteger<int>(std::string_view(address).substr(colon + 1));
  if (!port || *port < 1 || *port > 65535) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is neither unix:PATH nor HOST:PORT", address));
  }
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::pair(host, *port);
}

}  // namespace

std::string HttpHead::Header(std::string_view name) const {
  for (const auto& [known, value] : headers) {
    if (EqualInAnyCase(known, name)) return value;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<HttpExchange>> HttpExchange::Make(const HttpTarget& target) {
  if (const auto path = rpc::UnixPath(target.address)) {
    MESHRUN_RETURN_IF_ERROR(rpc::CheckSocketDirectory(*path));
    auto client = std::make_unique<httplib::ClientImpl>(*path, 80);
    client->set_address_family(AF_UNIX);
    // httplib would name the path of the socket as the host, which no server reads.
    client->set_default_headers({{"Host", "localhost"}});
    return std::make_unique<Exchange>(target.address, std::move(client));
  }
  MESHRUN_ASSIGN_OR_RETURN(const auto place, HostAndPort(target.address));
  MESHRUN_RETURN_IF_ERROR(rpc::CheckSecurity("meshrun", target.address, target.security));
  if (target.security.tls.empty()) {
    return std::make_unique<Exchange>(
        target.address, std::make_unique<httplib::ClientImpl>(place.first, place.second));
  }
  const rpc::TlsFiles& tls = target.security.tls;
  auto client = std::make_unique<httplib::SSLClient>(place.first, place.second, tls.cert, tls.key);
  if (!client->is_valid()) {
    return absl::InvalidArgumentError(
        fmt::format("{} and {} are not a certificate and its key", tls.cert, tls.key));
  }
  client->set_ca_cert_path(tls.ca.c_str());
  client->enable_server_certificate_verification(true);
  return std::make_unique<Exchange>(target.address, std::move(client));
}

absl::StatusOr<HttpAnswer> Call(const HttpTarget& target, const HttpCall& call) {
  MESHRUN_ASSIGN_OR_RETURN(const std::unique_ptr<HttpExchange> exchange,
                           HttpExchange::Make(target));
  return Call(*exchange, call);
}

absl::StatusOr<HttpAnswer> Call(HttpExchange& exchange, const HttpCall& call) {
  HttpAnswer answer;
  MESHRUN_RETURN_IF_ERROR(exchange.Perform(
      call,
      [&](const HttpHead& head) {
        answer.head = head;
        return true;
      },
      [&](std::string_view data) {
        answer.body += data;
        return true;
      }));
  return answer;
}

absl::StatusOr<std::string> BodyOf(const HttpAnswer& answer) {
  if (answer.head.status == 200) return answer.body;
  const json error = json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (!error.is_object() || !error.contains("message") || !error["message"].is_string()) {
    return absl::InternalError(
        fmt::format("the coordinator's HTTP port answers {}", answer.head.status));
  }
  const std::string code = error.value("code", "");
  for (int i = 1; i <= 16; ++i) {
    const auto known = static_cast<absl::StatusCode>(i);
    if (absl::StatusCodeToString(known) == code) {
      return absl::Status(known, error["message"].get<std::string>());
    }
  }
  return absl::UnknownError(error["message"].get<std::string>());
}

std::string EncodeUrl(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace meshrun::client
