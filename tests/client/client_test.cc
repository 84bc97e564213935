#include "client/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <latch>
#include <set>
#include <thread>

#include "core/certificates/certificate.h"
#include "core/mutex.h"
#include "core/os/fd.h"
#include "core/rpc/security.h"
#include "core/rpc/status_conversion.h"
#include "meshrun/v1/cluster_service.grpc.pb.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/core/support/certificates.h"

namespace meshrun::client {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::WatchJobResponse At(v1::JobState state, uint64_t revision) {
  v1::WatchJobResponse response;
  response.mutable_job()->set_job_id("j-1");
  response.mutable_job()->set_state(state);
  response.mutable_job()->set_revision(revision);
  return response;
}

// The coordinator's own words.
grpc::Status Answer(const absl::Status& status) {
  return rpc::ToGrpc(status, v1::ERROR_ORIGIN_COORDINATOR);
}
const grpc::Status kGone = Answer(absl::UnavailableError("restarting"));

// Answers as its functions say; remembers the requests.
class FakeServer : public v1::JobService::Service, public v1::ClusterService::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    request_ids.push_back(request->request_id());
    if (request_ids.size() <= failing_submits) return kGone;
    *response->mutable_job()->mutable_spec() = request->spec();
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    const int first = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    for (int i = first; i < first + 2 && i < 5; ++i)
      response->add_jobs()->set_job_id(std::to_string(i));
    if (first + 2 < 5) response->set_next_page_token(std::to_string(first + 2));
    return grpc::Status::OK;
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse*) override {
    if (++cancels <= read_only_cancels) return Answer(absl::UnavailableError("read-only"));
    return Answer(absl::NotFoundError("no job " + request->job_id()));
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    return watch(context, writer, watches++);
  }
  grpc::Status ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest* request,
                        grpc::ServerWriter<v1::ReadLogsResponse>* writer) override {
    log_requests.push_back(*request);
    return logs(writer, static_cast<int>(log_requests.size()) - 1);
  }
  grpc::Status DescribeCluster(grpc::ServerContext*, const v1::DescribeClusterRequest*,
                               v1::DescribeClusterResponse* response) override {
    ++describes;
    response->set_version("9");
    return grpc::Status::OK;
  }

  std::function<grpc::Status(grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*, int)>
      watch;
  std::function<grpc::Status(grpc::ServerWriter<v1::ReadLogsResponse>*, int)> logs;
  size_t failing_submits = 0;
  int cancels = 0;
  int read_only_cancels = 0;
  std::atomic<int> describes = 0;
  std::vector<std::string> request_ids;
  std::vector<v1::ReadLogsRequest> log_requests;
  std::atomic<int> watches = 0;
};

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    // Not in TempDir(), which may be longer than a socket's path.
    char directory[] = "/tmp/meshrun-client-test-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    address_ = "unix:" + directory_ + "/c.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::JobService::Service*>(&fake_));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(&fake_));
    server_ = builder.BuildAndStart();
    Options options;
    options.address = address_;
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  ~ClientTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(directory_);
  }

  static void Send(grpc::ServerWriter<v1::ReadLogsResponse>* writer, int rank, uint64_t offset,
                   const std::string& data) {
    v1::ReadLogsResponse chunk;
    chunk.set_rank(rank);
    chunk.set_stream(v1::LOG_STREAM_STDOUT);
    chunk.set_offset(offset);
    chunk.set_data(data);
    chunk.set_generation(2);
    writer->Write(chunk);
  }
  absl::Status Read(const LogQuery& query) {
    return client_->ReadLogs(
        query, [&](const v1::ReadLogsResponse& chunk) { text_[chunk.rank()] += chunk.data(); });
  }

  std::string directory_;
  std::string address_;
  FakeServer fake_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
  std::map<int, std::string> text_;
};

