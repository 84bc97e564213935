// What the flight records of a job's ranks say together, in one sentence. Pure.
#pragma once

#include <string>
#include <vector>

#include "meshrun/v1/flight_record.pb.h"

namespace meshrun::coordinator {

// The collective that some ranks wait in, and those that have not called it; or those that have
// called another one in its place. Where there is no such group, what is under way.
std::string FlightSentence(const std::vector<v1::FlightRecord>& records);

}  // namespace meshrun::coordinator
