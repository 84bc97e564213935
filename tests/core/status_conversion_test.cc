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

// So gRPC 1.51 ends calls that come while a server stops.
TEST(StatusConversionTest, ACallThatNobodyHereHasCancelledMayBeRepeated) {
  const grpc::Status by_grpc(grpc::StatusCode::CANCELLED, "CANCELLED");
  EXPECT_EQ(EndOf(by_grpc, /*cancelled=*/false).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(EndOf(by_grpc, /*cancelled=*/true).error_code(), grpc::StatusCode::CANCELLED);
  const grpc::Status said =
      ToGrpc(absl::CancelledError("the job is cancelled"), v1::ERROR_ORIGIN_COORDINATOR);
  EXPECT_EQ(EndOf(said, /*cancelled=*/false).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(EndOf(grpc::Status::OK, /*cancelled=*/false).ok());
}

}  // namespace
}  // namespace meshrun::rpc
