#include "tests/etcd/members.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/os/process.h"
#include "tests/core/support/certificates.h"

namespace meshrun::testing {
namespace {

using nlohmann::json;

std::pair<os::UniqueFd, os::UniqueFd> Pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {os::UniqueFd(ends[0]), os::UniqueFd(ends[1])};
}

}  // namespace

EtcdMembers::EtcdMembers(const std::vector<std::string>& flags) {
  tls_ = CertificateAuthority("etcd", directory_.path()).Sign("member");
  auto [commands, commands_end] = Pipe();
  auto [answers, answers_end] = Pipe();
  commands_ = std::move(commands_end);
  os::SpawnOptions spawn;
  spawn.argv = {"/usr/bin/python3",
                std::filesystem::absolute("tests/etcd/members.py"),
                directory_ / "etcd",
                std::to_string(commands.get()),
                std::to_string(answers_end.get()),
                std::to_string(kCount),
                tls_.cert,
                tls_.key,
                tls_.ca};
  spawn.argv.insert(spawn.argv.end(), flags.begin(), flags.end());
  spawn.keep_fds = {commands.get(), answers_end.get()};
  const auto pid = os::Spawn(spawn);
  EXPECT_TRUE(pid.ok()) << pid.status();
  if (!pid.ok()) return;
  pid_ = *pid;
  answers_end.reset();
  answers_.reset(::fdopen(answers.release(), "r"));
  const json first = json::parse(Ask(""), nullptr, /*allow_exceptions=*/false);
  if (first.is_array()) endpoints_ = first.get<std::vector<std::string>>();
}

EtcdMembers::~EtcdMembers() {
  commands_.reset();
  if (pid_ > 0) AwaitExit(pid_);
}

std::string EtcdMembers::Ask(const std::string& command) {
  const std::string line = command.empty() ? "" : command + "\n";
  EXPECT_EQ(::write(commands_.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  char* text = nullptr;
  size_t room = 0;
  const ssize_t size = ::getline(&text, &room, answers_.get());
  const std::unique_ptr<char, void (*)(void*)> owned(text, &std::free);
  const json answer =
      json::parse(size > 0 ? std::string(text) : "", nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(answer.is_object()) << "members.py has ended";
  if (!answer.is_object()) return "";
  EXPECT_FALSE(answer.contains("error")) << command << ": " << answer.dump();
  return answer.contains("endpoints") ? answer["endpoints"].dump()
                                      : answer.value("result", json()).dump();
}

void EtcdMembers::Do(const char* what, int member) { Ask(json::array({what, member}).dump()); }

void EtcdMembers::Tell(const std::vector<std::string>& command) { Ask(json(command).dump()); }

int EtcdMembers::Leader() {
  const json leader = json::parse(Ask(R"(["leader"])"), nullptr, /*allow_exceptions=*/false);
  return leader.is_number() ? leader.get<int>() : 0;
}

std::string EtcdMembers::Ctl(const std::vector<std::string>& words) {
  json command = words;
  command.insert(command.begin(), "ctl");
  const json said = json::parse(Ask(command.dump()), nullptr, /*allow_exceptions=*/false);
  return said.is_string() ? said.get<std::string>() : "";
}

coordinator::etcd::Client::Options EtcdMembers::client() const { return client({0, 1, 2}); }

coordinator::etcd::Client::Options EtcdMembers::client(const std::vector<int>& members) const {
  coordinator::etcd::Client::Options options;
  for (const int member : members) options.endpoints.push_back(endpoints_.at(member));
  options.tls = tls_;
  return options;
}

}  // namespace meshrun::testing
