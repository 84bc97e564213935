// What this host is called.
#pragma once

#include <string>

namespace meshrun::os {

// "localhost" where the system has no name.
std::string HostName();

}  // namespace meshrun::os
