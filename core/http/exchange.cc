#include "core/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "core/error_detail.h"
#include "core/log.h"

namespace meshrun::http {
namespace {

// httplib's routes are regular expressions, which recurse once for each character.
constexpr size_t kLongestPath = 1024;
// How soon an endless body notices that its client, its certificate or the server has gone.
constexpr std::chrono::milliseconds kStreamWait(250);

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool HasBody(const httplib::Request& request) {
  const std::string length = request.get_header_value("Content-Length");
  return request.has_header("Transfer-Encoding") || (!length.empty() && length != "0");
}

// Without either httplib would read until the client closes its side, which waits for our answer.
bool SaysItsLength(const httplib::Request& request) {
  return request.has_header("Content-Length") || request.has_header("Transfer-Encoding");
}

bool IsForm(const httplib::Request& request) {
  const std::string type = Lower(request.get_header_value("Content-Type"));
  return type.starts_with("multipart/") || type.starts_with("application/x-www-form-urlencoded");
}

// httplib would unpack such a body before anybody asks who sends it: a thousand bytes of memory for
// each one that comes.
bool IsPacked(const httplib::Request& request) {
  const auto [first, last] = request.headers.equal_range("Content-Encoding");
  return std::any_of(first, last, [](const auto& header) {
    return !header.second.empty() && Lower(header.second) != "identity";
  });
}

// Whether the body of this request is read.
bool IsRead(const httplib::Request& request) {
  return request.method == "POST" && !IsForm(request) && !IsPacked(request);
}

}  // namespace

class Exchange::Watch {
 public:
  Watch(certificates::Standing* standing, const std::string& pem) : standing_(standing) {
    if (standing_ == nullptr || pem.empty()) return;
    watch_ = standing_->Watch(pem, WallNanos(0),
                              [over = over_](const absl::Status&) { over->store(true); });
  }
  ~Watch() {
    if (watch_) standing_->Forget(*watch_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  bool over() const { return over_->load(); }

 private:
  certificates::Standing* const standing_;
  std::optional<uint64_t> watch_;
  // Standing may call while the watch is being forgotten.
  const std::shared_ptr<std::atomic<bool>> over_ = std::make_shared<std::atomic<bool>>(false);
};

Exchange::Exchange(ExchangeHost& host, Wire& wire, const std::atomic<bool>& stopping,
                   std::string peer)
    : host_(host), wire_(wire), stopping_(stopping), peer_(std::move(peer)) {
  // Endless bodies end when it is invalid; nothing reads or writes it here.
  svr_sock_ = 0;
  set_payload_max_length(host_.limits().body_bytes);
  const auto idle = std::chrono::duration_cast<std::chrono::seconds>(host_.limits().idle);
  // Said to clients as Keep-Alive; Serve is called for as many.
  set_keep_alive_timeout(static_cast<time_t>(idle.count()));
  set_keep_alive_max_count(1'000'000);
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    return Route(request, response);
  });
  Post(R"([\s\S]*)", [this](const httplib::Request& request, httplib::Response& response) {
    Handle(request, response);
  });
  set_exception_handler(
      [this](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
        Write(ErrorResponse(absl::InternalError("the request could not be handled")), response);
      });
}

void Exchange::Authenticate(rpc::Identity caller, std::string certificate_pem) {
  caller_ = std::move(caller);
  certificate_pem_ = std::move(certificate_pem);
}

bool Exchange::Serve() {
  ends_ = false;
  bool closed = false;
  const bool served = process_request(wire_, /*close_connection=*/false, closed,
                                      [this](httplib::Request& request) { OnHead(request); });
  return served && !closed && !ends_ && !wire_.broken() && !stopping_.load();
}

void Exchange::OnHead(httplib::Request& request) {
  wire_.BeginBody();
  // Whole answers, also to those who ask for a part.
  request.ranges.clear();
  // Brotli costs a second where gzip costs milliseconds, and httplib prefers it.
  const bool takes_gzip =
      request.get_header_value("Accept-Encoding").find("gzip") != std::string::npos;
  request.headers.erase("Accept-Encoding");
  if (takes_gzip && wire_.tls() != nullptr) request.set_header("Accept-Encoding", "gzip");
  if (!HasBody(request) || IsRead(request)) return;
  ends_ = true;
  request.headers.erase("Connection");
  request.set_header("Connection", "close");
}

Exchange::HandlerResponse Exchange::Route(const httplib::Request& request,
                                          httplib::Response& response) {
  const auto refuse = [&](int status, std::string_view why) {
    Response answer = ErrorResponse(absl::InvalidArgumentError({why.data(), why.size()}));
    answer.status = status;
    Write(std::move(answer), response);
    return HandlerResponse::Handled;
  };
  const bool is_post = request.method == "POST";
  if (!is_post && request.method != "GET" && request.method != "HEAD") {
    return refuse(405, fmt::format("{} is not a method of this server", request.method));
  }
  if (request.path.size() > kLongestPath) return refuse(414, "the path is too long");
  if (is_post && !SaysItsLength(request)) {
    return refuse(411, "the body has no length: send Content-Length");
  }
  if (is_post && IsForm(request)) return refuse(415, "forms are not read: send JSON");
  if (is_post && IsPacked(request)) {
    return refuse(415, "a body with a Content-Encoding is not read: send it as it is");
  }
  // Its body is read before the handler is asked.
  if (is_post) return HandlerResponse::Unhandled;
  Handle(request, response);
  return HandlerResponse::Handled;
}

void Exchange::Handle(const httplib::Request& request, httplib::Response& response) {
  host_.OnRequest();
  if (certificates::Standing* const standing = host_.standing();
      standing != nullptr && !certificate_pem_.empty()) {
    if (const absl::Status status = standing->Check(certificate_pem_); !status.ok()) {
      return Write(ErrorResponse(status), response);
    }
  }
  std::visit([&](auto&& answer) { Write(std::move(answer), response); },
             host_.handler()(Translate(request)));
}

Request Exchange::Translate(const httplib::Request& request) const {
  Request out{.method = request.method,
              .path = request.path,
              .query = request.params,
              .body = request.body,
              .peer = peer_,
              .caller = caller_,
              .certificate_pem = certificate_pem_,
              .trusted = wire_.tls() == nullptr,
              .gone = [this] { return stopping_.load(); }};
  for (const auto& [name, value] : request.headers) out.headers.emplace(Lower(name), value);
  return out;
}

void Exchange::Write(Response answer, httplib::Response& response) {
  response.status = answer.status;
  for (const auto& [name, value] : answer.headers) response.set_header(name, value);
  response.set_header("Content-Type", answer.content_type);
  response.body = std::move(answer.body);
}

void Exchange::Write(Streaming answer, httplib::Response& response) {
  if (const absl::Status status = host_.OnStream(); !status.ok()) {
    if (answer.closed != nullptr) answer.closed();
    return Write(ErrorResponse(status), response);
  }
  response.status = 200;
  for (const auto& [name, value] : answer.headers) response.set_header(name, value);
  response.set_header("Cache-Control", "no-store");
  const auto watch = std::make_shared<Watch>(host_.standing(), certificate_pem_);
  const auto provide = [this, watch, next = std::move(answer.next)](size_t,
                                                                    httplib::DataSink& sink) {
    if (stopping_.load() || watch->over() || wire_.Ended()) return false;
    const std::optional<std::string> piece = next(kStreamWait);
    if (!piece) {
      sink.done();
      return true;
    }
    if (piece->empty()) return true;
    wire_.BeginPiece();
    return sink.write(piece->data(), piece->size());
  };
  // Called for HEAD too, which asks for no piece.
  const auto release = [this, closed = std::move(answer.closed)](bool) {
    host_.OnStreamEnd();
    if (closed != nullptr) closed();
  };
  response.set_chunked_content_provider(answer.content_type, provide, release);
}

}  // namespace meshrun::http
