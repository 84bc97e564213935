#include "coordinator/api/document.h"

#include <span>

#include "core/embed/embedded_file.h"

namespace meshrun::coordinator {

// Defined by //coordinator/api:document_file.
std::span<const EmbeddedFile> DocumentFiles();

std::string_view Document() { return DocumentFiles().front().bytes; }

}  // namespace meshrun::coordinator
