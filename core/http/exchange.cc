#include "core/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error_detail.h"
#include "core/log.h"
#include "core/parse_integer.h"
#include "core/utf8.h"

namespace meshrun::http {
namespace {

// httplib's routes are regular expressions, which recurse once for each character.
constexpr size_t kLongestPath = 1024;
// Bytes of a header's line, with its end.
constexpr size_t kLongestHeader = CPPHTTPLIB_HEADER_MAX_LENGTH;
// Bytes of a wrong method that an error shows.
constexpr size_t kShownBytes = 20;
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

// Methods that httplib knows; it cannot read a request of another one.
bool IsKnown(std::string_view method) {
  static constexpr std::string_view kKnown[] = {"GET",     "HEAD",    "POST",  "PUT",   "DELETE",
                                                "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI"};
  return std::find(std::begin(kKnown), std::end(kKnown), method) != std::end(kKnown);
}

Response Refusal(int status, absl::Status why) {
  Response out = ErrorResponse(why);
  out.status = status;
  return out;
}
Response Refusal(int status, std::string_view why) {
  return Refusal(status, absl::InvalidArgumentError(std::string(why)));
}

Response PathTooLong() { return Refusal(414, "the path, or what follows its '?', is too long"); }

Response BodyTooLong(size_t most) {
  return Refusal(413, fmt::format("the body has more than {} bytes", most));
}

// Whether two programs on the way might take different bytes for the end of the request, whatever
// its method is.
std::optional<Response> RefuseTwoEnds(const httplib::Request& request) {
  for (const auto& [name, value] : request.headers) {
    if (name.find_first_of(" \t") != std::string::npos) {
      return Refusal(400, "a header has a space in its name, or before it, or before its colon");
    }
  }
  const size_t lengths = request.get_header_value_count("Content-Length");
  if (lengths > 1) return Refusal(400, "Content-Length is not one number");
  if (lengths > 0 && request.has_header("Transfer-Encoding")) {
    return Refusal(400, "send Content-Length or Transfer-Encoding, not both");
  }
  return std::nullopt;
}

// Whether the length of the body is said in a way that can be read.
std::optional<Response> RefuseLength(const httplib::Request& request, size_t most) {
  if (const size_t encodings = request.get_header_value_count("Transfer-Encoding"); encodings > 0) {
    if (encodings > 1 || Lower(request.get_header_value("Transfer-Encoding")) != "chunked") {
      return Refusal(501, absl::UnimplementedError(
                              "of all values of Transfer-Encoding only 'chunked' is read"));
    }
    return std::nullopt;
  }
  // Without either httplib would read until the client closes its side, which waits for our answer.
  if (!request.has_header("Content-Length")) {
    return Refusal(411,
                   "the body has no length: send Content-Length, or 'Transfer-Encoding: chunked'");
  }
  const auto length = ParseInteger<uint64_t>(request.get_header_value("Content-Length"));
  if (!length) return Refusal(400, "Content-Length is not one number");
  if (*length > most) return BodyTooLong(most);
  return std::nullopt;
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
  set_error_handler(
      HandlerWithResponse([this](const httplib::Request& request, httplib::Response& response) {
        return Explain(request, response);
      }));
  set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
    if (!ends_) return;
    response.headers.erase("Keep-Alive");
    response.headers.erase("Connection");
    response.set_header("Connection", "close");
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
  answered_ = false;
  bool closed = false;
  const bool served = process_request(wire_, /*close_connection=*/false, closed,
                                      [this](httplib::Request& request) { OnHead(request); });
  if (!served && !answered_ && wire_.head_too_long()) RefuseLine();
  return served && !closed && !ends_ && !wire_.broken() && !stopping_.load();
}

// httplib gives up a first line without end, and answers nothing.
void Exchange::RefuseLine() {
  const Response answer = PathTooLong();
  const std::string text = fmt::format(
      "HTTP/1.1 414 URI Too Long\r\nConnection: close\r\nContent-Type: {}\r\n"
      "Content-Length: {}\r\n\r\n{}",
      answer.content_type, answer.body.size(), answer.body);
  wire_.write(text.data(), text.size());
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
  const bool follows = request.method == "POST" ? !RefuseHead(request)
                                                : !HasBody(request) && !RefuseTwoEnds(request);
  if (follows) return;
  ends_ = true;
  // Nobody waits for the body.
  request.headers.erase("Expect");
}

std::optional<Response> Exchange::RefuseHead(const httplib::Request& request) const {
  if (auto refused = RefuseTwoEnds(request)) return refused;
  if (request.path.size() > kLongestPath) return PathTooLong();
  if (request.method != "POST") return std::nullopt;
  if (auto refused = RefuseLength(request, host_.limits().body_bytes)) return refused;
  if (IsForm(request)) return Refusal(415, "forms are not read: send JSON");
  if (IsPacked(request)) {
    return Refusal(415, "a body with a Content-Encoding is not read: send it as it is");
  }
  return std::nullopt;
}

Exchange::HandlerResponse Exchange::Route(const httplib::Request& request,
                                          httplib::Response& response) {
  if (std::optional<Response> refused = RefuseHead(request)) {
    Write(*std::move(refused), response);
    return HandlerResponse::Handled;
  }
  // Its body is read before the handler is asked.
  if (request.method == "POST") return HandlerResponse::Unhandled;
  Handle(request, response);
  return HandlerResponse::Handled;
}

Exchange::HandlerResponse Exchange::Explain(const httplib::Request& request,
                                            httplib::Response& response) {
  if (answered_) return HandlerResponse::Unhandled;
  // What httplib has not read to its end is not the next request.
  ends_ = true;
  const Limits& limits = host_.limits();
  Response answer = [&] {
    if (wire_.body_too_long() || response.status == 413) return BodyTooLong(limits.body_bytes);
    if (wire_.head_too_long()) {
      return Refusal(
          431, fmt::format("the head of the request has more than {} bytes", limits.head_bytes));
    }
    if (response.status == 414) return PathTooLong();
    if (response.status == 416)
      return Refusal(400, "the header Range cannot be read: leave it out");
    if (response.status >= 500) {
      return ErrorResponse(absl::InternalError("the request could not be handled"));
    }
    if (!request.target.empty() && !IsKnown(request.method)) {
      return Refusal(501, absl::UnimplementedError(
                              fmt::format("{} is not a method that this server knows",
                                          EscapeControls(request.method.substr(0, kShownBytes)))));
    }
    return Refusal(400, fmt::format("the request cannot be read as HTTP/1.1, or has a header line "
                                    "of more than {} bytes",
                                    kLongestHeader));
  }();
  // httplib writes no length where it has found the error.
  answer.headers.emplace_back("Content-Length", std::to_string(answer.body.size()));
  Write(std::move(answer), response);
  return HandlerResponse::Unhandled;
}

void Exchange::Handle(const httplib::Request& request, httplib::Response& response) {
  // The length of a body in chunks is known only now.
  if (request.body.size() > host_.limits().body_bytes) {
    return Write(BodyTooLong(host_.limits().body_bytes), response);
  }
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
  answered_ = true;
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
  answered_ = true;
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
