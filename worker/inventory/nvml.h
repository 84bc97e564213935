// The host's NVIDIA GPUs, through the driver's libnvidia-ml.so.1, opened at run time.
#pragma once

#include <vector>

#include "meshrun/v1/common.pb.h"

namespace meshrun::worker {

// In PCI order. Empty where there is no driver, and where it does not answer.
std::vector<v1::Gpu> ListGpus();

}  // namespace meshrun::worker
