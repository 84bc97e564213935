#include "core/rpc/status_conversion.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error_detail.h"

namespace meshrun::rpc {
namespace {

TEST(StatusConversionTest, OnlyWhatDidNothingIsRepeated) {
  EXPECT_TRUE(WaitBeforeRepeating(absl::ResourceExhaustedError("not read: user bob")).has_value());
  EXPECT_EQ(WaitBeforeRepeating(NotRead("user bob calls", std::chrono::milliseconds(1234))),
            std::chrono::milliseconds(1234));
  // As gRPC says it, of a call that may have been carried out.
  const absl::Status too_large = absl::ResourceExhaustedError("Received message larger than max");
  EXPECT_FALSE(WaitBeforeRepeating(too_large).has_value());
  EXPECT_FALSE(WaitBeforeRepeating(absl::UnavailableError("not read: gone")).has_value());
  EXPECT_FALSE(WaitBeforeRepeating(absl::OkStatus()).has_value());
}

TEST(StatusConversionTest, TheWaitTravels) {
  const auto sent =
      ToGrpc(TryAgainLater("busy", std::chrono::milliseconds(250)), v1::ERROR_ORIGIN_COORDINATOR);
  const absl::Status received = FromGrpc(sent);
  EXPECT_EQ(std::string(received.message()), "busy; try again in 250ms");
  EXPECT_EQ(OriginOf(received), v1::ERROR_ORIGIN_COORDINATOR);
  EXPECT_EQ(WaitBeforeRepeating(received), std::chrono::milliseconds(250));
}

}  // namespace
}  // namespace meshrun::rpc
