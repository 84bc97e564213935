// What a process does right now, in words, for people who ask why a job hangs.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace meshrun::worker {

// From /proc: state, memory, and for each thread its name, state, system call and where the kernel
// holds it; then the call stacks of all threads, if eu-stack or gdb is installed and answers within
// `timeout` (a stopped process has stacks too). Says so where something cannot be read. Blocks; for
// a thread of its own. Linux.
std::string DescribeProcess(pid_t pid, std::chrono::milliseconds timeout);

// <logs>/<rank>.dump.txt and <logs>/<rank>.flight_record.json.
std::string DumpPath(const std::string& logs, int rank);
std::string FlightRecordPath(const std::string& logs, int rank);

}  // namespace meshrun::worker