TEST_F(ClientTest, SubmitRepeatsABrokenCallWithTheSameRequestId) {
  fake_.failing_submits = 2;
  v1::JobSpec spec;
  spec.set_name("x");
  const auto job = client_->Submit(spec);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec().name(), "x");
  ASSERT_EQ(fake_.request_ids.size(), 3u);
  EXPECT_EQ(fake_.request_ids[0], fake_.request_ids[2]);
  ASSERT_TRUE(client_->Submit(spec).ok());
  EXPECT_NE(fake_.request_ids[0], fake_.request_ids[3]);
}

TEST_F(ClientTest, ASubmitWithoutAnAnswerSaysHowToRepeatIt) {
  Options options;
  options.address = address_;
  options.timeout = milliseconds(500);
  options.check = false;
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  fake_.failing_submits = 1000;
  const auto job = (*client)->Submit(v1::JobSpec(), /*must_fit=*/false, "mine");
  EXPECT_THAT(std::string(job.status().message()),
              HasSubstr("may have been accepted: submit it again with --request-id mine"));
  fake_.failing_submits = 0;
  EXPECT_TRUE(client_->Submit(v1::JobSpec(), /*must_fit=*/false, "mine").ok());
  EXPECT_EQ(fake_.request_ids.back(), "mine");
}

TEST_F(ClientTest, ListFollowsPagesUpToTheLimit) {
  EXPECT_EQ(client_->List()->size(), 5u);
  EXPECT_EQ(client_->List(false, 3)->at(2).job_id(), "2");
}

TEST_F(ClientTest, ErrorsKeepTheCoordinatorsCodeAndWords) {
  const auto job = client_->Cancel("y", false, "");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(job.status().message()), "no job y");
}

// It leads, and no other address can do better: each attempt waits longer than the one before.
TEST_F(ClientTest, ALeaderThatIsReadOnlyIsNotAskedWithoutAPause) {
  fake_.read_only_cancels = 1 << 30;
  Options options;
  options.address = address_ + ",unix:" + directory_ + "/other.sock";
  options.timeout = milliseconds(500);
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(absl::IsUnavailable((*client)->Cancel("y", false, "").status()));
  // 20 ms and twice as much each time, half of it at least, within a second.
  EXPECT_GE(fake_.cancels, 2);
  EXPECT_LE(fake_.cancels, 8);
}

// The detail decides, never the words: both sides of each case would be misread by them.
TEST_F(ClientTest, WhoSaysUnavailableIsToldByTheDetail) {
  StreamOptions once;
  once.patience = milliseconds(0);
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*, int call) {
    const absl::Status status =
        absl::UnavailableError(call == 0 ? "failed to connect to all addresses" : "read-only");
    return call == 0 ? Answer(status)
                     : grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(status.message()));
  };
  const auto ignore = [](const v1::Job&) {};
  EXPECT_EQ(client_->Watch("j-1", ignore, once).message(), "failed to connect to all addresses");
  EXPECT_THAT(std::string(client_->Watch("j-1", ignore, once).message()),
              HasSubstr("no coordinator is running at unix:"));
}

