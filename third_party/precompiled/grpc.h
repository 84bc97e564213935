// What sources without LibTorch reach, compiled once, as libtorch.h beside it.

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>
#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "third_party/precompiled/common.h"
