// The saves of this process that go on in the background, whoever began them: waiting for them
// where nobody else does, and saying what became of them. Threads: any.
#pragma once

#include <memory>
#include <string>

#include "parallel/checkpoint/background_save.h"
#include "parallel/checkpoint/commit_hook.h"

namespace meshrun::detail {

// One line of this process's log.
void say(const std::string& text);

// DistributedManager's cleanup waits for the save, and finish_background_saves() does.
void note_background_save(const std::shared_ptr<BackgroundSave>& save);
void note_commit_hook(const std::shared_ptr<CommitHook>& hook);

// Waits, and says so where it takes long. Not collective: the other ranks' threads are at work too.
// A save of which nothing is heard for ten minutes is given up.
void finish(BackgroundSave& save);
void finish(const CommitHook& hook);
// The same, and says what became of it if that is an error.
void finish_and_say(BackgroundSave& save);

// The CheckpointError of an outcome that is not kWritten.
[[noreturn]] void raise_outcome(SaveOutcome::Kind kind, const std::string& problem);

}  // namespace meshrun::detail