TEST(StatusConversionTest, AnAnswerKeepsItsOriginWhenItIsPassedOn) {
  const absl::Status said =
      rpc::FromGrpc(rpc::ToGrpc(absl::NotFoundError("no job"), v1::ERROR_ORIGIN_COORDINATOR));
  EXPECT_EQ(said.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(said.message(), "no job");
  EXPECT_EQ(rpc::OriginOf(said), v1::ERROR_ORIGIN_COORDINATOR);
  EXPECT_EQ(rpc::OriginOf(rpc::ToGrpc(said, v1::ERROR_ORIGIN_WORKER)),
            v1::ERROR_ORIGIN_COORDINATOR);
  EXPECT_EQ(rpc::OriginOf(grpc::Status(grpc::StatusCode::UNAVAILABLE, "x", "no message")),
            v1::ERROR_ORIGIN_UNSPECIFIED);
  EXPECT_TRUE(rpc::ToGrpc(absl::OkStatus(), v1::ERROR_ORIGIN_WORKER).ok());
}

TEST_F(ClientTest, WatchResumesAndTellsEachRevisionOnce) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer,
                   int call) {
    if (call == 0) {
      writer->Write(At(v1::JOB_STATE_QUEUED, 1));
      writer->Write(At(v1::JOB_STATE_RUNNING, 2));
      return kGone;
    }
    // Ends without the job's end: no end of the watch either.
    if (call == 1) return grpc::Status::OK;
    writer->Write(At(v1::JOB_STATE_RUNNING, 2));
    writer->Write(At(v1::JOB_STATE_SUCCEEDED, 3));
    return grpc::Status::OK;
  };
  std::vector<uint64_t> revisions;
  int interruptions = 0;
  StreamOptions options;
  options.on_interruption = [&](const absl::Status&) { ++interruptions; };
  ASSERT_TRUE(
      client_
          ->Watch(
              "j-1", [&](const v1::Job& job) { revisions.push_back(job.revision()); }, options)
          .ok());
  EXPECT_THAT(revisions, ElementsAre(1, 2, 3));
  EXPECT_EQ(interruptions, 1);
  EXPECT_EQ(fake_.watches, 3);
}

TEST_F(ClientTest, WatchFoldsDeltasIntoTheJob) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer, int) {
    v1::WatchJobResponse whole = At(v1::JOB_STATE_RUNNING, 1);
    whole.mutable_job()->mutable_spec()->set_name("geoid");
    for (int rank = 0; rank < 2; ++rank) {
      whole.mutable_job()->add_ranks()->mutable_assignment()->set_rank(rank);
    }
    writer->Write(whole);
    v1::WatchJobResponse change;
    v1::JobDelta& delta = *change.mutable_delta();
    *delta.mutable_head() = At(v1::JOB_STATE_SUCCEEDED, 2).job();
    delta.add_ranks()->mutable_assignment()->set_rank(1);
    delta.mutable_ranks(0)->set_state(v1::RANK_STATE_EXITED);
    writer->Write(change);
    return grpc::Status::OK;
  };
  v1::Job last;
  ASSERT_TRUE(client_->Watch("j-1", [&](const v1::Job& job) { last = job; }).ok());
  EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(last.spec().name(), "geoid");
  ASSERT_EQ(last.ranks_size(), 2);
  EXPECT_EQ(last.ranks(0).state(), v1::RANK_STATE_UNSPECIFIED);
  EXPECT_EQ(last.ranks(1).state(), v1::RANK_STATE_EXITED);
}

// A read-only coordinator says how the job is and turns the watcher away, each time anew.
TEST_F(ClientTest, AnAnswerWithoutNewsEndsNoInterruption) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer,
                   int call) {
    writer->Write(At(v1::JOB_STATE_RUNNING, 7));
    return call < 50 ? kGone : Answer(absl::NotFoundError("patience has no end"));
  };
  int interruptions = 0;
  int changes = 0;
  StreamOptions options;
  options.patience = milliseconds(30);
  options.on_interruption = [&](const absl::Status&) { ++interruptions; };
  const absl::Status status = client_->Watch(
      "j-1", [&](const v1::Job&) { ++changes; }, options);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(interruptions, 1);
  EXPECT_EQ(changes, 1);
}

TEST_F(ClientTest, LogsWithoutNewBytesEndNoInterruption) {
  fake_.logs = [](grpc::ServerWriter<v1::ReadLogsResponse>* writer, int call) {
    Send(writer, 0, 0, "hello");
    return call < 50 ? kGone : Answer(absl::NotFoundError("patience has no end"));
  };
  LogQuery query;
  query.job_id = "j-1";
  StreamOptions options;
  options.patience = milliseconds(30);
  EXPECT_TRUE(absl::IsUnavailable(client_->ReadLogs(
      query, [](const v1::ReadLogsResponse&) {}, options)));
}

