// What a server of HTTP says on a plain connection.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "core/os/fd.h"
#include "core/parse_integer.h"
#include "tests/worker/support/processes.h"

namespace meshrun::http {

// Whether an answer has its head, and a body as long as the head says. One to HEAD has no body.
inline bool IsWholeAnswer(std::string_view answer, bool to_head) {
  const size_t end_of_head = answer.find("\r\n\r\n");
  if (end_of_head == std::string_view::npos) return false;
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t at = answer.find(kLength);
  if (to_head || at >= end_of_head) return true;
  const std::string_view length = answer.substr(at + kLength.size());
  const auto bytes = ParseInteger<size_t>(length.substr(0, length.find("\r\n")));
  return bytes && answer.size() - end_of_head - 4 >= *bytes;
}

// The whole answer, after which the server must close. A reset after it is an end too: the server
// has not read all that was sent.
inline std::string ReadAnswer(const os::UniqueFd& socket, bool to_head = false) {
  std::string answer;
  bool reset = false;
  EXPECT_TRUE(testing::Eventually([&] {
    char buffer[4096];
    const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) answer.append(buffer, static_cast<size_t>(got));
    reset = got < 0 && errno == ECONNRESET;
    return got == 0 || reset;
  })) << answer;
  EXPECT_TRUE(!reset || IsWholeAnswer(answer, to_head)) << answer;
  return answer;
}

}  // namespace meshrun::http
