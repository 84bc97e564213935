// The OpenAPI document of the HTTP API, from its table and from the contracts that it stands on.
// Pure.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

namespace meshrun::coordinator {

// `contracts`: the files of proto/meshrun/v1, with their comments, which become descriptions.
std::string OpenApiDocument(const google::protobuf::DescriptorPool& contracts);

}  // namespace meshrun::coordinator
