// What ranks' collectives have been doing, as text and as JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::client {

// In the order of ranks. Of each group the last operations and all that have not ended.
std::string DescribeFlightRecords(std::vector<v1::FlightRecord> records);

// One array: {"rank": 0, "now_ms": ..., "groups": [...]} of each rank, {"rank": 1, "error": ...} of
// one that has none. A line.
std::string FlightRecordsJson(std::vector<v1::FlightRecord> records);

}  // namespace meshrun::client
