// Functions that libstdc++ gained after GLIBCXX_3.4.28 and that our libraries call, as a shared
// library that packages hold (docs/decisions/0019). A process with torch has
// the system's libstdc++, which may lack them.

#include <bits/atomic_futex.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <new>
#include <sstream>
#include <string>

namespace std {

void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// libstdc++ wakes with an operation that is not private, so this one is not either. Returns false
// when the time is over.
bool __atomic_futex_unsigned_base::_M_futex_wait_until_steady(unsigned* address, unsigned value,
                                                              bool has_timeout,
                                                              chrono::seconds seconds,
                                                              chrono::nanoseconds nanoseconds) {
  if (!has_timeout) {
    ::syscall(SYS_futex, address, FUTEX_WAIT, value, nullptr);
    return true;
  }
  if (seconds.count() < 0) return false;
  const timespec until{.tv_sec = seconds.count(),
                       .tv_nsec = static_cast<long>(nanoseconds.count())};
  return ::syscall(SYS_futex, address, FUTEX_WAIT_BITSET, value, &until, nullptr,
                   FUTEX_BITSET_MATCH_ANY) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace std

// Members of classes that are instantiated in libstdc++ cannot be defined by their own names.

// std::string::reserve(): a request to free memory, which may be ignored.
extern void reserve_nothing(std::string*) asm(
    "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE7reserveEv");
void reserve_nothing(std::string*) {}

// std::stringbuf::str() const, which C++20 calls str() const& and str()&&.
extern std::string text_of(const std::stringbuf*) asm(
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
extern std::string text_of_lvalue(const std::stringbuf*) asm(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
extern std::string text_of_rvalue(std::stringbuf*) asm(
    "_ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string text_of_lvalue(const std::stringbuf* buffer) { return text_of(buffer); }
std::string text_of_rvalue(std::stringbuf* buffer) {
  std::string out = text_of(buffer);
  buffer->str(std::string());
  return out;
}

// std::exception_ptr counts its references with these. Older systems have the copy constructor and
// the destructor, which do the same.
extern void construct_copy(void* copy, const std::exception_ptr*) asm(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
extern void destroy(std::exception_ptr*) asm("_ZNSt15__exception_ptr13exception_ptrD1Ev");
extern void add_reference(std::exception_ptr*) asm(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
extern void release(std::exception_ptr*) asm("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void add_reference(std::exception_ptr* pointer) {
  void* copy;  // never destroyed
  construct_copy(&copy, pointer);
}
void release(std::exception_ptr* pointer) { destroy(pointer); }
