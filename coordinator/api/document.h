#pragma once

#include <string_view>

namespace meshrun::coordinator {

// The OpenAPI document of the HTTP API: what openapi_main.cc writes.
std::string_view Document();

}  // namespace meshrun::coordinator
