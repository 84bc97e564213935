// What `meshrun metrics` shows: the points of a job's progress. Pure.
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "client/render/style.h"
#include "core/clock.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::client {

using CurvePoints = google::protobuf::RepeatedPtrField<v1::ProgressPoint>;

// RFC 4180 with line feeds: a first line with the names (time, step, loss, then the metrics in the
// order of their names), then a line for each point. Numbers have all digits that they need; where
// a point has no value the field is empty; NaN and infinities are nan, inf and -inf.
std::string CurveCsv(const CurvePoints& curve);

// The same as a table for people, with fewer digits.
std::string CurveTable(const CurvePoints& curve, int width);

// Why points are missing, for people: the coordinator has those since it leads. Empty: none are.
std::string MissingPoints(const v1::Job& job, const CurvePoints& curve, WallNanos leads_since);

// Names the metrics that the job reports and its full curve does not have, for people. Empty: none.
std::string MetricsLeftOut(const v1::Job& job, const CurvePoints& curve);

}  // namespace meshrun::client
