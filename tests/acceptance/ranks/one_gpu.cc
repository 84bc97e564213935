// libnvidia-ml.so.1 of a host with one GPU: the functions that worker/inventory/nvml.cc looks up.
// For tests of placement on hosts without any; no rank can compute on it.
#include <cstdio>

struct Memory {
  unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  static int only;
  *device = &only;
  return 0;
}

int nvmlDeviceGetUUID(void*, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-6d657368-7275-6e00-0000-000000000001");
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
