// Linked into every program under --config=tsan.
//
// Debian's gRPC, protobuf, abseil and OpenSSL are not instrumented: ThreadSanitizer sees neither
// their locks nor their atomics, and takes every hand-over through them for a race. The limit that
// follows: a race with one side on a thread of gRPC's is not reported. Code that runs on threads
// and locks of our own (core/mutex.h) is checked in full.

extern "C" const char* __tsan_default_suppressions();

const char* __tsan_default_suppressions() {
  return
      // What these libraries call is not looked at. Reporting and suppressing it one by one costs a
      // minute per test.
      "called_from_lib:libgrpc.so.29\n"
      "called_from_lib:libgrpc++.so.1\n"
      "called_from_lib:libgpr.so.29\n"
      "called_from_lib:libssl.so.3\n"
      "called_from_lib:libcrypto.so.3\n"
      "called_from_lib:libabsl_graphcycles_internal.so\n"
      "called_from_lib:libabsl_synchronization.so\n"
      "race:grpcpp/\n"
      "race:libabsl_\n"
      "race:libgpr\n"
      "race:libgrpc\n"
      "race:libprotobuf\n"
      "deadlock:libgrpc\n"
      "mutex:libgrpc\n"
      // gRPC's own threads live until the process ends.
      "thread:libgpr\n";
}
