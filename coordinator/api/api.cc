#include "coordinator/api/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "coordinator/api/calls.h"
#include "coordinator/api/document.h"
#include "coordinator/api/event_stream.h"
#include "coordinator/api/fill_request.h"
#include "coordinator/api/log_pieces.h"
#include "coordinator/api/whole_answers.h"
#include "coordinator/page/assets.h"
#include "core/error_detail.h"
#include "core/json/json.h"
#include "core/os/user.h"
#include "core/picture_name.h"
#include "core/status.h"

namespace meshrun::coordinator {
namespace {

using google::protobuf::Message;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr std::string_view kJsonType = "application/json";
// What the gate and the audit know paths without a method by: who asks may write what they like.
constexpr std::string_view kPlainPath = "http:/";
// A path that there is not: no role is needed to hear so, and the call is counted as any other.
constexpr std::string_view kNoPath;
// A rank may write nothing for hours: its stream begins all the same.
constexpr milliseconds kBeginWithin(250);

Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

Sender SenderOf(const http::Request& request) {
  return {.peer = "http:" + request.peer,
          .shows_certificate = !request.trusted,
          .identity = request.caller,
          .certificate = request.certificate_pem};
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

http::Response JsonAnswer(std::string body) {
  return {.content_type = std::string(kJsonType), .body = std::move(body)};
}

// An error as its caller may act on it: a call that the gate refuses says when to repeat it.
http::Response ErrorAnswer(const absl::Status& status) {
  const auto wait = rpc::WaitBeforeRepeating(status);
  if (!wait || RetryAfter(status)) return http::ErrorResponse(status);
  return http::ErrorResponse(
      TryAgainLater(std::string_view(status.message().data(), status.message().size()), *wait));
}

// "CancelJob" of "/meshrun.v1.JobService/CancelJob".
std::string_view ShortMethod(std::string_view method) {
  return method.substr(method.rfind('/') + 1);
}

std::string Caller(const http::Request& request) {
  Json out{{"user", request.trusted ? os::UserName() : request.caller.name},
           {"roles", Json::array()},
           {"may", Json::array()}};
  const rpc::Roles roles = request.trusted ? rpc::kOperateRole | rpc::kSubmitRole | rpc::kReadRole
                                           : request.caller.roles;
  for (const rpc::Roles role : {rpc::kCoordinatorRole, rpc::kWorkerRole, rpc::kSubmitRole,
                                rpc::kOperateRole, rpc::kReadRole}) {
    if ((roles & role) != 0) out["roles"].push_back(rpc::RoleNames(role));
  }
  std::set<std::string_view> may;
  for (const Route& route : Routes()) {
    const rpc::MethodRule* const rule = rpc::FindRule(route.method);
    if (!route.method.starts_with("http:") && rule != nullptr && (rule->roles & roles) != 0) {
      may.insert(ShortMethod(route.method));
    }
  }
  for (const std::string_view method : may) out["may"].push_back(std::string(method));
  return Dump(out) + "\n";
}

http::Streaming AsEvents(std::shared_ptr<EventStream> events) {
  return {.content_type = "text/event-stream",
          .next = [events](milliseconds wait) { return events->Next(wait); },
          .closed = nullptr};
}

EventStream::Write WriteLogs(const std::shared_ptr<LogPieces>& pieces) {
  return [pieces](const Message& answer) {
    const Json piece = pieces->Add(static_cast<const v1::ReadLogsResponse&>(answer));
    return piece.is_null() ? std::string() : EventText("log", Dump(piece));
  };
}

EventStream::Rest RestOfLogs(const std::shared_ptr<LogPieces>& pieces) {
  return [pieces] {
    std::string out;
    for (const Json& piece : pieces->Rest()) out += EventText("log", Dump(piece));
    return out;
  };
}

http::Response Page(const http::Request& request) {
  const Asset* const asset = FindAsset(request.path);
  if (asset == nullptr) {
    return http::ErrorResponse(absl::NotFoundError(fmt::format(
        "there is no {} here: the page is at /, the API below {}", request.path, kApiBase)));
  }
  http::Response out{.content_type = std::string(asset->content_type)};
  out.headers.emplace_back("ETag", asset->etag);
  if (Matches(request.header("if-none-match"), asset->etag)) {
    out.status = 304;
  } else {
    out.body = asset->bytes;
  }
  return out;
}

http::Response NoRoute(const http::Request& request, const Match& match) {
  if (match.allowed.empty()) {
    return http::ErrorResponse(absl::NotFoundError(fmt::format(
        "there is no {} here: {}/openapi.json describes the calls", request.path, kApiBase)));
  }
  return http::MethodNotAllowed(request, match.allowed == "GET" ? "GET, HEAD" : match.allowed);
}

// The whole header is "application/json; charset=utf-8", for example.
bool IsJson(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  const size_t end = type.find_last_not_of(' ');
  return end != std::string_view::npos &&
         std::equal(type.begin(), type.begin() + static_cast<long>(end) + 1, kJsonType.begin(),
                    kJsonType.end(), [](char a, char b) { return std::tolower(a) == b; });
}

// Those that the answer does not have itself.
void AddHeaders(const http::Request& request, http::Headers* headers) {
  const auto add = [headers](std::string_view name, std::string_view value) {
    const bool is_there = std::any_of(headers->begin(), headers->end(),
                                      [name](const auto& header) { return header.first == name; });
    if (!is_there) headers->emplace_back(name, value);
  };
  for (const auto& [name, value] : PageHeaders()) add(name, value);
  // A browser asks for a file of the page each time, and is told in a few bytes that it has it.
  add("Cache-Control", request.path.starts_with(kApiBase) ? "no-store" : "no-cache");
}

// A picture is what a rank has written: a browser shows it as nothing else, and runs nothing in it.
http::Response PictureAnswer(const Match& match, WholePicture picture) {
  http::Response out{.content_type = std::string(PictureType(match.path_values.at("name")))};
  out.headers = {
      {"ETag", picture.etag},
      {"Cache-Control", "no-cache"},
      {"Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox"}};
  if (picture.bytes) {
    out.body = *std::move(picture.bytes);
  } else {
    out.status = 304;
  }
  return out;
}

}  // namespace

http::Answer Api::Handle(const http::Request& request) const {
  http::Answer answer = Call(request);
  std::visit([&](auto& any) { AddHeaders(request, &any.headers); }, answer);
  return answer;
}

http::Answer Api::Call(const http::Request& request) const {
  if (!request.path.starts_with(fmt::format("{}/", kApiBase))) {
    const bool exists = FindAsset(request.path) != nullptr;
    const absl::Status allowed =
        Allow(request, exists ? "http:" + request.path : kNoPath, kPlainPath);
    if (!allowed.ok()) return ErrorAnswer(allowed);
    if (exists && !http::IsGet(request)) return NoRoute(request, {.allowed = "GET"});
    return Page(request);
  }
  const Match match = FindRoute(request.method, request.path);
  const bool is_call = match.route != nullptr &&
                       (match.route->http != "POST" || IsJson(request.header("content-type")));
  if (!is_call) {
    const bool exists = match.route != nullptr || !match.allowed.empty();
    const absl::Status allowed = Allow(request, exists ? kPlainPath : kNoPath, kPlainPath);
    if (!allowed.ok()) return ErrorAnswer(allowed);
  }
  if (match.route == nullptr) return NoRoute(request, match);
  if (!is_call) {
    http::Response out = http::ErrorResponse(absl::InvalidArgumentError(
        "this call takes JSON: send 'Content-Type: application/json' and a body such as {}"));
    out.status = 415;
    return out;
  }
  auto answer = Run(request, match);
  if (!answer.ok()) return ErrorAnswer(answer.status());
  return *std::move(answer);
}

http::Handler Api::Guard(std::string method, http::Handler handler) const {
  return [this, method = std::move(method),
          handler = std::move(handler)](const http::Request& request) -> http::Answer {
    const absl::Status allowed = Allow(request, method, method);
    if (!allowed.ok()) return ErrorAnswer(allowed);
    return handler(request);
  };
}

absl::Status Api::Allow(const http::Request& request, std::string_view method,
                        std::string_view counted_as) const {
  if (request.trusted) return absl::OkStatus();
  const absl::Status allowed =
      method == kNoPath ? absl::OkStatus() : rpc::CheckCall(request.caller, method);
  if (options_.admit == nullptr) return allowed;
  return options_.admit(request.caller, request.certificate_pem, counted_as, allowed);
}

absl::StatusOr<http::Answer> Api::Run(const http::Request& request, const Match& match) const {
  const Route& route = *match.route;
  // By the head alone: who may not make the call learns nothing else, and whoever calls too often
  // costs no parsing.
  MESHRUN_RETURN_IF_ERROR(Allow(request, route.method, route.method));
  if (route.answer == AnswerKind::kCaller || route.answer == AnswerKind::kDocument) {
    return JsonAnswer(route.answer == AnswerKind::kCaller ? Caller(request)
                                                          : std::string(Document()));
  }
  std::shared_ptr<Message> message = NewRequest(route.method);
  const absl::Status filled = FillRequest(match, request.query, request.body, message.get());
  if (!filled.ok()) {
    // The gate counts a call until its request is read, which a service would tell it.
    if (!request.trusted && options_.on_unreadable != nullptr) {
      options_.on_unreadable(request.caller, request.body.size());
    }
    return filled;
  }
  const Services services{options_.jobs, options_.cluster};
  const Sender sender = SenderOf(request);
  if (route.answer == AnswerKind::kResponse) {
    MESHRUN_ASSIGN_OR_RETURN(const auto response,
                             CallUnary(services, route.method, sender, std::move(message),
                                       Patience{In(options_.answer_within), request.gone}));
    return JsonAnswer(ToJson(*response));
  }
  const std::shared_ptr<LocalStream> stream = CallStream(services, route.method, sender, *message);
  const Patience patience{In(options_.collect_within), request.gone};
  absl::StatusOr<std::string> all;
  switch (route.answer) {
    case AnswerKind::kPicture: {
      const std::string_view had = request.header("if-none-match");
      const auto has = [had](std::string_view etag) { return !had.empty() && Matches(had, etag); };
      MESHRUN_ASSIGN_OR_RETURN(WholePicture picture, OnePicture(stream, has, patience));
      return PictureAnswer(match, std::move(picture));
    }
    case AnswerKind::kPictures:
      all = AllPictures(stream, {In(options_.list_pictures_within), request.gone});
      break;
    case AnswerKind::kLogPieces:
      all = AllLogs(stream, static_cast<const v1::ReadLogsRequest&>(*message), patience);
      break;
    case AnswerKind::kStacks:
      all = AllStacks(stream, patience);
      break;
    case AnswerKind::kFlightRecords:
      all = AllFlightRecords(stream, patience);
      break;
    default: {
      const auto pieces = std::make_shared<LogPieces>();
      const bool is_log = route.answer == AnswerKind::kLogEvents;
      auto events = std::make_shared<EventStream>(
          stream,
          is_log ? WriteLogs(pieces)
                 : [](const Message& answer) { return EventText("change", ToJsonLine(answer)); },
          is_log ? RestOfLogs(pieces) : nullptr, options_.heartbeat);
      MESHRUN_RETURN_IF_ERROR(
          events->Begin({In(is_log ? kBeginWithin : options_.answer_within), request.gone}));
      return AsEvents(std::move(events));
    }
  }
  if (!all.ok()) return all.status();
  return JsonAnswer(*std::move(all));
}

}  // namespace meshrun::coordinator
