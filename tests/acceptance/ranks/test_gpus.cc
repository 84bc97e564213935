// libnvidia-ml.so.1 of a host with $MESHRUN_TEST_GPUS GPUs (1): the functions that
// worker/inventory/nvml.cc looks up. For tests on hosts without any; no rank can compute on them.
//
// What the GPUs tell of themselves stands in the file $MESHRUN_TEST_GPU_STATE, which is read at
// each question, a line each: "temperature 91", "busy 50", "used_mib 100", "ecc 1". Each line
// "xid 79" is one error of the first GPU, told once. After "lost 1" the first GPU has fallen off
// the bus, and answers nothing.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

struct Memory {
  unsigned long long total, free, used;
};

struct Utilization {
  unsigned gpu, memory;
};

struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

namespace {

unsigned indices[64];

// The number in the last line of this name, or `otherwise`; with `which` that of the so-manyth
// line.
long Told(const char* name, long otherwise, int which = -1) {
  const char* const path = std::getenv("MESHRUN_TEST_GPU_STATE");
  std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "r");
  if (file == nullptr) return otherwise;
  char said[64];
  long value = 0;
  int seen = 0;
  while (std::fscanf(file, "%63s %ld", said, &value) == 2) {
    if (std::strcmp(said, name) != 0) continue;
    if (which < 0 || seen == which) otherwise = value;
    ++seen;
  }
  std::fclose(file);
  return otherwise;
}

constexpr int kGpuIsLost = 15;

bool IsLost(const void* device) { return device == &indices[0] && Told("lost", 0) != 0; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* const number = std::getenv("MESHRUN_TEST_GPUS");
  *count = number == nullptr ? 1 : static_cast<unsigned>(std::atoi(number));
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= 64) return 2;
  indices[index] = index;
  *device = &indices[index];
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  if (IsLost(device)) return kGpuIsLost;
  std::snprintf(text, size, "GPU-6d657368-7275-6e00-0000-%012u",
                *static_cast<unsigned*>(device) + 1);
  return 0;
}

int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  if (IsLost(device)) return kGpuIsLost;
  std::snprintf(text, size, "Test GPU");
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, Memory* bytes) {
  if (IsLost(device)) return kGpuIsLost;
  const auto used = static_cast<unsigned long long>(Told("used_mib", 0)) << 20;
  *bytes = {1ull << 30, (1ull << 30) - used, used};
  return 0;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* used) {
  if (IsLost(device)) return kGpuIsLost;
  *used = {static_cast<unsigned>(Told("busy", 0)), static_cast<unsigned>(Told("busy", 0) / 2)};
  return 0;
}

int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* celsius) {
  if (IsLost(device)) return kGpuIsLost;
  *celsius = static_cast<unsigned>(Told("temperature", 40));
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void* device, int, int, unsigned long long* errors) {
  if (IsLost(device)) return kGpuIsLost;
  *errors = static_cast<unsigned long long>(Told("ecc", 0));
  return 0;
}

int nvmlEventSetCreate(void** set) {
  *set = indices;
  return 0;
}

int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return 0; }

int nvmlEventSetWait_v2(void*, EventData* event, unsigned milliseconds) {
  static int told = 0;
  const long xid = Told("xid", -1, told);
  if (xid >= 0) {
    ++told;
    *event = {&indices[0], 8, static_cast<unsigned long long>(xid), 0, 0};
    return 0;
  }
  const timespec wait = {milliseconds / 1000, static_cast<long>(milliseconds % 1000) * 1'000'000};
  nanosleep(&wait, nullptr);
  constexpr int kTimeout = 10;
  return kTimeout;
}

int nvmlEventSetFree(void*) { return 0; }

}  // extern "C"