// Revisions that were not durable are given again after a restart.
TEST_F(ClientTest, WatchTellsTheEndAlsoAtARevisionSeenBefore) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer,
                   int call) {
    writer->Write(At(call == 0 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_SUCCEEDED, 7));
    return call == 0 ? kGone : grpc::Status::OK;
  };
  std::vector<v1::JobState> states;
  ASSERT_TRUE(
      client_->Watch("j-1", [&](const v1::Job& job) { states.push_back(job.state()); }).ok());
  EXPECT_THAT(states, ElementsAre(v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED));
}

TEST_F(ClientTest, WatchEndsWhenItsJobIsUnknown) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*, int) {
    return Answer(absl::NotFoundError("no such job"));
  };
  EXPECT_TRUE(absl::IsNotFound(client_->Watch("j-1", [](const v1::Job&) {})));
  EXPECT_EQ(fake_.watches, 1);
}

TEST_F(ClientTest, WatchStopsWhenTold) {
  std::promise<void> watching;
  fake_.watch = [&](grpc::ServerContext* context, grpc::ServerWriter<v1::WatchJobResponse>* writer,
                    int) {
    writer->Write(At(v1::JOB_STATE_RUNNING, 1));
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  std::stop_source stop;
  std::thread stopper([&] {
    watching.get_future().wait();
    stop.request_stop();
  });
  StreamOptions options;
  options.stop = stop.get_token();
  EXPECT_TRUE(absl::IsCancelled(client_->Watch(
      "j-1", [&](const v1::Job&) { watching.set_value(); }, options)));
  stopper.join();
}

TEST_F(ClientTest, PatienceEnds) {
  fake_.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*, int) {
    return kGone;
  };
  StreamOptions options;
  options.patience = milliseconds(0);
  EXPECT_TRUE(absl::IsUnavailable(client_->Watch(
      "j-1", [](const v1::Job&) {}, options)));
  EXPECT_EQ(fake_.watches, 1);
}

TEST_F(ClientTest, LogsResumeAtTheirOffsetsAndNoByteComesTwice) {
  fake_.logs = [](grpc::ServerWriter<v1::ReadLogsResponse>* writer, int call) {
    if (call == 0) {
      Send(writer, 0, 0, "hello ");
      Send(writer, 1, 0, "one");
      return kGone;
    }
    // A server may give more than was asked for.
    Send(writer, 0, 3, "lo world");
    Send(writer, 1, 0, "one");
    return grpc::Status::OK;
  };
  LogQuery query;
  query.job_id = "j-1";
  query.tail_lines = 10;
  ASSERT_TRUE(Read(query).ok());
  EXPECT_EQ(text_[0], "hello world");
  EXPECT_EQ(text_[1], "one");
  ASSERT_EQ(fake_.log_requests.size(), 2u);
  const v1::ReadLogsRequest& again = fake_.log_requests[1];
  EXPECT_EQ(again.generation(), 2u);
  EXPECT_FALSE(again.has_tail_lines());
  ASSERT_EQ(again.positions_size(), 2);
  EXPECT_EQ(again.positions(0).offset(), 6u);
  EXPECT_EQ(again.positions(1).offset(), 3u);
}

