#include "client/http/page_proxy.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "client/http/forwarded_call.h"
#include "client/http/redirect_page.h"
#include "client/http/waiting_page.h"
#include "core/hash.h"
#include "core/http/server.h"
#include "core/mutex.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// Between two questions where the coordinator is now.
constexpr std::chrono::seconds kFindAgain(1);
// Stacks of a job with a stopped host take a minute.
constexpr std::chrono::seconds kSilence(75);

// What belongs to one connection, or is made anew on ours.
bool IsReplaced(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "connection",     "keep-alive",   "transfer-encoding",
      "content-length", "content-type", "content-encoding",
      "accept-ranges",  "vary",         "referrer-policy"};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(std::begin(kNames), std::end(kNames), lower) != std::end(kNames);
}

bool Equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

http::Response Refused(std::string_view why) {
  return http::ErrorResponse(absl::PermissionDeniedError(std::string(why)));
}

constexpr std::string_view kCookie = "meshrun-page=";

// 128 bits, as letters and digits.
absl::StatusOr<std::string> RandomKey() {
  std::array<unsigned char, 16> bytes{};
  if (::RAND_bytes(bytes.data(), bytes.size()) != 1) {
    return absl::InternalError("there is no randomness for the page's key");
  }
  return HexEncode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string PathAndQuery(const http::Request& request, std::string_view path) {
  std::string out;
  while (!path.empty()) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    out += "/" + EncodeUrl(path.substr(0, end));
    path.remove_prefix(end);
  }
  char joint = '?';
  for (const auto& [name, value] : request.query) {
    out += fmt::format("{}{}={}", std::exchange(joint, '&'), EncodeUrl(name), EncodeUrl(value));
  }
  return out;
}

// A coordinator that stands by answers 503.
bool IsAway(const absl::StatusOr<http::Answer>& answer) {
  if (!answer.ok()) return true;
  const auto* const response = std::get_if<http::Response>(&*answer);
  return response != nullptr && response->status == 503;
}

// Why the answer IsAway, as a sentence.
std::string WhyAway(const absl::StatusOr<http::Answer>& answer) {
  if (!answer.ok()) return std::string(answer.status().message());
  const auto& response = std::get<http::Response>(*answer);
  const auto body = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const bool tells = body.is_object() && body.contains("message") && body["message"].is_string();
  return tells ? body["message"].get<std::string>() : "the coordinator answers 503";
}

class Proxy : public PageProxy {
 public:
  Proxy(HttpTarget target, Find find) : target_(std::move(target)), find_(std::move(find)) {}
  ~Proxy() override { Stop(); }

  absl::Status Begin(int port) {
    PageKey::Secrets secrets;
    for (std::string* one : {&secrets.key, &secrets.place, &secrets.cookie, &once_}) {
      MESHRUN_ASSIGN_OR_RETURN(*one, RandomKey());
    }
    MESHRUN_ASSIGN_OR_RETURN(
        server_, http::Server::Start(
                     {.listen = fmt::format("127.0.0.1:{}", port),
                      .security = {.insecure_loopback = true},
                      .handler = [this](const http::Request& request) { return Handle(request); },
                      .program = "meshrun",
                      .flag = "--port"}));
    MutexLock lock(mu_);
    key_ = std::make_shared<PageKey>(server_->address(), std::move(secrets));
    return absl::OkStatus();
  }

  std::string url() const override {
    MutexLock lock(mu_);
    return key_->Url();
  }
  std::string url_for_once() const override {
    MutexLock lock(mu_);
    return key_->Url(once_);
  }
  void OnUse(std::function<void()> used) override {
    MutexLock lock(mu_);
    used_ = std::move(used);
  }
  void Stop() override {
    stopping_.store(true);
    if (server_ != nullptr) server_->Stop();
  }

 private:
  http::Answer Handle(const http::Request& request) {
    std::shared_ptr<PageKey> key;
    HttpTarget target;
    {
      MutexLock lock(mu_);
      key = key_;
      target = target_;
    }
    if (key == nullptr) return Refused("the page is not served yet");
    const auto is_first = [this](std::string_view given) { return IsFirst(given); };
    if (auto answer = key->Judge(request, is_first)) return *std::move(answer);
    if (!http::IsGet(request) && request.method != "POST") {
      return http::MethodNotAllowed(request, "GET, HEAD, POST");
    }
    const std::string_view path = key->PathAtCoordinator(request.path);
    HttpCall call{.method = request.method,
                  .path = PathAndQuery(request, path),
                  .body = request.body,
                  .timeout = kSilence};
    for (const char* name : {"content-type", "if-none-match", "accept"}) {
      if (const auto value = request.header(name); !value.empty())
        call.headers.emplace(name, value);
    }
    auto answer = Forward(target, call);
    // The coordinator has moved, or another one leads now. A call that changes something may have
    // arrived: its sender decides whether to repeat it.
    if (IsAway(answer) && !stopping_.load() && FindAgain(target) && request.method != "POST") {
      {
        MutexLock lock(mu_);
        target = target_;
      }
      answer = Forward(target, call);
    }
    if (IsAway(answer) && OpensPage(request, path)) return WaitingPage(WhyAway(answer));
    if (answer.ok()) return *std::move(answer);
    return http::ErrorResponse(answer.status());
  }

