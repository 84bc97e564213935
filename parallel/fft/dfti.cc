#include "parallel/fft/dfti.h"

#include <map>
#include <mutex>
#include <tuple>

#include "c10/util/Exception.h"
#include "parallel/base/traced_calls.h"

// Functions that mkl_dfti.h declares; that header is not part of LibTorch, and its numbers are part
// of MKL's binary interface. Weak: absent if LibTorch is built without MKL.
extern "C" {
long DftiCreateDescriptor_s_1d(void**, int domain, long length) __attribute__((weak));
long DftiCreateDescriptor_d_1d(void**, int domain, long length) __attribute__((weak));
long DftiSetValue(void*, int parameter, ...) __attribute__((weak));
long DftiCommitDescriptor(void*) __attribute__((weak));
long DftiComputeForward(void*, void*, ...) __attribute__((weak));
long DftiComputeBackward(void*, void*, ...) __attribute__((weak));
char* DftiErrorMessage(long) __attribute__((weak));
}

namespace meshrun::fft {
namespace {

enum Parameter {
  kForwardScale = 4,
  kBackwardScale = 5,
  kNumberOfTransforms = 7,
  kConjugateEvenStorage = 10,
  kPlacement = 11,
  kInputStrides = 12,
  kOutputStrides = 13,
  kInputDistance = 14,
  kOutputDistance = 15,
};
constexpr int kReal = 33;
constexpr int kComplexComplex = 39;
constexpr int kNotInplace = 44;

void check(long status) {
  TORCH_CHECK(status == 0, "MKL's transform failed: ", DftiErrorMessage(status));
}

void* make_descriptor(bool is_double, int64_t height, int64_t width, double scale) {
  void* descriptor = nullptr;
  check(is_double ? DftiCreateDescriptor_d_1d(&descriptor, kReal, height)
                  : DftiCreateDescriptor_s_1d(&descriptor, kReal, height));
  const long strides[2] = {0, width};
  check(DftiSetValue(descriptor, kPlacement, kNotInplace));
  check(DftiSetValue(descriptor, kConjugateEvenStorage, kComplexComplex));
  check(DftiSetValue(descriptor, kNumberOfTransforms, width));
  check(DftiSetValue(descriptor, kInputStrides, strides));
  check(DftiSetValue(descriptor, kOutputStrides, strides));
  check(DftiSetValue(descriptor, kInputDistance, 1L));
  check(DftiSetValue(descriptor, kOutputDistance, 1L));
  // As double for both precisions, as variadic arguments travel.
  check(DftiSetValue(descriptor, kForwardScale, scale));
  check(DftiSetValue(descriptor, kBackwardScale, scale));
  check(DftiCommitDescriptor(descriptor));
  return descriptor;
}

// Kept until the process ends: as many as there are geometries.
void* descriptor_of(bool is_double, int64_t height, int64_t width, double scale) {
  using Key = std::tuple<bool, int64_t, int64_t, double>;
  static std::mutex& mutex = *new std::mutex;
  static auto& descriptors = *new std::map<Key, void*>;
  const std::lock_guard lock(mutex);
  void*& descriptor = descriptors[{is_double, height, width, scale}];
  if (descriptor == nullptr) descriptor = make_descriptor(is_double, height, width, scale);
  return descriptor;
}

}  // namespace

bool has_dfti(const at::Tensor& planes) {
  const at::ScalarType real = c10::toRealValueType(planes.scalar_type());
  return DftiCreateDescriptor_s_1d != nullptr && DftiComputeBackward != nullptr &&
         planes.is_cpu() && !is_traced(planes) && (real == at::kFloat || real == at::kDouble);
}

void transform_real_rows(const at::Tensor& from, const at::Tensor& to, int64_t height, double scale,
                         bool forward) {
  if (from.numel() == 0 || to.numel() == 0) return;
  const bool is_double = c10::toRealValueType(from.scalar_type()) == at::kDouble;
  void* const descriptor = descriptor_of(is_double, height, from.size(2), scale);
  auto* source = static_cast<char*>(from.data_ptr());
  auto* result = static_cast<char*>(to.data_ptr());
  const auto source_bytes = static_cast<int64_t>(from.nbytes()) / from.size(0);
  const auto result_bytes = static_cast<int64_t>(to.nbytes()) / to.size(0);
  for (int64_t plane = 0; plane < from.size(0); ++plane) {
    check(forward ? DftiComputeForward(descriptor, source, result)
                  : DftiComputeBackward(descriptor, source, result));
    source += source_bytes;
    result += result_bytes;
  }
}

}  // namespace meshrun::fft
