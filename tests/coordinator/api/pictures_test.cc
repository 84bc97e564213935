// Pictures of a job's ranks over the HTTP API, with workers that upload what the test says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/server.h"
#include "core/mutex.h"
#include "core/rpc/channel.h"
#include "meshrun/v1/job_service.grpc.pb.h"
#include "tests/coordinator/support/grpc_worker.h"
#include "tests/worker/support/processes.h"

namespace meshrun::coordinator::testing {
namespace {

using meshrun::testing::Eventually;
using meshrun::testing::kPatience;
using meshrun::testing::TemporaryDirectory;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPng[] = "\x89PNG\r\n\x1a\n\0 and so on";
const std::string kBytes(kPng, sizeof(kPng) - 1);

v1::Picture Picture(int rank, const std::string& name, size_t bytes, int64_t at = 1000) {
  v1::Picture out;
  out.set_rank(rank);
  out.set_name(name);
  out.set_bytes(static_cast<uint32_t>(bytes));
  out.mutable_modified_at()->set_seconds(at);
  return out;
}

// A worker's side: answers each OpenPictures by the messages that `answer` makes.
class PictureHolder {
 public:
  using Answer = std::function<std::vector<v1::UploadLogRequest>(const v1::OpenPictures&)>;
  PictureHolder(std::shared_ptr<grpc::Channel> channel, Answer answer)
      : stub_(v1::SessionService::NewStub(channel)), answer_(std::move(answer)) {}
  ~PictureHolder() {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }
  GrpcWorker::Hook hook() {
    return [this](GrpcWorker&, const v1::OpenSessionResponse& message) {
      if (!message.has_open_pictures()) return;
      MutexLock lock(mu_);
      asked_.push_back(message.open_pictures());
      if (answer_ == nullptr) return;
      threads_.emplace_back([this, open = message.open_pictures()] { Upload(open); });
    };
  }
  std::vector<v1::OpenPictures> asked() const {
    MutexLock lock(mu_);
    return asked_;
  }

 private:
  void Upload(const v1::OpenPictures& open) {
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::UploadLogResponse response;
    const auto writer = stub_->UploadLog(&context, &response);
    v1::UploadLogRequest first;
    first.set_stream_id(open.stream_id());
    writer->Write(first);
    for (v1::UploadLogRequest& message : answer_(open)) {
      message.set_stream_id(open.stream_id());
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    writer->Finish();
  }

  const std::unique_ptr<v1::SessionService::Stub> stub_;
  const Answer answer_;
  mutable Mutex mu_;
  std::vector<v1::OpenPictures> asked_ MESHRUN_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ MESHRUN_GUARDED_BY(mu_);
};

// Each rank has a map.png of kBytes.
std::vector<v1::UploadLogRequest> MapOfEach(const v1::OpenPictures& open) {
  std::vector<v1::UploadLogRequest> out;
  if (!open.name().empty() && open.name() != "map.png") {
    out.emplace_back().set_error("rank 0 has no picture " + open.name());
    out.back().set_gone(true);
    return out;
  }
  for (const v1::PictureSource& source : open.sources()) {
    *out.emplace_back().add_pictures() = Picture(source.rank(), "map.png", kBytes.size());
  }
  if (open.name().empty()) return out;
  out.emplace_back().set_data(kBytes.substr(0, 5));
  out.emplace_back().set_data(kBytes.substr(5));
  return out;
}

class PicturesTest : public ::testing::Test {
 protected:
  PicturesTest() {
    Server::Options options;
    options.listen = "unix:" + (directory_ / "c.sock");
    options.http = "auto";
    options.lease = std::chrono::seconds(120);
    auto server = Server::Start(std::move(options));
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *rpc::MakeChannel("test", server_->address(), {});
  }
  ~PicturesTest() override { workers_.clear(); }