// Against a server that asks for certificates, and refuses those with some names.
class RenewedCertificateTest : public ClientTest {
 protected:
  RenewedCertificateTest() {
    Use("ada");
    const auto standing = [this](std::string_view pem, std::string_view) {
      const auto shown = certificates::ReadCertificate(pem);
      MutexLock lock(mu_);
      if (!shown.ok() || !denied_.contains(shown->common_name)) return absl::OkStatus();
      ++refused_;
      return absl::UnauthenticatedError(shown->common_name + " is on the deny list");
    };
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0",
                             *rpc::ServerCredentials("test", "127.0.0.1:0",
                                                     {.tls = authority_.Sign("server")}, standing),
                             &port);
    builder.RegisterService(static_cast<v1::JobService::Service*>(&fake_));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(&fake_));
    secure_server_ = builder.BuildAndStart();
    Options options;
    options.address = "127.0.0.1:" + std::to_string(port);
    options.security.tls = {.cert = directory_ + "/client.crt",
                            .key = directory_ + "/client.key",
                            .ca = authority_.ca_file()};
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    if (client.ok()) client_ = *std::move(client);
  }
  ~RenewedCertificateTest() override { secure_server_->Shutdown(std::chrono::system_clock::now()); }

  // What lies in the client's files from now on.
  void Use(const std::string& name, std::chrono::seconds lasts = std::chrono::hours(1)) {
    const rpc::TlsFiles files = authority_.Sign(name, {.lasts = lasts});
    constexpr auto kReplace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(files.cert, directory_ + "/client.crt", kReplace);
    std::filesystem::copy_file(files.key, directory_ + "/client.key", kReplace);
  }
  void Deny(const std::string& name) {
    MutexLock lock(mu_);
    denied_.insert(name);
  }
  // Calls that were refused before the service saw them.
  int refused() {
    MutexLock lock(mu_);
    return refused_;
  }
  // How an open stream ends.
  static grpc::Status Denied() {
    return Answer(absl::UnauthenticatedError("ada is on the deny list"));
  }

  const meshrun::testing::CertificateAuthority authority_{"ours", directory_};
  Mutex mu_;
  std::set<std::string> denied_ MESHRUN_GUARDED_BY(mu_);
  int refused_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::unique_ptr<grpc::Server> secure_server_;
};

TEST_F(RenewedCertificateTest, StreamsThatAreRefusedTogetherGoOnOverOneNewConnection) {
  std::latch both(2);
  fake_.watch = [&](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer,
                    int attempt) {
    writer->Write(At(attempt == 0 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_SUCCEEDED, attempt + 1));
    if (attempt > 0) return grpc::Status::OK;
    Use("ada-2");
    Deny("ada");
    both.arrive_and_wait();
    return Denied();
  };
  fake_.logs = [&](grpc::ServerWriter<v1::ReadLogsResponse>* writer, int attempt) {
    Send(writer, 0, attempt == 0 ? 0 : 4, attempt == 0 ? "one " : "two");
    if (attempt > 0) return grpc::Status::OK;
    both.arrive_and_wait();
    return Denied();
  };
  auto logs = std::async(std::launch::async, [&] { return Read({.job_id = "j-1"}); });
  std::vector<v1::JobState> seen;
  const absl::Status watched =
      client_->Watch("j-1", [&](const v1::Job& job) { seen.push_back(job.state()); });
  EXPECT_TRUE(watched.ok()) << watched;
  EXPECT_THAT(seen, ElementsAre(v1::JOB_STATE_RUNNING, v1::JOB_STATE_SUCCEEDED));
  const absl::Status read = logs.get();
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_EQ(text_[0], "one two");
  EXPECT_EQ(refused(), 0) << "nothing was asked over the old connection again";
  EXPECT_TRUE(client_->List().ok());
}

TEST_F(RenewedCertificateTest, ACallThatIsRefusedIsMadeOnceMoreOverANewConnection) {
  Use("ada-2");
  Deny("ada");
  const auto jobs = client_->List();
  EXPECT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ(refused(), 1);
}

