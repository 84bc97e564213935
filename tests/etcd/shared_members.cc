#include "tests/etcd/shared_members.h"

#include <gtest/gtest.h>

#include <memory>

namespace meshrun::testing {
namespace {

class Shared : public ::testing::Environment {
 public:
  EtcdMembers& members() {
    if (members_ == nullptr) members_ = std::make_unique<EtcdMembers>();
    return *members_;
  }
  void TearDown() override { members_.reset(); }

 private:
  std::unique_ptr<EtcdMembers> members_;
};

// GoogleTest owns it.
Shared* const shared =
    static_cast<Shared*>(::testing::AddGlobalTestEnvironment(std::make_unique<Shared>().release()));

}  // namespace

EtcdMembers& SharedEtcdMembers() { return shared->members(); }

}  // namespace meshrun::testing
