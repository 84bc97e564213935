#include "client/http/waiting_page.h"

#include <fmt/format.h>

#include "client/http/script_policy.h"

namespace meshrun::client {
namespace {

// Reloading keeps the place in the page (the fragment), which a refresh by the head may not.
constexpr std::string_view kAskAgain = "setTimeout(function(){location.reload()},3000)";

std::string HtmlText(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

bool OpensPage(const http::Request& request, std::string_view path) {
  return request.method == "GET" && path == "/" &&
         request.header("accept").find("text/html") != std::string_view::npos;
}

http::Response WaitingPage(const std::string& why) {
  return {.status = 503,
          .content_type = "text/html; charset=utf-8",
          .body = fmt::format("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
                              "<meta name=\"referrer\" content=\"no-referrer\">\n"
                              "<meta name=\"viewport\" content=\"width=device-width\">\n"
                              "<noscript><meta http-equiv=\"refresh\" content=\"3\"></noscript>\n"
                              "<title>meshrun: no coordinator answers</title>\n"
                              "<link rel=\"icon\" href=\"data:,\">\n"
                              "<h1>No coordinator answers</h1>\n<p>{}\n"
                              "<p>This page asks again every 3 seconds, and goes on by itself.\n"
                              "<script>{}</script>\n",
                              HtmlText(why), kAskAgain),
          .headers = {{"Cache-Control", "no-store"},
                      {"Content-Security-Policy", ScriptPolicy(kAskAgain)},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Content-Type-Options", "nosniff"}}};
}

}  // namespace meshrun::client
