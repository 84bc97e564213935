// Where things lie in etcd, below the prefix of `--state`:
//
//   PREFIX/schema                       number of the state's schema (kSchemaVersion)
//   PREFIX/commit                       name of the last transaction
//   PREFIX/state/TABLE/KEY              the rows; the table is a number of three digits, so that
//                                       keys are in the order of tables
//   PREFIX/leadership/leader            who leads, with its lease
//   PREFIX/leadership/renewal           written again and again by who leads, without a lease
//   PREFIX/leadership/candidates/NAME   who lives, each with its lease
#pragma once

#include <string>
#include <string_view>

namespace meshrun::coordinator::etcd {

inline std::string SchemaKey(std::string_view prefix) { return std::string(prefix) + "/schema"; }
inline std::string CommitKey(std::string_view prefix) { return std::string(prefix) + "/commit"; }
inline std::string RowsKey(std::string_view prefix) { return std::string(prefix) + "/state/"; }
inline std::string LeadershipKey(std::string_view prefix) {
  return std::string(prefix) + "/leadership/";
}

// The end of the range of all keys that begin with `prefix`, which ends with a slash.
inline std::string RangeEnd(std::string prefix) {
  ++prefix.back();
  return prefix;
}

// A key as its owner has made it: nobody else gives it this value.
struct OwnKey {
  std::string key;
  std::string value;
};

}  // namespace meshrun::coordinator::etcd
