// An exception as text: for the part of a collective call that one rank does while others wait for
// it, or that calls a program's own function.
#pragma once

#include <exception>
#include <string>

#include "c10/util/Exception.h"

namespace meshrun::detail {

// What `work` raises, never empty; empty where it raises nothing.
template <typename Work>
std::string raised_by(const Work& work) {
  std::string text;
  try {
    work();
    return "";
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {  // a program may throw anything
  }
  return text.empty() ? "an exception without a text" : text;
}

}  // namespace meshrun::detail
