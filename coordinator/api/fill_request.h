// A request of a gRPC method from a call of the HTTP API. Pure.
//
// A value of the path or of the query is text. The field's type says which:
//
//   number            37; never below 0
//   boolean           true or false; "activeOnly" alone is true
//   enumeration       RUNNING or JOB_STATE_RUNNING, in any case; several in a list, or by commas
//   time              2026-11-23T07:15:00Z
//   list of numbers   0,4-7
//   place in logs     2.0o1048576: log_cursor.h
#pragma once

#include <google/protobuf/message.h>

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/api/routes.h"

namespace meshrun::coordinator {

using Query = std::multimap<std::string, std::string>;

// Fills an empty request of the route's method. INVALID_ARGUMENT names the parameter or the field,
// and says what to write.
absl::Status FillRequest(const Match& match, const Query& query, std::string_view body,
                         google::protobuf::Message* request);

// "RUNNING" of JOB_STATE_RUNNING: without what all values of the enumeration begin with.
std::string ShortName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace meshrun::coordinator
