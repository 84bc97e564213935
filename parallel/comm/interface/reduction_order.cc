#include "parallel/comm/interface/reduction_order.h"

#include <cstdlib>
#include <string_view>

#include "fmt/format.h"
#include "parallel/base/errors.h"

namespace meshrun {

bool sums_in_rank_order() {
  const char* text = std::getenv("MESHRUN_REDUCTION_ORDER");
  const std::string_view order = text == nullptr ? "" : text;
  if (order.empty() || order == "host") return false;
  if (order == "rank") return true;
  throw BackendError(
      fmt::format("MESHRUN_REDUCTION_ORDER is \"{}\": it takes \"rank\" or \"host\"", order));
}

}  // namespace meshrun
