// Operators that compute each element from those at the same place.
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/pointwise.h"

namespace meshrun {
namespace {

const Movement kAny = {"any Shard, equal on all operands; Replicate beside it is cut in place",
                       "a Partial is reduced; operands sharded otherwise move to the largest one's "
                       "layout",
                       "the same operators; what was broadcast is summed: Partial"};
const Movement kLinear = {"any, Partial(sum) and Partial(avg) too",
                          "operands sharded otherwise move to the largest one's layout",
                          "the same operators; what was broadcast is summed: Partial"};

const bool kRegistered =
    OperatorFamily("pointwise")
        .boxed({"aten::add", "aten::sub", "aten::rsub"}, pointwise(Linearity::kSum), kLinear)
        .boxed({"aten::mul"}, pointwise(Linearity::kProduct), kLinear)
        .boxed({"aten::neg", "aten::clone", "aten::detach", "aten::alias", "aten::lift_fresh"},
               pointwise(Linearity::kFirst), kLinear)
        .boxed(
            {"aten::abs",           "aten::acos",         "aten::acosh",
             "aten::addcdiv",       "aten::addcmul",      "aten::angle",
             "aten::asin",          "aten::asinh",        "aten::atan",
             "aten::atan2",         "aten::atanh",        "aten::bitwise_and",
             "aten::bitwise_left_shift", "aten::bitwise_not", "aten::bitwise_or",
             "aten::bitwise_right_shift", "aten::bitwise_xor", "aten::ceil",
             "aten::celu",          "aten::clamp",        "aten::clamp_max",
             "aten::clamp_min",     "aten::conj_physical", "aten::copy",
             "aten::copysign",      "aten::cos",          "aten::cosh",
             "aten::deg2rad",       "aten::digamma",      "aten::div",
             "aten::elu",           "aten::eq",           "aten::erf",
             "aten::erfc",          "aten::erfinv",       "aten::exp",
             "aten::exp2",          "aten::expm1",        "aten::fill",
             "aten::floor",         "aten::floor_divide", "aten::fmax",
             "aten::fmin",          "aten::fmod",         "aten::frac",
             "aten::gcd",           "aten::ge",           "aten::gelu",
             "aten::gt",            "aten::hardshrink",   "aten::hardsigmoid",
             "aten::hardswish",     "aten::hardtanh",     "aten::heaviside",
             "aten::hypot",         "aten::i0",           "aten::igamma",
             "aten::isinf",         "aten::isnan",        "aten::isneginf",
             "aten::isposinf",      "aten::lcm",          "aten::le",
             "aten::leaky_relu",    "aten::lerp",         "aten::lgamma",
             "aten::log",           "aten::log10",        "aten::log1p",
             "aten::log2",          "aten::log_sigmoid_forward", "aten::logaddexp",
             "aten::logaddexp2",    "aten::logical_and",  "aten::logical_not",
             "aten::logical_or",    "aten::logical_xor",  "aten::logit",
             "aten::lt",            "aten::masked_fill",  "aten::maximum",
             "aten::minimum",       "aten::mish",         "aten::nan_to_num",
             "aten::ne",            "aten::nextafter",    "aten::polygamma",
             "aten::pow",           "aten::rad2deg",      "aten::reciprocal",
             "aten::relu",          "aten::remainder",    "aten::round",
             "aten::rsqrt",         "aten::sgn",          "aten::sigmoid",
             "aten::sign",          "aten::signbit",      "aten::silu",
             "aten::sin",           "aten::sinc",         "aten::sinh",
             "aten::softplus",      "aten::softshrink",   "aten::special_bessel_j0",
             "aten::special_entr",  "aten::special_erfcx", "aten::special_log_ndtr",
             "aten::special_ndtri", "aten::special_xlog1py", "aten::special_zeta",
             "aten::sqrt",          "aten::tan",          "aten::tanh",
             "aten::threshold",     "aten::trunc",        "aten::where",
             "aten::xlogy",         "aten::zero"},
            pointwise(Linearity::kNone), kAny)
        .boxed({"aten::elu_backward", "aten::gelu_backward", "aten::hardshrink_backward",
                "aten::hardsigmoid_backward", "aten::hardswish_backward",
                "aten::hardtanh_backward", "aten::leaky_relu_backward",
                "aten::log_sigmoid_backward", "aten::logit_backward", 
                "aten::sigmoid_backward", "aten::silu_backward", "aten::softplus_backward",
                "aten::softshrink_backward", "aten::tanh_backward", "aten::threshold_backward"},
               pointwise(Linearity::kNone), kAny)
        // A conversion between floating-point types is linear up to rounding; to integers it is not.
        .boxed({"aten::_to_copy"}, pointwise(Linearity::kNone), kAny)
        .registered();

}  // namespace
}  // namespace meshrun
