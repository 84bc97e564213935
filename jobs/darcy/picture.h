// A picture of some samples: permeability, pressure, prediction and error.
#pragma once

#include <cstdint>
#include <string>

#include "jobs/darcy/evaluation.h"

namespace meshrun::darcy {

// Raises std::runtime_error, which names the path.
void write_picture(const Shown& shown, const TestErrors& test, int64_t steps,
                   const std::string& path);

}  // namespace meshrun::darcy
