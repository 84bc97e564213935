// Clients that are slow, silent or many keep nobody else out.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/http/server.h"
#include "tests/core/http/read_answer.h"
#include "tests/core/support/certificates.h"
#include "tests/core/support/loopback.h"
#include "tests/worker/support/processes.h"

namespace meshrun::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ConnectFrom;
using testing::Ended;
using testing::Eventually;

class ServerLimitsTest : public ::testing::Test {
 protected:
  void Begin(const Limits& limits, const rpc::Security& security = {.insecure_loopback = true}) {
    auto server = Server::Start(
        {.listen = "127.0.0.1:0",
         .security = security,
         .limits = limits,
         .handler = [](const Request& request) -> Answer {
           if (request.path == "/watch") {
             return Streaming{.content_type = "text/event-stream",
                              .next = [](milliseconds) { return "data: x\n\n"; }};
           }
           return Response{.body = request.path == "/large" ? std::string(64 << 20, 'x') : "ok"};
         }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  os::UniqueFd Connect(const char* host = "127.0.0.1") {
    return ConnectFrom(host, server_->port());
  }
  static void Send(const os::UniqueFd& socket, std::string_view text) {
    ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  // A client that behaves.
  ::testing::AssertionResult IsServed(const char* from = "127.0.0.1") {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_interface(from);
    const auto answer = client.Get("/x");
    if (answer && answer->status == 200) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << httplib::to_string(answer.error());
  }

  // What the server says to `request` until it closes.
  std::string AnswerTo(std::string_view request) {
    const os::UniqueFd socket = Connect();
    Send(socket, request);
    return ReadAnswer(socket);
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerLimitsTest, ASilentClientIsClosed) {
  Begin({.request = milliseconds(200)});
  const os::UniqueFd silent = Connect();
  EXPECT_TRUE(Eventually([&] { return Ended(silent); }));
}

TEST_F(ServerLimitsTest, AClientThatSendsAByteNowAndThenIsClosed) {
  Begin({.request = milliseconds(500)});
  const os::UniqueFd slow = Connect();
  const auto began = steady_clock::now();
  std::string request = "GET /x HTTP/1.1\r\nX-Slow: ";
  request.append(10'000, 'x');
  size_t sent = 0;
  // Each byte comes long before a deadline of its own would pass.
  EXPECT_TRUE(Eventually([&] {
    Send(slow, request.substr(sent++ % request.size(), 1));
    return Ended(slow);
  }));
  EXPECT_LT(sent, request.size());
  EXPECT_LT(steady_clock::now() - began, std::chrono::seconds(20));
}

TEST_F(ServerLimitsTest, ABodyThatNeverComesIsNotAwaited) {
  Begin({.request = milliseconds(300)});
  const os::UniqueFd slow = Connect();
  Send(slow, "POST /x HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf");
  EXPECT_TRUE(Eventually([&] { return Ended(slow); }));
}

TEST_F(ServerLimitsTest, AClientThatReadsNothingIsClosed) {
  Begin({.answer = milliseconds(300), .least_bytes_per_second = 1u << 30});
  const os::UniqueFd deaf = Connect();
  Send(deaf, "GET /large HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(Eventually([&] { return server_->counts().requests == 1; }));
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
}

TEST_F(ServerLimitsTest, AnEndlessBodyThatNobodyReadsEnds) {
  Begin({.answer = milliseconds(300), .least_bytes_per_second = 1u << 30});
  const os::UniqueFd deaf = Connect();
  Send(deaf, "GET /watch HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(Eventually([&] { return server_->counts().streams == 1; }));
  EXPECT_TRUE(Eventually([&] { return server_->counts().open == 0; }));
  EXPECT_EQ(server_->counts().streams, 0u);
}

TEST_F(ServerLimitsTest, AHeadWithoutEndIsRefused) {
  Begin({.head_bytes = 64 << 10});
  const os::UniqueFd endless = Connect();
  Send(endless, "GET /x HTTP/1.1\r\n");
  const std::string line = "X: " + std::string(1000, 'x') + "\r\n";
  EXPECT_TRUE(Eventually([&] {
    Send(endless, line);
    return Ended(endless);
  }));
}

TEST_F(ServerLimitsTest, ALargeBodyIsRefusedBeforeItIsRead) {
  Begin({.body_bytes = 1 << 20});
  const auto head = [](const std::string& length) {
    return "POST /x HTTP/1.1\r\nContent-Type: application/json\r\n" + length + "\r\n\r\n";
  };
  // One byte too many, and more than a number holds. Curl waits for a leave to send.
  for (const char* length : {"Content-Length: 1048577", "Content-Length: 1099511627776",
                             "Content-Length: 1048577\r\nExpect: 100-continue"}) {
    const std::string answer = AnswerTo(head(length));
    EXPECT_THAT(answer, ::testing::StartsWith("HTTP/1.1 413 ")) << length;
    EXPECT_THAT(answer, ::testing::HasSubstr(R"("message":"the body has more than 1048576 bytes")"))
        << length;
  }
  EXPECT_EQ(server_->counts().requests, 0u);
  httplib::Client client("127.0.0.1", server_->port());
  const auto largest = client.Post("/x", std::string(1 << 20, 'x'), "application/json");
  ASSERT_TRUE(largest) << httplib::to_string(largest.error());
  EXPECT_EQ(largest->status, 200);
}

TEST_F(ServerLimitsTest, ABodyInChunksHasTheSameLimit) {
  Begin({.body_bytes = 1 << 16});
  const std::string head =
      "POST /x HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
      "Connection: close\r\n\r\n";
  const auto chunks = [](size_t bytes, size_t each) {
    std::string out;
    for (size_t sent = 0; sent < bytes; sent += each) {
      const size_t size = std::min(each, bytes - sent);
      out += fmt::format("{:x}\r\n{}\r\n", size, std::string(size, 'x'));
    }
    return out + "0\r\n\r\n";
  };
  EXPECT_THAT(AnswerTo(head + chunks(1 << 16, 1000)), ::testing::StartsWith("HTTP/1.1 200 "));
  for (const std::string& body :
       {chunks((1 << 16) + 1, 1000), chunks((1 << 16) + 1, 1 << 20), chunks(200'000, 1000),
        // The answer comes before the end of the body.
        std::string("fffffff\r\n") + std::string(200'000, 'x')}) {
    const std::string answer = AnswerTo(head + body);
    EXPECT_THAT(answer, ::testing::StartsWith("HTTP/1.1 413 ")) << body.substr(0, 10);
    EXPECT_THAT(answer, ::testing::HasSubstr(R"("message":"the body has more than 65536 bytes")"))
        << body.substr(0, 10);
  }
}

TEST_F(ServerLimitsTest, APackedBodyIsRefusedBeforeItIsRead) {
  Begin({});
  for (const char* head : {"Content-Encoding: gzip", "Content-Encoding: br", "content-encoding: BR",
                           "Content-Encoding: identity\r\nContent-Encoding: deflate"}) {
    const os::UniqueFd bomb = Connect();
    // The body never comes.
    Send(bomb, fmt::format("POST /x HTTP/1.1\r\nContent-Type: application/json\r\n{}\r\n"
                           "Content-Length: 100000\r\n\r\n",
                           head));
    const std::string answer = ReadAnswer(bomb);
    EXPECT_THAT(answer, ::testing::StartsWith("HTTP/1.1 415 ")) << head;
    EXPECT_THAT(answer, ::testing::HasSubstr("send it as it is")) << head;
  }
  EXPECT_EQ(server_->counts().requests, 0u);
}

TEST_F(ServerLimitsTest, ABodyAsItIsMaySaySo) {
  Begin({});
  httplib::Client client("127.0.0.1", server_->port());
  const auto answer =
      client.Post("/x", {{"Content-Encoding", "identity"}}, "{}", "application/json");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
}

TEST_F(ServerLimitsTest, SixHundredSilentConnectionsKeepNobodyOut) {
  Begin({});
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(Connect("127.0.0.2"));
  EXPECT_TRUE(IsServed("127.0.0.3"));
  // Nor those who share their address.
  EXPECT_TRUE(IsServed("127.0.0.2"));
  EXPECT_LE(server_->counts().open, Limits().per_address + 1);
  EXPECT_GE(server_->counts().closed, 600 - Limits().per_address);
}

TEST_F(ServerLimitsTest, ConnectionsOfManyAddressesKeepNobodyOut) {
  Begin({.connections = 32, .per_address = 4});
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect(fmt::format("127.0.1.{}", 1 + i).c_str()));
  EXPECT_TRUE(IsServed());
  EXPECT_LE(server_->counts().open, 32u);
}

TEST_F(ServerLimitsTest, SlowHandshakesKeepNobodyOut) {
  const testing::CertificateAuthority ours("ours", directory_.path());
  Begin({.handshake = std::chrono::seconds(3), .connections = 8},
        {.tls = ours.Sign("coordinator", {.roles = {"coordinator"}})});
  std::vector<os::UniqueFd> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(Connect());
    // The first bytes of a hello.
    Send(slow.back(), "\x16\x03\x01");
  }
  const rpc::TlsFiles reader = ours.Sign("reader");
  httplib::SSLClient client("127.0.0.1", server_->port(), reader.cert, reader.key);
  client.enable_server_certificate_verification(false);
  const auto answer = client.Get("/x");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(Eventually([&] { return Ended(slow.back()); }));
}

TEST_F(ServerLimitsTest, AUserHasSoManyConnectionsAndStreams) {
  const testing::CertificateAuthority ours("ours", directory_.path());
  Begin({.per_user = 4, .streams_per_user = 2}, {.tls = ours.Sign("coordinator")});
  const rpc::TlsFiles ada = ours.Sign("ada");
  std::vector<std::unique_ptr<httplib::SSLClient>> clients;
  std::vector<std::thread> readers;
  std::atomic<bool> over{false};
  std::atomic<int> streams{0};
  const auto client_of = [&](const rpc::TlsFiles& files) {
    auto client =
        std::make_unique<httplib::SSLClient>("127.0.0.1", server_->port(), files.cert, files.key);
    client->enable_server_certificate_verification(false);
    return client;
  };
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      bool first = true;
      client_of(ada)->Get("/watch", [&](const char*, size_t) {
        if (std::exchange(first, false)) ++streams;
        return !over;
      });
    });
  }
  EXPECT_TRUE(Eventually([&] { return streams == 2; }));
  const auto third = client_of(ada)->Get("/watch");
  ASSERT_TRUE(third);
  EXPECT_EQ(third->status, 429);
  // Beside the streams there is room for two; further ones push idle ones out.
  for (int i = 0; i < 6; ++i) {
    clients.push_back(client_of(ada));
    clients.back()->set_keep_alive(true);
    ASSERT_TRUE(clients.back()->Get("/x")) << i;
  }
  EXPECT_LE(server_->counts().open, 4u);
  EXPECT_TRUE(client_of(ours.Sign("bob"))->Get("/x"));
  over = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace meshrun::http
