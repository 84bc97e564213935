// What a simulated rank does: enters a barrier with all ranks, counts together with them, works and
// reports for a while, enters a last barrier, exits with 0. Its calls go through its daemon to the
// coordinator; one that was not answered is repeated with the same request id.
#pragma once

#include <cstdint>

namespace meshrun::coordinator::simulation {

class Host;
struct World;

// Runs as long as `host` has the process. Both outlive what is planned here.
void BeginRankProgram(World& world, Host& host, uint64_t process);

}  // namespace meshrun::coordinator::simulation
