#include "client/checkpoint/comparison.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <utility>

#include "client/checkpoint/elements.h"
#include "core/checkpoint/open_tensors.h"
#include "core/status.h"

namespace meshrun::client {
namespace {

// A multiple of every element's size.
constexpr uint64_t kBlock = 8 << 20;

// The L2 norms that a tensor's relative norm is made of, squared.
struct Norms {
  long double of_b = 0;
  long double of_difference = 0;
};

using std::isfinite;
using std::isnan;
bool isnan(const std::complex<double>& x) { return isnan(x.real()) || isnan(x.imag()); }
bool isfinite(const std::complex<double>& x) { return isfinite(x.real()) && isfinite(x.imag()); }

template <typename Real>
Real Square(Real x) {
  return x * x;
}
double Square(const std::complex<double>& x) { return std::norm(x); }

// An infinity less itself is not a number, and the two are 0 apart.
template <typename Real>
Real Distance(Real a, Real b) {
  return a == b ? 0 : std::fabs(a - b);
}
double Distance(const std::complex<double>& a, const std::complex<double>& b) {
  return std::hypot(Distance(a.real(), b.real()), Distance(a.imag(), b.imag()));
}

template <typename Value>
bool IsNear(const std::optional<Tolerance>& tolerance, long double distance, const Value& a,
            const Value& b) {
  if (!tolerance) return false;
  if (distance == 0) return true;
  // Otherwise relative * infinity would allow everything.
  if (!isfinite(a) || !isfinite(b)) return false;
  return distance <=
         tolerance->absolute + tolerance->relative * static_cast<long double>(std::abs(b));
}

// Adds the differences of two blocks to those of a tensor. A block's norms have the precision of
// its values: sums of blocks have that of long double.
template <typename Decoder>
void AddBlock(const Decoder& decode, const std::string& a, const std::string& b,
              const std::optional<Tolerance>& tolerance, TensorDifference* difference,
              Norms* norms) {
  using Value = typename Decoder::Value;
  using Real = decltype(Square(Value()));
  Real norm = 0;
  Real of_difference = 0;
  Real largest = 0;
  for (size_t at = 0; at < a.size(); at += Decoder::kBytes) {
    const Value right = decode(b.data() + at);
    const bool is_nan = isnan(right);
    if (isfinite(right)) norm += Square(right);
    if (std::memcmp(a.data() + at, b.data() + at, Decoder::kBytes) == 0) continue;
    ++difference->differing;
    const Value left = decode(a.data() + at);
    if (is_nan || isnan(left)) {
      ++difference->nans;
      ++difference->outside;
      continue;
    }
    const Real distance = Distance(left, right);
    if (!IsNear(tolerance, distance, left, right)) ++difference->outside;
    of_difference += distance * distance;
    largest = std::max(largest, distance);
  }
  norms->of_b += norm;
  norms->of_difference += of_difference;
  difference->largest = std::max(difference->largest, static_cast<double>(largest));
}

double RelativeNorm(const Norms& norms) {
  if (norms.of_difference == 0) return 0;
  const auto relative = static_cast<double>(std::sqrt(norms.of_difference) / std::sqrt(norms.of_b));
  // Infinity / infinity.
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

class Comparer {
 public:
  Comparer(const TensorSource& a, const TensorSource& b, const CompareOptions& options)
      : a_(a), b_(b), options_(options) {}

  absl::StatusOr<Comparison> Run() {
    std::vector<std::string> both;
    for (const auto& [name, tensor] : a_.Tensors()) {
      if (!b_.Tensors().contains(name)) {
        result_.only_in_a.push_back(name);
      } else {
        both.push_back(name);
        all_ += TensorBytes(name, tensor).value_or(0);
      }
    }
    for (const auto& [name, tensor] : b_.Tensors()) {
      if (!a_.Tensors().contains(name)) result_.only_in_b.push_back(name);
    }
    for (const std::string& name : both) MESHRUN_RETURN_IF_ERROR(CompareTensor(name));
    return std::move(result_);
  }

 private:
  absl::Status CompareTensor(const std::string& name) {
    TensorDifference difference{
        .name = name, .a = a_.Tensors().at(name), .b = b_.Tensors().at(name)};
    MESHRUN_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(name, difference.a));
    const uint64_t before = done_;
    if (difference.a != difference.b) {
      result_.different.push_back(std::move(difference));
    } else {
      bool equal = true;
      // Where nothing differs no element is decoded.
      MESHRUN_RETURN_IF_ERROR(EachBlock(name, bytes, [&] { return equal = left_ == right_; }));
      if (equal) {
        ++result_.bit_equal;
      } else {
        done_ = before;
        difference.comparable = true;
        difference.elements = bytes / *ElementBytes(difference.a.dtype);
        Norms norms;
        MESHRUN_RETURN_IF_ERROR(EachBlock(name, bytes, [&] {
          WithDecoder(difference.a.dtype, [&](const auto& decode) {
            AddBlock(decode, left_, right_, options_.tolerance, &difference, &norms);
          });
          return true;
        }));
        difference.relative_norm = RelativeNorm(norms);
        result_.different.push_back(std::move(difference));
      }
    }
    done_ = before + bytes;
    return absl::OkStatus();
  }

  // Reads both sides block by block, until `take` returns false.
  absl::Status EachBlock(const std::string& name, uint64_t bytes,
                         const std::function<bool()>& take) {
    for (uint64_t at = 0; at < bytes; at += left_.size()) {
      const uint64_t size = std::min(kBlock, bytes - at);
      left_.resize(size);
      right_.resize(size);
      MESHRUN_RETURN_IF_ERROR(a_.Read(name, at, left_));
      MESHRUN_RETURN_IF_ERROR(b_.Read(name, at, right_));
      done_ += size;
      if (options_.progress) options_.progress(done_, all_);
      if (!take()) break;
    }
    return absl::OkStatus();
  }

  const TensorSource& a_;
  const TensorSource& b_;
  const CompareOptions& options_;
  Comparison result_;
  std::string left_;
  std::string right_;
  uint64_t done_ = 0;
  uint64_t all_ = 0;
};

// Whether it has an optimizer's tensors or kept ones: in files of a checkpoint that are not opened,
// or as 'convert --all' writes them.
bool HasMoreThanModel(const TensorSource& source) {
  return !source.FilesLeftOut().empty() ||
         std::ranges::any_of(source.Tensors(), [](const auto& tensor) {
           return tensor.first.starts_with("optimizer/") || tensor.first.starts_with("kept/");
         });
}

}  // namespace

bool Comparison::equal() const {
  return only_in_a.empty() && only_in_b.empty() &&
         std::all_of(different.begin(), different.end(), [](const TensorDifference& each) {
           return each.comparable && each.outside == 0;
         });
}

absl::StatusOr<Comparison> Compare(const TensorSource& a, const TensorSource& b,
                                   const CompareOptions& options) {
  return Comparer(a, b, options).Run();
}

absl::StatusOr<Comparison> Compare(const std::string& a, const std::string& b,
                                   const CompareOptions& options) {
  MESHRUN_ASSIGN_OR_RETURN(TensorSourcePtr left, OpenTensors(a, StepFiles::kModel));
  MESHRUN_ASSIGN_OR_RETURN(TensorSourcePtr right, OpenTensors(b, StepFiles::kModel));
  if (HasMoreThanModel(*left) && HasMoreThanModel(*right)) {
    MESHRUN_ASSIGN_OR_RETURN(left, OpenTensors(a));
    MESHRUN_ASSIGN_OR_RETURN(right, OpenTensors(b));
  }
  MESHRUN_ASSIGN_OR_RETURN(Comparison comparison, Compare(*left, *right, options));
  comparison.left_out = left->FilesLeftOut();
  for (std::string& file : right->FilesLeftOut()) comparison.left_out.push_back(std::move(file));
  return comparison;
}

}  // namespace meshrun::client
