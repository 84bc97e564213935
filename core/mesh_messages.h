// Between a mesh and its axes in messages.
#pragma once

#include <string>
#include <vector>

#include "core/mesh.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "meshrun/v1/common.pb.h"

namespace meshrun {

inline std::vector<Axis> AxesOf(const google::protobuf::RepeatedPtrField<v1::MeshAxis>& mesh) {
  std::vector<Axis> axes;
  axes.reserve(mesh.size());
  for (const v1::MeshAxis& axis : mesh) axes.push_back({axis.name(), axis.size()});
  return axes;
}

inline void SetAxes(const std::vector<Axis>& axes,
                    google::protobuf::RepeatedPtrField<v1::MeshAxis>* mesh) {
  mesh->Clear();
  for (const Axis& axis : axes) {
    v1::MeshAxis* out = mesh->Add();
    out->set_name(axis.name);
    out->set_size(axis.size);
  }
}

}  // namespace meshrun
