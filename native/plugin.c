/* The plugin's entry point: the map of what the engine gets from this library.
 *
 *   firebird_plugin          called once, when the engine loads the library
 *   module                   told when the engine unloads it
 *   factory.create_plugin    a session for one attachment (session.c)
 *
 * Two names, one code: Debezium_Connector is the name that the RED Database connector has in
 * replication.conf, Firebird_CDC our own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "firebird_abi.h"
#include "host.h"
#include "own_attachment.h"
#include "own_file.h"
#include "session.h"

static char refusal[700]; /* why this engine can't be served; empty: it can */
static struct fbc_settings settings;

static void read_setting(struct fbi_config *section, struct fbi_status *status, const char *name,
                         char *to, size_t size) {
    struct fbi_config_entry *entry = section->vt->find(section, status, name);
    if (!entry)
        return;
    const char *value = entry->vt->get_value(entry);
    if (value)
        snprintf(to, size, "%s", value);
    entry->vt->release(entry);
}

/* Fill the settings from the plugin's section; all sessions have the same. */
static void read_settings(struct fbi_plugin_config *configuration) {
    struct fbi_status *status = fbc_host_new_status();
    struct fbi_config *section = configuration->vt->get_default_config(configuration, status);
    if (section) {
        read_setting(section, status, "ConnectorConfig", settings.connector_config,
                     sizeof settings.connector_config);
        read_setting(section, status, "LoggingConfig", settings.logging_config,
                     sizeof settings.logging_config);
        read_setting(section, status, "PythonDirs", settings.python_dirs,
                     sizeof settings.python_dirs);
        read_setting(section, status, "Python", settings.python, sizeof settings.python);
        read_setting(section, status, "PythonHome", settings.python_home,
                     sizeof settings.python_home);
        read_setting(section, status, "StateDirectory", settings.state_directory,
                     sizeof settings.state_directory);
        section->vt->release(section);
    }
    status->vt->dispose(status);
}

static void *create_plugin(struct fbi_plugin_factory *self, struct fbi_status *status,
                           struct fbi_plugin_config *parameter) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int settings_read;
    (void)self;
    pthread_mutex_lock(&lock);
    if (!settings_read)
        read_settings(parameter);
    settings_read = 1;
    pthread_mutex_unlock(&lock);
    return fbc_session_new(&settings, refusal[0] ? refusal : NULL, status);
}

static void do_clean(struct fbi_plugin_module *self) {
    (void)self;
    fbc_own_attachment_end();
}

static void thread_detach(struct fbi_plugin_module *self) {
    (void)self;
}

static const struct fbi_plugin_factory_vt factory_vt = {
    .version = FBI_PLUGIN_FACTORY_VERSION,
    .create_plugin = create_plugin,
};
static struct fbi_plugin_factory factory = {.vt = &factory_vt};

static const struct fbi_plugin_module_vt module_vt = {
    .version = FBI_PLUGIN_MODULE_VERSION,
    .do_clean = do_clean,
    .thread_detach = thread_detach,
};
static struct fbi_plugin_module module = {.vt = &module_vt};

void firebird_plugin(struct fbi_master *master);

/* Have the plugin of the version in use take the place of this one, where a link beside it leads
 * there. The engine itself opens no link: Firebird 4 takes one for another library than it asked
 * for. Returns 0 if there is none, or it can't be opened, which ends in a refusal. */
static int hand_over(struct fbi_master *master) {
    char link[PATH_MAX];
    struct stat status;
    fbc_own_file_init();
    fbc_beside_own_file("firebird_cdc/libfirebird_cdc.so", link, sizeof link);
    if (lstat(link, &status) != 0)
        return 0;
    void *library = dlopen(link, RTLD_NOW | RTLD_LOCAL);
    void (*entry)(struct fbi_master *) = NULL;
    const char *why = library ? NULL : dlerror();
    if (library)
        *(void **)&entry = dlsym(library, "firebird_plugin");
    if (entry == firebird_plugin)
        entry = NULL; /* a link to ourselves */
    if (entry)
        entry(master);
    else
        snprintf(refusal, sizeof refusal,
                 "the version in use can't be opened by %.300s (%.300s); run: firebird-cdc install",
                 link, why ? why : "no plugin");
    return entry != NULL;
}

__attribute__((visibility("default"))) void firebird_plugin(struct fbi_master *master) {
    if (hand_over(master))
        return;
    fbc_host_init(master);
    struct fbi_util *util = master->vt->get_util_interface(master);
    unsigned version = util->vt->get_client_version(util);
    if (version >> 8 != 4 && version >> 8 != 5)
        snprintf(
            refusal, sizeof refusal,
            "this plugin serves Firebird 4 and 5 and servers built on them, not version %u.%u; "
            "take a newer firebird-cdc",
            version >> 8, version & 255);
    struct fbi_plugin_manager *manager = master->vt->get_plugin_manager(master);
    manager->vt->register_module(manager, &module);
    manager->vt->register_plugin_factory(manager, FBI_PLUGIN_TYPE_REPLICATOR, "Debezium_Connector",
                                         &factory);
    manager->vt->register_plugin_factory(manager, FBI_PLUGIN_TYPE_REPLICATOR, "Firebird_CDC",
                                         &factory);
}
