// Bytes from this rank to some ranks of a group and from some to this one, in one message per pair:
// parcels of several dtypes travel together. Asynchronous: made, then waited for.
//
// Both ends of a pair list its parcels in the same order with the same sizes. All ranks of the
// group make the exchange, those without parcels too. Threads and order: those of c10d::Backend.
// Errors: parallel/base/collective_errors.h, from the constructor (backends that check at once) or
// wait().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "parallel/comm/interface/v_collectives.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

struct Parcel {
  int rank = 0;       // where to
  at::Tensor tensor;  // contiguous; any dtype
};

struct ExpectedParcel {
  int rank = 0;  // where from
  int64_t num_bytes = 0;
};

class ParcelExchange {
 public:
  ParcelExchange() = default;
  // `spec`: what is compared; kind, cuts and `async` are set here. With a problem in it, parcels
  // are not looked at and wait() raises, on all ranks.
  ParcelExchange(const GroupArgument::Handle& group, c10::Device device,
                 const std::vector<Parcel>& sent, const std::vector<ExpectedParcel>& expected,
                 CollectiveSpec spec);

  // Parcel `index` of `expected`, viewed with this dtype and shape. After wait().
  at::Tensor received(size_t index, at::ScalarType dtype, at::IntArrayRef shape) const;
  void wait();

 private:
  VCollectives::WorkPtr work_;
  at::Tensor output_;
  at::Tensor input_;
  std::vector<int64_t> begins_;  // of the expected parcels in output_, and their sizes
  std::vector<int64_t> bytes_;
};

}  // namespace meshrun
