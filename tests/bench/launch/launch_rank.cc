// The shortest distributed program: joins the world, waits for everyone, leaves. With --print, each
// rank says who it is first, as one line. launch_rank.py beside it is the same in Python.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/manager/distributed_manager.h"

int main(int argc, char** argv) {
  try {
    meshrun::DistributedManager::initialize();
    auto& manager = meshrun::DistributedManager::get();
    if (argc > 1 && std::strcmp(argv[1], "--print") == 0) {
      std::printf("rank %d of %d, local rank %d of %d, node %d\n", manager.rank(),
                  manager.world_size(), manager.local_rank(), manager.local_world_size(),
                  manager.node_rank());
    }
    manager.world()->barrier()->wait();
    meshrun::DistributedManager::cleanup();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch_rank: %s\n", error.what());
    return 1;
  }
  // As meshrun's jobs end: the destructors of LibTorch's operator registry take 0.13 s.
  std::fflush(nullptr);
  std::quick_exit(0);
}
