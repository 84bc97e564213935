// Calls every method that a role may call, as fast and as large as the contracts allow, for a
// while: what one holder of a certificate can do to the others. Prints how its calls ended, by
// code.
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/time_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <cstdlib>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "core/rpc/bounds.h"
#include "core/rpc/channel.h"
#include "core/rpc/roles.h"
#include "core/rpc/security_flags.h"
#include "meshrun/v1/cluster_service.pb.h"
#include "meshrun/v1/job_service.pb.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/store_service.pb.h"

namespace meshrun {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Requests of each method: made once, and sent again and again.
constexpr int kVariants = 12;
constexpr int kCallsAtOnce = 24;
constexpr int kStreamsAtOnce = 600;
constexpr int64_t kMostBytes = 3 << 20;

struct Flags {
  std::string address;
  std::string role;
  std::string node;
  std::vector<std::string> jobs;
  std::set<std::string> skipped;
  double seconds = 10;
  rpc::Security security;
};

// Fills messages up to the bounds of their fields.
class Filler {
 public:
  Filler(const Flags& flags, uint64_t seed) : flags_(flags), random_(seed) {}

  void Fill(Message* message, int depth = 0) {
    const auto* const type = message->GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* const field = type->field(i);
      if (depth > 4 || Chance(0.35)) continue;
      if (!field->is_repeated()) {
        Set(message, field, depth);
        continue;
      }
      const auto most = static_cast<int64_t>(rpc::BoundsOf(*field).max_items);
      const int64_t count = std::array<int64_t, 4>{0, 1, 7, most}[Below(4)];
      for (int64_t n = 0; n < count && left_ > 0; ++n) Set(message, field, depth);
    }
  }

 private:
  bool Chance(double likely) { return std::uniform_real_distribution<>()(random_) < likely; }
  uint64_t Below(uint64_t end) { return random_() % end; }

  std::string Text(const FieldDescriptor* field) {
    if (field->name() == "job_id" && !flags_.jobs.empty() && Chance(0.8)) {
      return flags_.jobs[Below(flags_.jobs.size())];
    }
    if ((field->name() == "node" || field->name() == "name") && Chance(0.8)) return flags_.node;
    const auto most = static_cast<int64_t>(rpc::BoundsOf(*field).max_bytes);
    const int64_t size = std::min(left_, std::array<int64_t, 3>{0, 9, most}[Below(3)]);
    left_ -= size;
    return std::string(static_cast<size_t>(std::max<int64_t>(size, 0)), 'x');
  }

  // Or adds to a repeated one.
  void Set(Message* message, const FieldDescriptor* field, int depth) {
    const auto& in = *message->GetReflection();
    const bool adds = field->is_repeated();
    left_ -= 8;
    const uint64_t number = Chance(0.5) ? Below(8) : random_();
    const auto set = [&](auto setter, auto adder, auto value) {
      if (adds) {
        (in.*adder)(message, field, value);
      } else {
        (in.*setter)(message, field, value);
      }
    };
    using In = google::protobuf::Reflection;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return set(&In::SetInt32, &In::AddInt32, static_cast<int32_t>(number));
      case FieldDescriptor::CPPTYPE_INT64:
        return set(&In::SetInt64, &In::AddInt64, static_cast<int64_t>(number));
      case FieldDescriptor::CPPTYPE_UINT32:
        return set(&In::SetUInt32, &In::AddUInt32, static_cast<uint32_t>(number));
      case FieldDescriptor::CPPTYPE_UINT64:
        return set(&In::SetUInt64, &In::AddUInt64, number);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return set(&In::SetDouble, &In::AddDouble, static_cast<double>(number));
      case FieldDescriptor::CPPTYPE_FLOAT:
        return set(&In::SetFloat, &In::AddFloat, static_cast<float>(number));
      case FieldDescriptor::CPPTYPE_BOOL:
        return set(&In::SetBool, &In::AddBool, number % 2 == 0);
      case FieldDescriptor::CPPTYPE_ENUM:
        return set(&In::SetEnumValue, &In::AddEnumValue, static_cast<int>(number % 12));
      case FieldDescriptor::CPPTYPE_STRING: {
        std::string text = Text(field);
        if (adds) {
          in.AddString(message, field, std::move(text));
        } else {
          in.SetString(message, field, std::move(text));
        }
        return;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Fill(adds ? in.AddMessage(message, field) : in.MutableMessage(message, field), depth + 1);
    }
  }

  const Flags& flags_;
  std::mt19937_64 random_;
  // Bytes that this message may still have, about.
  int64_t left_ = kMostBytes;
};

grpc::ByteBuffer BufferOf(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Jobs that wait for ever, with as many arguments as may be.
v1::SubmitJobRequest LargeJob() {
  v1::SubmitJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_name("large");
  spec.add_command("true");
  for (int i = 0; i < 900; ++i) spec.add_command(std::string(1024, 'a'));
  spec.set_min_nodes(1);
  spec.mutable_procs_per_node()->set_count(1);
  spec.set_hold(true);
  return request;
}

std::vector<grpc::ByteBuffer> RequestsOf(const MethodDescriptor* method, const Flags& flags) {
  std::vector<grpc::ByteBuffer> requests;
  const Message* const prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method->input_type());
  for (int i = 0; i < kVariants; ++i) {
    const std::unique_ptr<Message> request(prototype->New());
    if (i > 0) Filler(flags, std::hash<std::string>()(method->name()) + i).Fill(request.get());
    requests.push_back(BufferOf(*request));
  }
  if (method->name() == "SubmitJob") requests.push_back(BufferOf(LargeJob()));
  return requests;
}

