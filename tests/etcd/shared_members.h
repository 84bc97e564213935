// One cluster of etcd for all tests of a program, started with the first that asks, ended with the
// last. Tests that kill members have a cluster of their own.
#pragma once

#include "tests/etcd/members.h"

namespace meshrun::testing {

EtcdMembers& SharedEtcdMembers();

}  // namespace meshrun::testing
