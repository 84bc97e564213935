// libnvidia-ml.so.1 of a host with $MESHRUN_TEST_GPUS GPUs (1): the functions that
// worker/inventory/nvml.cc looks up. For tests of placement on hosts without any; no rank can
// compute on them.
#include <cstdio>
#include <cstdlib>

struct Memory {
  unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* const number = std::getenv("MESHRUN_TEST_GPUS");
  *count = number == nullptr ? 1 : static_cast<unsigned>(std::atoi(number));
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static unsigned indices[64];
  if (index >= 64) return 2;
  indices[index] = index;
  *device = &indices[index];
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-6d657368-7275-6e00-0000-%012u",
                *static_cast<unsigned*>(device) + 1);
  return 0;
}

int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Test GPU");
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, Memory* bytes) {
  *bytes = {1ull << 30, 1ull << 30, 0};
  return 0;
}

}  // extern "C"
