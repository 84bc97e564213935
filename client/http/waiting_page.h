// What a browser shows in place of the page while no coordinator answers.
#pragma once

#include <string>
#include <string_view>

#include "core/http/message.h"

namespace meshrun::client {

// Whether the answer is for a person to read: a browser opens the page itself at `path`.
bool OpensPage(const http::Request& request, std::string_view path);
// HTML with the reason, which asks again by itself every few seconds. 503.
http::Response WaitingPage(const std::string& why);

}  // namespace meshrun::client