  PictureHolder& AddWorker(const std::string& name, PictureHolder::Answer answer) {
    holders_.push_back(std::make_unique<PictureHolder>(channel_, std::move(answer)));
    workers_.push_back(std::make_unique<GrpcWorker>(channel_, FakeWorker::Options{.name = name},
                                                    holders_.back()->hook()));
    EXPECT_TRUE(workers_.back()->Connect());
    return *holders_.back();
  }
  // A job on so many nodes with two ranks each, which runs where there are so many.
  std::string Submit(uint32_t nodes) {
    v1::SubmitJobRequest request;
    request.mutable_spec()->set_name("train");
    request.mutable_spec()->add_command("./train");
    request.mutable_spec()->set_min_nodes(nodes);
    request.mutable_spec()->mutable_procs_per_node()->set_count(2);
    grpc::ClientContext context;
    rpc::SetTimeout(context, kPatience);
    v1::SubmitJobResponse response;
    const grpc::Status status =
        v1::JobService::NewStub(channel_)->SubmitJob(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().job_id();
  }
  std::string Run(uint32_t nodes) {
    const std::string id = Submit(nodes);
    EXPECT_TRUE(
        Eventually([&] { return Json("/jobs/" + id)["job"]["state"] == "JOB_STATE_RUNNING"; }));
    return id;
  }
  httplib::Result Get(const std::string& path, const httplib::Headers& headers = {}) {
    httplib::Client client(directory_ / "c.http");
    client.set_address_family(AF_UNIX);
    client.set_read_timeout(kPatience);
    auto answer = client.Get(("/api/v1" + path).c_str(), headers);
    EXPECT_TRUE(answer) << httplib::to_string(answer.error());
    return answer;
  }
  json Json(const std::string& path, int status = 200) {
    const auto answer = Get(path);
    EXPECT_EQ(answer->status, status) << path << ": " << answer->body;
    return json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<std::unique_ptr<PictureHolder>> holders_;
  std::vector<std::unique_ptr<GrpcWorker>> workers_;
};

TEST_F(PicturesTest, EachHostIsAskedOnceForAllItsRanks) {
  const PictureHolder& first = AddWorker("node1", MapOfEach);
  const PictureHolder& second = AddWorker("node2", MapOfEach);
  const std::string id = Run(2);
  const json answer = Json("/jobs/" + id + "/pictures");
  EXPECT_FALSE(answer.contains("problem")) << answer;
  ASSERT_EQ(answer["pictures"].size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(answer["pictures"][rank], json({{"rank", rank},
                                              {"name", "map.png"},
                                              {"bytes", kBytes.size()},
                                              {"modifiedAt", "1970-01-01T00:16:40Z"}}));
  }
  ASSERT_EQ(first.asked().size(), 1u);
  ASSERT_EQ(second.asked().size(), 1u);
  EXPECT_EQ(first.asked()[0].sources_size(), 2);
  EXPECT_EQ(first.asked()[0].sources(1).process_rank(), 1);
  EXPECT_EQ(first.asked()[0].sources(1).process_generation(), 1u);
  EXPECT_EQ(second.asked()[0].sources(0).rank(), 2);
}

TEST_F(PicturesTest, AHostThatIsSilentHidesItsOwnPicturesAlone) {
  AddWorker("node1", MapOfEach);
  AddWorker("node2", nullptr);
  const json answer = Json("/jobs/" + Run(2) + "/pictures");
  ASSERT_EQ(answer["pictures"].size(), 2u);
  EXPECT_EQ(answer["pictures"][1]["rank"], 1);
  EXPECT_THAT(answer["problem"].get<std::string>(), HasSubstr("the worker that holds the file"));
}

TEST_F(PicturesTest, APictureComesWholeAndIsNothingElse) {
  const PictureHolder& holder = AddWorker("node1", MapOfEach);
  const std::string path = "/jobs/" + Run(1) + "/pictures/1/map.png";
  const auto answer = Get(path + "?at=1970-01-01T00:16:40Z");
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, kBytes);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "image/png");
  EXPECT_EQ(answer->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(answer->get_header_value_count("Content-Security-Policy"), 1u);
  EXPECT_THAT(answer->get_header_value("Content-Security-Policy"), HasSubstr("sandbox"));
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-cache");
  ASSERT_EQ(holder.asked().size(), 1u);
  EXPECT_EQ(holder.asked()[0].name(), "map.png");
  ASSERT_EQ(holder.asked()[0].sources_size(), 1);
  EXPECT_EQ(holder.asked()[0].sources(0).rank(), 1);
  const std::string etag = answer->get_header_value("ETag");
  EXPECT_FALSE(etag.empty());
  const auto again = Get(path, {{"If-None-Match", etag}});
  EXPECT_EQ(again->status, 304);
  EXPECT_EQ(again->body, "");
  EXPECT_EQ(Get(path, {{"If-None-Match", "\"another\""}})->status, 200);
}

TEST_F(PicturesTest, WhatThereIsNotIsSaidInASentence) {
  AddWorker("node1", MapOfEach);
  const std::string id = Run(1);
  EXPECT_EQ(Json("/jobs/" + id + "/pictures/0/none.png", 404)["message"],
            "rank 0 has no picture none.png");
  EXPECT_THAT(Json("/jobs/" + id + "/pictures/2/map.png", 404)["message"].get<std::string>(),
              HasSubstr("has ranks 0 to 1, not 2"));
  EXPECT_EQ(Json("/jobs/" + id + "/pictures/-1/map.png", 400)["code"], "INVALID_ARGUMENT");
  for (const char* name : {"map.svg", ".map.png", "%2e%2e", "map"}) {
    EXPECT_EQ(Json("/jobs/" + id + "/pictures/0/" + name, 400)["code"], "INVALID_ARGUMENT") << name;
  }
  EXPECT_EQ(Json("/jobs/" + id + "/pictures/0/a%2fb.png", 404)["code"], "NOT_FOUND");
  EXPECT_EQ(Json("/jobs/" + id + "/pictures/x/map.png", 400)["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(Json("/jobs/none/pictures", 404)["code"], "NOT_FOUND");
  // It waits for another node.
  const std::string waiting = Submit(2);
  EXPECT_THAT(Json("/jobs/" + waiting + "/pictures")["pictures"], IsEmpty());
  EXPECT_EQ(Json("/jobs/" + waiting + "/pictures/0/map.png", 404)["code"], "NOT_FOUND");
}

TEST_F(PicturesTest, AWorkerThatSaysWhatIsWrongIsNotBelieved) {
  AddWorker("node1", [](const v1::OpenPictures& open) {
    std::vector<v1::UploadLogRequest> out(1);
    for (const char* name : {"good.png", "script.svg", "../good.png", ""}) {
      *out[0].add_pictures() = Picture(0, name, 4);
    }
    if (open.name() == "short.png") {
      out[0].set_data("abc");
    } else if (!open.name().empty()) {
      out[0].set_data("abcde");
    }
    return out;
  });
  const std::string id = Run(1);
  const json listed = Json("/jobs/" + id + "/pictures");
  ASSERT_EQ(listed["pictures"].size(), 1u);
  EXPECT_EQ(listed["pictures"][0]["name"], "good.png");
  EXPECT_THAT(Json("/jobs/" + id + "/pictures/0/short.png", 503)["message"].get<std::string>(),
              HasSubstr("4 bytes, and 3 of them have come"));
  EXPECT_EQ(Json("/jobs/" + id + "/pictures/0/long.png", 503)["code"], "UNAVAILABLE");
}

}  // namespace
}  // namespace meshrun::coordinator::testing
