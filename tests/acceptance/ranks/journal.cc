#include "tests/acceptance/ranks/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/os/boot_time.h"

namespace meshrun::acceptance {

double Now() { return std::chrono::duration<double>(os::BootTimeNow()).count(); }

Journal::Journal(const std::string& directory, const agent::Assignment& first) {
  const std::string path = directory + "/" + std::to_string(first.generation) + "-" +
                           std::to_string(first.rank) + "-" + std::to_string(::getpid()) + ".jsonl";
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    std::perror(path.c_str());
    std::exit(2);
  }
  Move(first);
}

void Journal::Move(const agent::Assignment& place) {
  {
    std::lock_guard lock(mu_);
    generation_ = place.generation;
    rank_ = place.rank;
  }
  Write("joined", {{"world", place.world_size},
                   {"node", place.node_name},
                   {"master", place.master_addr + ":" + std::to_string(place.master_port)},
                   {"pid", ::getpid()}});
}

void Journal::Write(const std::string& what, nlohmann::json fields) {
  std::lock_guard lock(mu_);
  fields["at"] = Now();
  fields["what"] = what;
  fields["generation"] = generation_;
  fields["rank"] = rank_;
  const std::string line =
      fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (::write(fd_, line.data(), line.size()) < 0) std::perror("journal");
}

}  // namespace meshrun::acceptance
