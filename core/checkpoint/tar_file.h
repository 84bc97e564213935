// Members of an uncompressed tar: the older form of PhysicsNeMo's files. Ustar, GNU, and pax.
//
// Errors: see tensor_source.h.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/file_region.h"

namespace meshrun {

// Regular files of the tar by their names, without a leading "./". DATA_LOSS: not a tar, or a
// damaged one. UNIMPLEMENTED: it has more than 65536 members.
absl::StatusOr<std::map<std::string, FileRegion, std::less<>>> ReadTar(const FileRegion& region);

}  // namespace meshrun
