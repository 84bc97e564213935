// --help: what the command does, examples, then its flags.
#pragma once

#include <string>

#include "client/cli/flag_set.h"

namespace meshrun::client {

// Gives this command and those declared below it later the form of --help described above.
void UseHelpFormat(FlagSet& root);

}  // namespace meshrun::client