  absl::StatusOr<http::Answer> Forward(const HttpTarget& target, const HttpCall& call) {
    MESHRUN_ASSIGN_OR_RETURN(std::unique_ptr<ForwardedCall> begun,
                             ForwardedCall::Begin(target, call));
    const std::shared_ptr<ForwardedCall> forwarded = std::move(begun);
    const auto gone = [this] { return stopping_.load(); };
    MESHRUN_ASSIGN_OR_RETURN(const HttpHead head, forwarded->Head(gone));
    // The path is a secret, whatever the coordinator says.
    http::Headers headers = {{"Referrer-Policy", "no-referrer"}};
    for (const auto& [name, value] : head.headers) {
      if (!IsReplaced(name)) headers.emplace_back(name, value);
    }
    const std::string type = head.Header("content-type");
    if (type.starts_with("text/event-stream")) {
      return http::Streaming{
          .content_type = type,
          .next = [forwarded](std::chrono::milliseconds wait) { return forwarded->Next(wait); },
          .closed = nullptr,
          .headers = std::move(headers)};
    }
    return http::Response{.status = head.status,
                          .content_type = type,
                          .body = forwarded->Rest(gone),
                          .headers = std::move(headers)};
  }

  // Whether this is the key for one use, and comes for the first time.
  bool IsFirst(std::string_view given) {
    std::function<void()> used;
    {
      MutexLock lock(mu_);
      if (once_used_ || !Equal(given, once_)) return false;
      once_used_ = true;
      used = std::exchange(used_, nullptr);
    }
    if (used != nullptr) used();
    return true;
  }

  // Whether there is an address to try: a new one, or the old one once more.
  bool FindAgain(const HttpTarget& failed) {
    {
      MutexLock lock(mu_);
      if (target_.address != failed.address) return true;
      const auto now = std::chrono::steady_clock::now();
      if (now - found_at_ < kFindAgain) return false;
      found_at_ = now;
    }
    auto found = find_();
    if (!found.ok()) return false;
    MutexLock lock(mu_);
    target_ = *std::move(found);
    return true;
  }

  mutable Mutex mu_;
  std::shared_ptr<PageKey> key_ MESHRUN_GUARDED_BY(mu_);
  std::string once_;
  bool once_used_ MESHRUN_GUARDED_BY(mu_) = false;
  std::function<void()> used_ MESHRUN_GUARDED_BY(mu_);
  HttpTarget target_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point found_at_ MESHRUN_GUARDED_BY(mu_);
  const Find find_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<http::Server> server_;
};

}  // namespace

PageKey::PageKey(std::string host, Secrets secrets)
    : host_(std::move(host)),
      secrets_(std::move(secrets)),
      path_(fmt::format("/s/{}/", secrets_.place)) {}

std::string PageKey::Url(const std::string& key) const {
  return fmt::format("http://{}/?key={}", host_, key);
}

// Not a redirection: a browser would send no cookie along with it, because it counts the way here,
// for example from a file, as the way from another site.
http::Response PageKey::Welcome() const {
  return {.content_type = "text/html; charset=utf-8",
          .body = RedirectPage(path_),
          .headers = {{"Cache-Control", "no-store"},
                      {"Content-Security-Policy", RedirectPolicy()},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Set-Cookie", fmt::format("{}{}; Path={}; HttpOnly; SameSite=Strict",
                                                 kCookie, secrets_.cookie, path_)}}};
}

bool PageKey::Shows(const http::Request& request) const {
  std::string_view cookies = request.header("cookie");
  while (!cookies.empty()) {
    const size_t end = std::min(cookies.find(';'), cookies.size());
    std::string_view one = cookies.substr(0, end);
    one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
    // Servers at other ports may have set cookies of the same name.
    if (one.starts_with(kCookie) && Equal(one.substr(kCookie.size()), secrets_.cookie)) return true;
    cookies.remove_prefix(std::min(end + 1, cookies.size()));
  }
  return false;
}

std::string_view PageKey::PathAtCoordinator(std::string_view path) const {
  return path.substr(path_.size() - 1);
}

std::optional<http::Response> PageKey::Judge(const http::Request& request,
                                             const IsGood& is_good) const {
  // Another name may lead to this address: a site's own, by DNS.
  if (request.header("host") != host_) {
    return Refused(fmt::format("this server is http://{}, and no other name is", host_));
  }
  const std::string_view origin = request.header("origin");
  if (!origin.empty() && origin != "http://" + host_) {
    return Refused("a page of another site has sent this call");
  }
  if (request.method == "GET" && request.path == "/") {
    const auto given = request.query.find("key");
    if (given != request.query.end() &&
        (Equal(given->second, secrets_.key) || (is_good != nullptr && is_good(given->second)))) {
      return Welcome();
    }
  }
  const bool is_below = request.path.size() >= path_.size() &&
                        Equal(std::string_view(request.path).substr(0, path_.size()), path_);
  if (!is_below || !Shows(request)) {
    return Refused(
        "this call has no key: open the address that 'meshrun page' has printed, with its key");
  }
  // Absent: the caller is not a browser, or an old one. "none": a person has typed the address.
  const std::string_view site = request.header("sec-fetch-site");
  if (!site.empty() && site != "same-origin" && site != "none") {
    return Refused("a page of another server has sent this call");
  }
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<PageProxy>> PageProxy::Start(int port, HttpTarget target,
                                                            Find find) {
  auto proxy = std::make_unique<Proxy>(std::move(target), std::move(find));
  MESHRUN_RETURN_IF_ERROR(proxy->Begin(port));
  return proxy;
}

}  // namespace meshrun::client