struct Attack {
  std::string path;
  bool streams_in = false;
  bool streams_out = false;
  std::vector<grpc::ByteBuffer> requests;
};

struct Totals {
  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, 17> by_code{};
  Mutex mu;
  CondVar ended;
  int open MESHRUN_GUARDED_BY(mu) = 0;
};

// One call after the other, until the time is over.
class Caller : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Caller(grpc::GenericStub& stub, const Attack& attack, Totals& totals, int number)
      : stub_(stub), attack_(attack), totals_(totals), number_(number) {
    MutexLock lock(totals_.mu);
    ++totals_.open;
  }

  void Begin() {
    rpc::SetTimeout(context_, std::chrono::seconds(attack_.streams_out ? 60 : 5));
    stub_.PrepareBidiStreamingCall(&context_, attack_.path, {}, this);
    Write();
    // Half of the streams are read by nobody.
    if (!attack_.streams_out || number_ % 2 == 0) StartRead(&response_);
    StartCall();
  }
  void Stop() { context_.TryCancel(); }

  void OnWriteDone(bool ok) override {
    if (ok && attack_.streams_in && !totals_.stop) Write();
  }
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    ++totals_.by_code[static_cast<size_t>(status.error_code())];
    if (!totals_.stop) {
      auto* const next = new Caller(stub_, attack_, totals_, number_ + kCallsAtOnce);
      next->Begin();
    }
    MutexLock lock(totals_.mu);
    --totals_.open;
    totals_.ended.NotifyAll();
    delete this;
  }

 private:
  void Write() {
    request_ = attack_.requests[(number_ + written_++) % attack_.requests.size()];
    grpc::WriteOptions options;
    if (!attack_.streams_in) options.set_last_message();
    StartWrite(&request_, options);
  }

  grpc::GenericStub& stub_;
  const Attack& attack_;
  Totals& totals_;
  const int number_;
  size_t written_ = 0;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

std::vector<Attack> AttacksOf(const Flags& flags, rpc::Roles role) {
  // The services are linked.
  v1::ListJobsRequest::descriptor();
  v1::ListNodesRequest::descriptor();
  v1::OpenSessionRequest::descriptor();
  v1::SetValuesRequest::descriptor();
  std::vector<Attack> attacks;
  for (const rpc::MethodRule& rule : rpc::MethodRules()) {
    std::string name(rule.method.substr(1));
    std::replace(name.begin(), name.end(), '/', '.');
    const auto* const pool = google::protobuf::DescriptorPool::generated_pool();
    const MethodDescriptor* const method = pool->FindMethodByName(name);
    if (method == nullptr || (rule.roles & role) == 0 || flags.skipped.contains(method->name())) {
      continue;
    }
    attacks.push_back({.path = std::string(rule.method),
                       .streams_in = method->client_streaming(),
                       .streams_out = method->server_streaming(),
                       .requests = RequestsOf(method, flags)});
  }
  return attacks;
}

int Run(const Flags& flags) {
  const auto role = rpc::ParseRole(flags.role);
  if (!role.ok()) {
    fmt::print(stderr, "hostile_caller: {}\n", std::string(role.status().message()));
    return 2;
  }
  const std::vector<Attack> attacks = AttacksOf(flags, *role);
  Totals totals;
  // A connection for each method.
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  for (const Attack& attack : attacks) {
    const auto channel = rpc::MakeChannel("hostile", flags.address, flags.security);
    if (!channel.ok()) {
      fmt::print(stderr, "hostile_caller: {}\n", std::string(channel.status().message()));
      return 2;
    }
    stubs.push_back(std::make_unique<grpc::GenericStub>(*channel));
    const bool holds = attack.streams_out && !attack.streams_in;
    for (int n = 0; n < (holds ? kStreamsAtOnce : kCallsAtOnce); ++n) {
      (new Caller(*stubs.back(), attack, totals, n))->Begin();
    }
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(flags.seconds));
  totals.stop = true;
  std::string text = fmt::format("{} methods;", attacks.size());
  for (size_t code = 0; code < totals.by_code.size(); ++code) {
    if (totals.by_code[code] > 0) text += fmt::format(" {}: {}", code, totals.by_code[code].load());
  }
  fmt::print("{}\n", text);
  std::fflush(stdout);
  // Without a word, as such callers end.
  std::_Exit(0);
}

}  // namespace
}  // namespace meshrun

int main(int argc, char** argv) {
  // Broken connections are what it is for.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  meshrun::Flags flags;
  CLI::App app("Calls every method that a role may call, as much as the contracts allow.");
  app.add_option("--coordinator", flags.address)->required();
  app.add_option("--role", flags.role)->required();
  app.add_option("--node", flags.node, "A name to put where a node is asked for");
  app.add_option("--job", flags.jobs, "Ids to put where a job is asked for");
  app.add_option("--skip", flags.skipped, "Methods to leave alone");
  app.add_option("--seconds", flags.seconds);
  meshrun::rpc::AddSecurityFlags(app, &flags.security);
  CLI11_PARSE(app, argc, argv);
  return meshrun::Run(flags);
}
