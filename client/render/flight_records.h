// Flight records of ranks, as text and as JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::client {

// In the order of ranks: for each group the last operations, and all that have not ended.
std::string DescribeFlightRecords(std::vector<v1::FlightRecord> records);

// One array in one line: {"rank": 0, "now_ms": ..., "groups": [...]} for each rank, {"rank": 1,
// "error": ...} for a rank without a record.
std::string FlightRecordsJson(std::vector<v1::FlightRecord> records);

}  // namespace meshrun::client
