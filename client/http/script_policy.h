// What small pages of this program may do in a browser.
#pragma once

#include <string>
#include <string_view>

namespace meshrun::client {

// Value of Content-Security-Policy for a page whose only script is `script`: this may run, and
// nothing else is loaded, sent or framed.
std::string ScriptPolicy(std::string_view script);

}  // namespace meshrun::client
