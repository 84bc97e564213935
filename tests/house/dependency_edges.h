// Which room of the house may use which, read from the sources: #include lines, .proto imports and
// BUILD labels.
//
//   proto <- core <- {coordinator, worker, client, agent}
//   core, agent <- parallel <- {jobs, python}
//   core, agent, parallel <- a top-level folder that is none of these: somebody's own project
//
// Inside parallel/ a folder uses what stands left of it:
//
//   base <- kernels <- comm <- manager <- collectives <- {fft <- shard <- nn <- checkpoint, bagua}
//   elastic uses all of them but bagua
//   comm:            {interface, store} <- {point_to_point, ucx}; comm's own files use all four
//   comm/ucx/engine: values <- {planning, transport, liveness}; planning <- protocol;
//                    execution uses all of them
//
// Only comm/ names a backend: the other folders do not include comm/ucx/. No two folders of the
// tree include each other, directly or in a circle.
//
// Two rules look through headers: no file of parallel/, jobs/ or python/ reaches protobuf or gRPC,
// and nothing below parallel/ reaches LibTorch, nor does parallel/comm/ucx/engine/. Files under
// tests/ and tools/ may use anything.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshrun::house {

// A forbidden edge. `file` is relative to the root, `line` counts from 1.
struct Violation {
  std::string file;
  int line = 0;
  std::string reason;

  friend bool operator==(const Violation&, const Violation&) = default;
};

// All forbidden edges below `root`, ordered by file and line. Hidden directories, symbolic links
// and third_party/ are not read.
std::vector<Violation> FindForbiddenEdges(const std::filesystem::path& root);

}  // namespace meshrun::house
