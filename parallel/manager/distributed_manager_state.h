// What a DistributedManager holds, and the parts of its work: private to this folder.
//
//   distributed_manager.cc           joins the world, and tells this rank's place in it
//   distributed_manager_groups.cc    makes process groups
//   distributed_manager_meshes.cc    the global mesh and the groups along its axes
//   distributed_manager_cleanup.cc   leaves the world
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/process.h"
#include "parallel/comm/ucx_engine.h"
#include "parallel/manager/device_mesh.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/manager/group_table.h"
#include "parallel/manager/mesh_layout.h"
#include "parallel/manager/rendezvous.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

// A group's part of the store. The group's handles may outlive cleanup(), and would keep rank 0's
// server with its port: so the part lets go of the store when the group has ended.
class GroupStore : public c10d::PrefixStore {
 public:
  using PrefixStore::PrefixStore;
  void end() { store_ = c10::make_intrusive<c10d::HashStore>(); }
};

struct DistributedManager::State {
  // The one instance. Never destroyed by the runtime: cleanup() at exit takes it out while LibTorch
  // is still whole.
  static std::unique_ptr<DistributedManager>& instance();

  World world;
  const int forks = fork_count();
  std::string backend;
  c10::Device device{c10::DeviceType::CPU};
  std::atomic<bool> broadcast_buffers{false};
  std::atomic<bool> find_unused_parameters{false};
  std::unique_ptr<GroupTable> groups;
  // Engine of all groups with CPU tensors on ucx; made with the first such group.
  mutable std::once_flag engine_once;
  mutable std::shared_ptr<ucx::Engine> engine;

  mutable std::mutex stores_mutex;
  mutable std::vector<c10::weak_intrusive_ptr<GroupStore>> stores;  // of all groups

  std::mutex unnamed_mutex;
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> unnamed;
  std::vector<std::function<void()>> at_cleanup;
  bool has_met = false;  // all ranks have

  std::mutex mesh_mutex;
  // Set once. Only a default mesh is replaced, by initialize_mesh(); older meshes are kept, since
  // callers hold references.
  std::vector<std::unique_ptr<DeviceMesh>> meshes;
  bool mesh_is_default = false;

  // Whether this process is a child of the one that joined.
  bool is_forked() const { return fork_count() != forks; }

  // Returns when all ranks are there. Gloo's group has waited for them in its constructor.
  void meet(c10d::ProcessGroup& group) const;

  // distributed_manager_groups.cc
  std::shared_ptr<ucx::Engine> shared_engine() const;
  // Empty: all are on one.
  std::vector<int> nodes_of(const std::vector<int>& ranks) const;
  ProcessGroupPtr make_group(const std::string& name, const std::vector<int>& ranks,
                             const c10::intrusive_ptr<c10d::Store>& store,
                             bool together = false) const;
  // The coordinator knows the groups along the axes of the mesh that it gave.
  bool is_implied(const std::string& name, const std::vector<int>& ranks) const;
  // In a call that all ranks make, before it changes anything here: how ranks' calls, in words,
  // differ; empty: they are equal, or the world's backend does not compare. Each rank takes its own
  // groups from the arguments: without this, ranks of different groups would wait for each other.
  std::string difference_of_calls(const std::string& call) const;
  void declare(const std::string& name, Partition partition, bool verbose);
  // Declares the groups of that name and connects this rank's. All ranks call it.
  void create(const std::string& name, Partition partition, bool verbose);
  // Makes groups of MODEL_PARALLEL_SIZE ranks, unless an axis of the mesh has that name.
  void make_model_parallel_group();

  // distributed_manager_meshes.cc
  const DeviceMesh* mesh() const { return meshes.empty() ? nullptr : meshes.back().get(); }
  // Other than the default one.
  bool has_mesh();
  // A default mesh gives way to one that is there, and to a later one.
  const DeviceMesh& set_mesh(const MeshLayout& layout, bool is_default = false);

  // distributed_manager_cleanup.cc
  // Whether rank 0 hosts what the others meet through.
  bool store_is_ours() const;
  bool has_failed_group() const;
  // On rank 0, which hosts the store and, on ucx, hears of deaths: other ranks may still be
  // finding each other for a group that it is not in.
  void wait_for_others_to_leave() const;
  void say_that_it_left() const;
};

}  // namespace meshrun
