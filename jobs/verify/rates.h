// How fast this site is. docs/verify.md says what each figure means and which are wrong.
#pragma once

#include "jobs/verify/host_facts.h"
#include "jobs/verify/stage.h"

namespace meshrun::verify {

// The host of each rank, by number, and its first rank, by host.
struct Hosts {
  std::vector<int> of_rank;
  std::vector<int> first_rank;
  // Empty, except on rank 0.
  std::vector<HostFacts> facts;

  int count() const { return static_cast<int>(first_rank.size()); }
};
Hosts find_hosts();

// Copies within memory: of each host, and of each GPU and between it and its host.
void measure_memory(Stage& stage, const Hosts& hosts);
// Messages from each host to the next one, and between two ranks of one host. Returns the slowest
// rate in bytes per second, on all ranks; in a world of one rank a large one.
double measure_links(Stage& stage, const Hosts& hosts);
// Collectives beside those of torch's own NCCL or Gloo, in turns. `link`: bytes per second, which
// decides how much is sent.
void measure_collectives(Stage& stage, const Hosts& hosts, double link);
// Each host's clock against host 0's.
void measure_clocks(Stage& stage, const Hosts& hosts);

}  // namespace meshrun::verify
