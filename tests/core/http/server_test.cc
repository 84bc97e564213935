// The HTTP server: who is let in, what reaches the handler, what comes back.
#include "core/http/server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>

#include "core/error_detail.h"
#include "tests/core/http/read_answer.h"
#include "tests/core/support/certificates.h"
#include "tests/core/support/loopback.h"
#include "tests/worker/support/processes.h"

namespace meshrun::http {
namespace {

using testing::CertificateAuthority;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::kPatience;

class ServerTest : public ::testing::Test {
 protected:
  void Begin(Server::Options options) {
    if (options.handler == nullptr) {
      options.handler = [this](const Request& request) -> Answer {
        {
          MutexLock lock(mu_);
          last_ = request;
        }
        return Response{.body = "hello\n"};
      };
    }
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void BeginPlain(Handler handler = nullptr) {
    Begin({.listen = "127.0.0.1:0",
           .security = {.insecure_loopback = true},
           .handler = std::move(handler)});
  }
  void BeginTls(certificates::Standing* standing = nullptr, Handler handler = nullptr) {
    Begin({.listen = "127.0.0.1:0",
           .security = {.tls = ours_.Sign("coordinator"), .reread = std::chrono::seconds(0)},
           .standing = standing,
           .handler = std::move(handler)});
  }
  httplib::Client Plain() { return httplib::Client("127.0.0.1", server_->port()); }
  std::unique_ptr<httplib::SSLClient> Tls(const rpc::TlsFiles& files) {
    auto client =
        std::make_unique<httplib::SSLClient>("127.0.0.1", server_->port(), files.cert, files.key);
    client->set_ca_cert_path(ours_.ca_file().c_str());
    client->enable_server_certificate_verification(false);
    return client;
  }
  Request last() {
    MutexLock lock(mu_);
    return last_;
  }

  testing::TemporaryDirectory directory_;
  const CertificateAuthority ours_{"ours", directory_.path()};
  const CertificateAuthority other_{"other", directory_.path()};
  Mutex mu_;
  Request last_ MESHRUN_GUARDED_BY(mu_);
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, TheHandlerSeesPathQueryHeadersAndBody) {
  BeginPlain();
  const auto answer = Plain().Post("/api/v1/jobs/a%20b?state=RUNNING&state=QUEUED&user=ada",
                                   {{"X-Asked", "yes"}}, R"({"now": true})", "application/json");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello\n");
  const Request seen = last();
  EXPECT_EQ(seen.method, "POST");
  EXPECT_EQ(seen.path, "/api/v1/jobs/a b");
  EXPECT_EQ(seen.query.count("state"), 2u);
  EXPECT_EQ(seen.query.find("user")->second, "ada");
  EXPECT_EQ(seen.header("x-asked"), "yes");
  EXPECT_EQ(seen.header("x-unasked"), "");
  EXPECT_EQ(seen.body, R"({"now": true})");
  EXPECT_THAT(seen.peer, ::testing::StartsWith("ipv4:127.0.0.1:"));
  EXPECT_TRUE(seen.trusted);
}

TEST_F(ServerTest, AConnectionServesManyRequests) {
  BeginPlain();
  auto client = Plain();
  client.set_keep_alive(true);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.Get("/metrics")) << i;
  EXPECT_EQ(server_->counts().open, 1u);
  EXPECT_EQ(server_->counts().requests, 20u);
}

TEST_F(ServerTest, HeadIsAnsweredWithoutTheBody) {
  BeginPlain();
  const auto answer = Plain().Head("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->get_header_value("Content-Length"), "6");
  EXPECT_EQ(answer->body, "");
}

TEST_F(ServerTest, FormsAndLongPathsDoNotReachTheHandler) {
  BeginPlain([](const Request&) -> Answer {
    ADD_FAILURE();
    return Response();
  });
  const auto form = Plain().Post("/x", httplib::Params{{"a", "b"}});
  ASSERT_TRUE(form);
  EXPECT_EQ(form->status, 415);
  for (const size_t size : {2'000, 20'000, 200'000}) {
    const auto path = Plain().Get(("/" + std::string(size, 'x')).c_str());
    ASSERT_TRUE(path) << size << ": " << httplib::to_string(path.error());
    EXPECT_EQ(path->status, 414) << size;
    EXPECT_THAT(path->body, HasSubstr(R"("code":"INVALID_ARGUMENT")")) << size;
  }
}

TEST_F(ServerTest, OtherMethodsReachTheHandlerWithoutTheirBodies) {
  BeginPlain([this](const Request& request) -> Answer {
    MutexLock lock(mu_);
    last_ = request;
    return MethodNotAllowed(request, "GET, HEAD");
  });
  auto client = Plain();
  client.set_keep_alive(true);
  for (int i = 0; i < 2; ++i) {
    const auto put = client.Put("/x", "GET /y HTTP/1.1\r\n\r\n", "application/json");
    ASSERT_TRUE(put) << httplib::to_string(put.error());
    EXPECT_EQ(put->status, 405);
    EXPECT_EQ(put->get_header_value("Allow"), "GET, HEAD");
    EXPECT_EQ(put->get_header_value("Connection"), "close");
    EXPECT_EQ(put->get_header_value_count("Keep-Alive"), 0u);
    EXPECT_THAT(put->body, HasSubstr("/x is not for PUT: use GET, HEAD"));
    EXPECT_EQ(last().body, "");
  }
  EXPECT_EQ(server_->counts().requests, 2u);
}

// Sends `request` as it is, and gives the whole answer, after which the server must close.
std::string Said(int port, std::string_view request) {
  const os::UniqueFd socket = testing::ConnectFrom("127.0.0.1", port);
  ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  return ReadAnswer(socket, request.starts_with("HEAD "));
}

// Two lengths, of which another program on the way may take the other one.
TEST_F(ServerTest, ARequestWithTwoEndsIsRefusedWhateverItsMethodIs) {
  BeginPlain();
  const std::tuple<const char*, const char*> cases[] = {
      {"Content-Length: 0\r\nContent-Length: 31\r\n", "Content-Length is not one number"},
      {"Content-Length: 0\r\nContent-Length: 0\r\n", "Content-Length is not one number"},
      {"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "not both"},
      {"Transfer-Encoding: chunked\r\ncontent-length: 31\r\n", "not both"},
      {"Content-Length : 31\r\n", "a header has a space"},
      {"Content-Length\t: 31\r\n", "a header has a space"},
      {"Content-Length: 0\r\nTransfer-Encoding : chunked\r\n", "a header has a space"},
      {"X: folded\r\n Content-Length: 31\r\n", "a header has a space"},
  };
  for (const char* method : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}) {
    for (const auto& [headers, message] : cases) {
      const std::string request = fmt::format("{} /x HTTP/1.1\r\n{}\r\n", method, headers);
      const std::string said = Said(server_->port(), request + "GET /smuggled HTTP/1.1\r\n\r\n");
      EXPECT_THAT(said, ::testing::StartsWith("HTTP/1.1 400 ")) << request;
      EXPECT_THAT(said, HasSubstr("\r\nConnection: close\r\n")) << request;
      EXPECT_EQ(said.find("HTTP/1.1", 1), std::string::npos) << said;
      const bool has_body = method != std::string_view("HEAD");
      EXPECT_THAT(said, HasSubstr(has_body ? message : "")) << request;
    }
  }
  EXPECT_EQ(server_->counts().requests, 0u);
}

// What the parser of HTTP finds wrong comes as JSON too, and ends the connection: nobody knows
// where the next request would begin.
TEST_F(ServerTest, ARequestThatCannotBeReadGetsAnErrorInJson) {
  BeginPlain();
  const std::string post = "POST /x HTTP/1.1\r\nContent-Type: application/json\r\n";
  const std::tuple<std::string, int, const char*, const char*> cases[] = {
      {"FOO /x HTTP/1.1\r\n\r\n", 501, "UNIMPLEMENTED",
       "FOO is not a method that this server knows"},
      {"get /x HTTP/1.1\r\n\r\n", 501, "UNIMPLEMENTED", "get is not a method"},
      {"GET /x HTTP/9.9\r\n\r\n", 400, "INVALID_ARGUMENT", "HTTP/1.1"},
      {"nonsense\r\n\r\n", 400, "INVALID_ARGUMENT", "HTTP/1.1"},
      {"GET /x HTTP/1.1\r\nRange: lines=1-2\r\n\r\n", 400, "INVALID_ARGUMENT", "Range"},
      {"GET /x HTTP/1.1\r\nX: " + std::string(10'000, 'x') + "\r\n\r\n", 400, "INVALID_ARGUMENT",
       "has a header line of more than 8192 bytes"},
      {"GET /x HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n", 431, "INVALID_ARGUMENT",
       "65536 bytes"},
      {post + "\r\n{}", 411, "INVALID_ARGUMENT", "Content-Length"},
      {post + "Content-Length: many\r\n\r\n{}", 400, "INVALID_ARGUMENT", "Content-Length"},
      {post + "Content-Length: -2\r\n\r\n{}", 400, "INVALID_ARGUMENT", "Content-Length"},
      {post + "Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}", 400, "INVALID_ARGUMENT",
       "Content-Length"},
      {post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400,
       "INVALID_ARGUMENT", "not both"},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 501, "UNIMPLEMENTED",
       "only 'chunked'"},
      {post + "Transfer-Encoding: chunked\r\n\r\nmany\r\n{}\r\n0\r\n\r\n", 400, "INVALID_ARGUMENT",
       "cannot be read"},
  };
  for (const auto& [request, status, code, message] : cases) {
    const std::string shown = request.substr(0, 100);
    const std::string said = Said(server_->port(), request + "GET /smuggled HTTP/1.1\r\n\r\n");
    EXPECT_THAT(said, ::testing::StartsWith(fmt::format("HTTP/1.1 {} ", status))) << shown;
    EXPECT_THAT(said, HasSubstr("\r\nContent-Type: application/json\r\n")) << shown;
    EXPECT_THAT(said, HasSubstr("\r\nConnection: close\r\n")) << shown;
    const size_t body = said.find("\r\n\r\n") + 4;
    EXPECT_THAT(said, HasSubstr(fmt::format("\r\nContent-Length: {}\r\n", said.size() - body)))
        << shown;
    EXPECT_THAT(said.substr(body), ::testing::StartsWith(fmt::format(R"({{"code":"{}",)", code)))
        << shown;
    EXPECT_THAT(said.substr(body), HasSubstr(message)) << shown;
  }
  EXPECT_EQ(server_->counts().requests, 0u);
}

TEST_F(ServerTest, ABodyMayComeInChunks) {
  BeginPlain();
  const auto answer = Plain().Post(
      "/x",
      [](size_t at, httplib::DataSink& sink) {
        const std::string_view text = R"({"now": true})";
        if (at < text.size()) return sink.write(text.data() + at, 1);
        sink.done();
        return true;
      },
      "application/json");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(last().body, R"({"now": true})");
}

TEST_F(ServerTest, ARangeIsIgnoredHoweverLong) {
  BeginPlain();
  std::string range = "bytes=0-1";
  while (range.size() < 8000) range += ",2-3";
  const auto answer = Plain().Get("/metrics", {{"Range", range}});
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, "hello\n");
}

TEST_F(ServerTest, AnErrorIsJsonWithTheStatusOfItsCode) {
  BeginPlain([](const Request&) -> Answer {
    return ErrorResponse(TryAgainLater("too \"many\"", std::chrono::milliseconds(1500)));
  });
  const auto answer = Plain().Get("/x");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 429);
  EXPECT_EQ(answer->get_header_value("Retry-After"), "2");
  EXPECT_THAT(answer->body, HasSubstr(R"("code":"RESOURCE_EXHAUSTED")"));
  EXPECT_THAT(answer->body, HasSubstr(R"(\"many\")"));
  EXPECT_THAT(answer->body, HasSubstr(R"("retryAfterSeconds":1.5)"));
}

TEST_F(ServerTest, OverAUnixSocketItsDirectorysUserIsTrusted) {
  const std::string path = directory_ / "http.sock";
  Begin({.listen = "unix:" + path});
  httplib::Client client(path);
  client.set_address_family(AF_UNIX);
  const auto answer = client.Get("/healthz");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(last().trusted);
  EXPECT_EQ(last().peer, "unix");
  // The path is taken while the server lives, and free after it.
  const auto second = Server::Start({.listen = "unix:" + path, .handler = nullptr});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http"));
  server_.reset();
  Begin({.listen = "unix:" + path});
}

TEST_F(ServerTest, PlaintextOverTcpIsRefused) {
  const auto server = Server::Start({.listen = "127.0.0.1:0"});
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ServerTest, ACertificateSaysWhoTheCallerIs) {
  BeginTls();
  const auto answer = Tls(ours_.Sign("ada", {.roles = {"read"}}))->Get("/metrics");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(last().caller.name, "ada");
  EXPECT_EQ(last().caller.roles, rpc::kReadRole);
  EXPECT_FALSE(last().trusted);
  EXPECT_THAT(last().certificate_pem, HasSubstr("BEGIN CERTIFICATE"));
}

TEST_F(ServerTest, ACertificateOfAnotherAuthorityIsRefused) {
  BeginTls();
  EXPECT_FALSE(Tls(other_.Trusting(other_.Sign("stranger"), ours_))->Get("/metrics"));
  EXPECT_EQ(server_->counts().requests, 0u);
}

TEST_F(ServerTest, NoCertificateIsRefused) {
  BeginTls();
  httplib::SSLClient client("127.0.0.1", server_->port());
  client.enable_server_certificate_verification(false);
  EXPECT_FALSE(client.Get("/metrics"));
  EXPECT_FALSE(Plain().Get("/metrics"));
  EXPECT_EQ(server_->counts().requests, 0u);
}

class DeniedTest : public ServerTest {
 protected:
  DeniedTest() {
    Deny("");
    auto standing = certificates::Standing::Start(
        {.deny_file = directory_ / "denied", .interval = std::chrono::milliseconds(0)});
    EXPECT_TRUE(standing.ok()) << standing.status();
    standing_ = *std::move(standing);
  }
  ~DeniedTest() override { server_.reset(); }
  void Deny(const std::string& text) { std::ofstream(directory_ / "denied") << text; }

