// A plugin of g++ with which a precompiled header holds the function templates that its inline
// functions use.
//
// g++ instantiates such templates at the end of a translation unit, after it has written a
// precompiled header: every source that takes the header would instantiate the same thousands
// again. The pragma
//
//   #pragma meshrun instantiate_templates
//
// at the end of the header does so before. Only the compilation of the header loads the plugin.
//
// The declarations are those of gcc-plugin.h, plugin.def, c-family/c-pragma.h and cp/cp-tree.h of
// GCC 12, whose package (gcc-12-plugin-dev) is not needed so. Another version of g++ ignores the
// pragma: its precompiled headers work, without the instantiations.

#include <cstring>

extern "C" {

struct plugin_name_args {
  char* base_name;
  const char* full_name;
  int argc;
  void* argv;
  const char* version;
  const char* help;
};

struct plugin_gcc_version {
  const char* basever;
  const char* datestamp;
  const char* devphase;
  const char* revision;
  const char* configuration_arguments;
};

int plugin_is_GPL_compatible;

void register_callback(const char* plugin, int event, void (*callback)(void*, void*),
                       void* user_data);

int plugin_init(plugin_name_args* plugin, plugin_gcc_version* gcc);
}

struct cpp_reader;
void c_register_pragma(const char* space, const char* name, void (*handler)(cpp_reader*));
void instantiate_pending_templates(int retries);

namespace {

constexpr int kPluginPragmas = 15;  // PLUGIN_PRAGMAS

void Instantiate(cpp_reader*) { instantiate_pending_templates(0); }

void RegisterPragma(void*, void*) {
  c_register_pragma("meshrun", "instantiate_templates", Instantiate);
}

}  // namespace

int plugin_init(plugin_name_args* plugin, plugin_gcc_version* gcc) {
  if (std::strncmp(gcc->basever, "12.", 3) == 0) {
    register_callback(plugin->base_name, kPluginPragmas, RegisterPragma, nullptr);
  }
  return 0;
}
