// What `meshrun checkpoint` has found, for people and for scripts. Pure.
#pragma once

#include <string>
#include <vector>

#include "client/checkpoint/comparison.h"
#include "client/checkpoint/conversion.h"
#include "client/checkpoint/listing.h"
#include "client/checkpoint/verification.h"

namespace meshrun::client {

// `width`: columns of the terminal, 0 for any.
std::string CheckpointTable(const std::vector<CheckpointEntry>& checkpoints, int width);
std::string CheckpointsJson(const std::string& path,
                            const std::vector<CheckpointEntry>& checkpoints);

std::string TensorReport(const std::string& path, const TensorListing& listing, int width);
std::string TensorsJson(const std::string& path, const TensorListing& listing);

std::string VerificationReport(const std::string& path, const Verification& verification);
std::string VerificationJson(const std::string& path, const Verification& verification);

std::string ConversionReport(const std::string& to, const Conversion& conversion);
std::string ConversionJson(const std::string& from, const std::string& to,
                           const Conversion& conversion);

std::string ComparisonReport(const std::string& a, const std::string& b,
                             const Comparison& comparison, const CompareOptions& options,
                             int width);
std::string ComparisonJson(const std::string& a, const std::string& b,
                           const Comparison& comparison);

}  // namespace meshrun::client
