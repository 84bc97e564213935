// A device mesh together with the process groups of its axes, made once: a collective of a sharded
// tensor looks nothing up.
//
// Immutable and shared; threads: any. Making one connects its groups: all ranks of the mesh make it
// at the same point, in the same order of meshes. DistributedManager's cleanup forgets all meshes;
// those of groups that the program made need no DistributedManager.
// Errors: those of DistributedManager.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "c10/core/Device.h"
#include "c10/util/intrusive_ptr.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/device_mesh.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

class ShardMesh : public c10::intrusive_ptr_target {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Ptr = c10::intrusive_ptr<ShardMesh>;

  // ShardMesh of `mesh`.
  static Ptr of(const DeviceMesh& mesh);
  // ShardMesh of `mesh` over groups that the program has made, for tensors on `device`: `axes` and
  // `whole` as below. From now on of() gives it for equal meshes. One that is known already stays,
  // whatever its groups. Raises c10::ValueError where a group does not have the mesh's order.
  static Ptr over(const DeviceMesh& mesh, std::vector<Group> axes, Group whole, c10::Device device);
  // ShardMesh of the manager's global mesh.
  static Ptr global();

  // `axes`: the group of this rank along each axis, in axis order. `whole`: the group of all ranks
  // of the mesh, in row-major order of their coordinates. `device`: absent: the manager's, or one
  // of a type that the group takes.
  ShardMesh(DeviceMesh mesh, std::vector<Group> axes, Group whole,
            std::optional<c10::Device> device = std::nullopt);

  const DeviceMesh& device_mesh() const { return mesh_; }
  const std::vector<int64_t>& shape() const { return mesh_.shape(); }
  const std::vector<int64_t>& coordinate() const { return mesh_.get_coordinate(); }
  int64_t ndim() const { return mesh_.ndim(); }
  int64_t size() const { return mesh_.size(); }
  const Group& axis_group(IntArgument axis) const { return axes_[static_cast<size_t>(axis)]; }
  const Group& group() const { return whole_; }
  // Where its group communicates from if a call has no tensor.
  c10::Device device() const;

 private:
  const DeviceMesh mesh_;
  const std::vector<Group> axes_;
  const Group whole_;
  const std::optional<c10::Device> device_;
};

}  // namespace meshrun