  std::unique_ptr<certificates::Standing> standing_;
};

TEST_F(DeniedTest, ADeniedCertificateIsRefusedOnAnOldConnection) {
  BeginTls(standing_.get());
  const auto client = Tls(ours_.Sign("ada"));
  client->set_keep_alive(true);
  ASSERT_EQ(client->Get("/metrics")->status, 200);
  Deny("name:ada\n");
  standing_->Look();
  const auto answer = client->Get("/metrics");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 401);
  EXPECT_THAT(answer->body, HasSubstr("deny list"));
  EXPECT_EQ(server_->counts().requests, 2u);
}

TEST_F(DeniedTest, AnEndlessBodyEndsWithItsCertificate) {
  std::atomic<int> closed{0};
  BeginTls(standing_.get(), [&](const Request&) -> Answer {
    return Streaming{.content_type = "text/event-stream",
                     .next = [](std::chrono::milliseconds) { return ": still here\n\n"; },
                     .closed = [&] { ++closed; }};
  });
  const auto client = Tls(ours_.Sign("ada"));
  std::atomic<bool> began{false};
  std::thread reader([&] {
    client->Get("/watch", [&](const char*, size_t) {
      began = true;
      return true;
    });
  });
  EXPECT_TRUE(Eventually([&] { return began.load(); }));
  Deny("name:ada\n");
  standing_->Look();
  reader.join();
  EXPECT_TRUE(Eventually([&] { return closed == 1; }));
}

TEST_F(ServerTest, RenewedCertificatesAreShownToNewConnections) {
  BeginTls();
  const rpc::TlsFiles reader = ours_.Sign("reader");
  ASSERT_TRUE(Tls(reader)->Get("/metrics"));
  // From here on the server is another authority's, and so are its callers.
  const rpc::TlsFiles served = ours_.Sign("coordinator");
  const rpc::TlsFiles renewed = other_.Sign("renewed");
  std::ofstream(served.cert) << std::ifstream(renewed.cert).rdbuf();
  // In the middle of a renewal the last pair holds.
  EXPECT_TRUE(Tls(reader)->Get("/metrics"));
  std::ofstream(served.key) << std::ifstream(renewed.key).rdbuf();
  std::ofstream(served.ca) << std::ifstream(renewed.ca).rdbuf();
  EXPECT_FALSE(Tls(reader)->Get("/metrics"));
  EXPECT_TRUE(Tls(other_.Sign("reader"))->Get("/metrics"));
}

TEST_F(ServerTest, AnEndlessBodyEndsWhenItsClientGoesAway) {
  std::atomic<int> closed{0};
  BeginPlain([&](const Request&) -> Answer {
    return Streaming{.content_type = "text/event-stream",
                     .next =
                         [first = true](std::chrono::milliseconds) mutable {
                           return std::exchange(first, false) ? std::string("data: 1\n\n")
                                                              : std::string();
                         },
                     .closed = [&] { ++closed; }};
  });
  std::string got;
  Plain().Get("/watch", [&](const char* data, size_t size) {
    got.append(data, size);
    return false;
  });
  EXPECT_EQ(got, "data: 1\n\n");
  EXPECT_TRUE(Eventually([&] { return closed == 1; }));
  EXPECT_TRUE(Eventually([&] { return server_->counts().streams == 0; }));
}

TEST_F(ServerTest, ABodyThatEndsLeavesTheConnectionOpen) {
  BeginPlain([](const Request&) -> Answer {
    return Streaming{
        .content_type = "text/event-stream",
        .next = [left = 3](std::chrono::milliseconds) mutable -> std::optional<std::string> {
          if (left-- == 0) return std::nullopt;
          return "data: x\n\n";
        }};
  });
  auto client = Plain();
  client.set_keep_alive(true);
  for (int i = 0; i < 3; ++i) {
    const auto answer = client.Get("/watch");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, "data: x\n\ndata: x\n\ndata: x\n\n");
  }
  EXPECT_EQ(server_->counts().open, 1u);
}

TEST_F(ServerTest, StopEndsAllSoon) {
  BeginPlain([](const Request& request) -> Answer {
    if (request.path == "/once") return Response();
    return Streaming{.content_type = "text/event-stream",
                     .next = [](std::chrono::milliseconds) { return ": still here\n\n"; }};
  });
  const os::UniqueFd silent = testing::ConnectFrom("127.0.0.1", server_->port());
  auto idle = Plain();
  idle.set_keep_alive(true);
  ASSERT_TRUE(idle.Get("/once"));
  std::atomic<bool> began{false};
  std::thread reader([&] {
    Plain().Get("/watch", [&](const char*, size_t) {
      began = true;
      return true;
    });
  });
  ASSERT_TRUE(Eventually([&] { return began.load(); }));
  const auto before = std::chrono::steady_clock::now();
  server_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  reader.join();
  EXPECT_TRUE(Eventually([&] { return testing::Ended(silent); }));
}

}  // namespace
}  // namespace meshrun::http