TEST_F(RenewedCertificateTest, ANewCertificateThatIsRefusedTooEndsIt) {
  fake_.watch = [&](auto*, auto*, int) {
    Use("ada-2");
    Deny("ada");
    Deny("ada-2");
    return Denied();
  };
  const absl::Status watched = client_->Watch("j-1", [](const v1::Job&) {});
  EXPECT_EQ(watched.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(watched.message(), "ada-2 is on the deny list");
  EXPECT_EQ(refused(), 1);
  EXPECT_EQ(fake_.watches, 1);
}

// TLS refuses it: nothing but the first answer says why.
TEST_F(RenewedCertificateTest, ACertificateThatHasEndedIsTheReasonOfTheInterruption) {
  fake_.watch = [&](auto*, auto*, int) {
    Use("ada", std::chrono::minutes(-5));
    return Answer(absl::UnauthenticatedError("the certificate of 'ada' has ended"));
  };
  StreamOptions options;
  options.patience = milliseconds(200);
  std::vector<std::string> interruptions;
  options.on_interruption = [&](const absl::Status& status) {
    interruptions.emplace_back(status.message());
  };
  const absl::Status watched = client_->Watch(
      "j-1", [](const v1::Job&) {}, options);
  EXPECT_EQ(watched.code(), absl::StatusCode::kUnauthenticated) << watched;
  EXPECT_THAT(interruptions, ElementsAre("the certificate of 'ada' has ended"));
}

TEST(ClientAddressTest, AddressesAreCompletedOrRefused) {
  EXPECT_EQ(*NormalizeAddress("host"), "host:7480");
  EXPECT_EQ(*NormalizeAddress("host:1"), "host:1");
  EXPECT_EQ(*NormalizeAddress("[::1]"), "[::1]:7480");
  EXPECT_EQ(*NormalizeAddress("unix:/x"), "unix:/x");
  for (const char* wrong :
       {"", "http://host:1", "host:", "host:port", "host:99999", "host:0", "host:00", "host:-1",
        "host:+1", "host:65537", "host:4294967297", ":7480", "a b:1"}) {
    EXPECT_EQ(NormalizeAddress(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(ClientAddressTest, SeveralAreSeparatedByCommas) {
  EXPECT_EQ(*NormalizeAddresses("a,b:1"), "a:7480,b:1");
  EXPECT_THAT(std::string(NormalizeAddresses("a:7480;b:7480").status().message()),
              HasSubstr("write several with commas"));
}

TEST(ClientConnectTest, NobodyThereIsOneSentenceWithTheAddressAndWhatToTry) {
  Options options;
  options.address = "127.0.0.1:1";
  options.security.insecure_loopback = true;
  const auto client = Client::Connect(options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  const std::string text(client.status().message());
  EXPECT_THAT(text, HasSubstr("127.0.0.1:1 (connection refused)"));
  // `meshrun dev up` would start one elsewhere.
  EXPECT_THAT(text, HasSubstr("start meshrun-coordinator there, or name another"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("dev up")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\n")));
}

TEST_F(ClientTest, NobodyAtAUnixSocketIsTheSameSentenceAtOnce) {
  for (const std::string& path :
       {directory_ + "/absent/c.sock", directory_ + "/absent.sock", directory_ + "/dead.sock"}) {
    if (path.ends_with("/dead.sock")) {
      // As a process leaves it that was killed.
      const os::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
      sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
      path.copy(address.sun_path, path.size());
      ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    }
    Options options;
    options.address = "unix:" + path;
    const auto client = Client::Connect(options);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable) << client.status();
    EXPECT_THAT(std::string(client.status().message()),
                ::testing::AllOf(HasSubstr("no coordinator is running at unix:" + path),
                                 HasSubstr("meshrun dev up")));
  }
}

TEST_F(ClientTest, NothingIsSentToASocketThatAnotherUserCouldHaveMade) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0711), 0);
  const int before = fake_.describes;
  Options options;
  options.address = address_;
  const auto client = Client::Connect(options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("chmod 700 " + directory_));
  EXPECT_EQ(fake_.describes, before);
}

TEST(ClientConnectTest, PlaintextOverTcpIsRefused) {
  for (const char* address : {"192.0.2.1:7480", "127.0.0.1:7480", "localhost"}) {
    Options options;
    options.address = address;
    EXPECT_EQ(Client::Connect(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace meshrun::client
