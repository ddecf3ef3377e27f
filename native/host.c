/* The bridge as the plugin sees it: started when it is first needed, put back where it can't be
 * trusted, and what holds where it does not run; see host.h. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "catalogue.h"
#include "counters.h"
#include "databases.h"
#include "events.h"
#include "folder.h"
#include "gap_counts.h"
#include "policy.h"
#include "shared_page.h"
#include "witness.h"

enum {
    RETRY_MS = 1000,
    GENERATIONS_AHEAD = 1 << 16 /* as journal/folder/journal_folder.py */
};

static struct {
    struct fbi_master *master;
    pthread_mutex_t start_lock; /* one start at a time; taken before any other lock */
    atomic_int ready;
    atomic_int distrusted; /* a sync failed after prepare; until a start works */
    int64_t tried_us;
    struct fbc_error reason;
    fbc_bridge_start_function start;
    atomic_int mode_is_gap; /* connector.capture.failure.mode, as the bridge last read it */
} host = {.start_lock = PTHREAD_MUTEX_INITIALIZER};

int64_t fbc_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void fbc_host_init(struct fbi_master *master) {
    host.master = master;
    fbc_witness_init(master);
    fbc_catalogue_init();
    fbc_events_init();
}

struct fbi_status *fbc_host_new_status(void) {
    return host.master->vt->get_status(host.master);
}

/* ---- Starting the bridge ------------------------------------------------------------------ */

static void configure(const struct fbc_workplace *workplace) {
    struct stat status = {0};
    fstat(workplace->journals, &status);
    struct fbc_shared_page *before = fbc_page(), *now = workplace->page;
    struct fbc_moved_gaps moved = {0};
    int is_other = before && before != now;
    if (is_other &&
        now->generation <= before->generation) /* shapes remember of which one they are */
        now->generation = before->generation + GENERATIONS_AHEAD;
    mlock(now, FBC_SHARED_BYTES); /* in memory to stay, if we may: no fault meets a bad disk */
    struct fbc_database *databases = fbc_databases_lock();
    fbc_folder_hold_alone();
    if (is_other) /* by any process: nobody may come to that page again */
        fbc_gaps_take(&moved);
    snprintf(fbc_folder.path, sizeof fbc_folder.path, "%s", workplace->path);
    fbc_folder.device = status.st_dev;
    fbc_folder.inode = status.st_ino;
    fbc_folder.journals = workplace->journals;
    fbc_folder.making = workplace->making;
    fbc_folder.tickets = workplace->tickets;
    fbc_folder.commits = workplace->commits;
    fbc_folder.slots = workplace->slots;
    fbc_folder.is_synced = workplace->is_synced;
    fbc_folder.transactions = workplace->transactions;
    fbc_journal_limit_memory(workplace->memory_bytes);
    memcpy(fbc_folder.owner, workplace->owner, 16);
    memcpy(fbc_folder.boot, workplace->boot, 16);
    fbc_folder.page = now;
    host.mode_is_gap = workplace->is_gap_mode;
    fbc_gaps_give(&moved, databases);
    fbc_counters_use(workplace->journals);
    fbc_folder_release();
    if (is_other)
        fbc_gaps_announce(databases);
    fbc_databases_unlock();
    if (moved.count)
        fbc_gaps_sync();
}

static void fail(const char *reason) {
    struct fbc_error error;
    fbc_error_set(&error, 0, "%s", reason);
    fbc_host_fail(&error);
}

static int sync_file_system(int fd) {
    return syncfs(fd) == 0 ? 0 : -errno;
}

static int start_bridge(const struct fbc_settings *settings, struct fbc_error *error) {
    static struct fbc_host_api api = {
        .size = sizeof api,
        .version = 1,
        .configure = configure,
        .last_ticket = fbc_tickets_last,
        .take_events = fbc_events_take,
        .settle = fbc_events_settle,
        .read_gap = fbc_gaps_read,
        .clear_gap = fbc_gaps_clear,
        .database_path = fbc_database_path,
        .database_guid = fbc_database_guid,
        .witness_open = fbc_witness_open,
        .witness_ask = fbc_witness_ask,
        .witness_begin_reading = fbc_witness_begin_reading,
        .witness_end_reading = fbc_witness_end_reading,
        .witness_describe = fbc_witness_describe,
        .witness_select = fbc_witness_select,
        .witness_free = fbc_witness_free,
        .witness_close = fbc_witness_close,
        .store_definition = fbc_catalogue_store,
        .take_questions = fbc_question_take,
        .answer_question = fbc_question_answer,
        .sync_file_system = sync_file_system,
        .new_generation = fbc_new_generation,
        .spawn = fbc_spawn,
        .limit_disk = fbc_disk_limit,
        .measure_disk = fbc_folder_measure,
        .fail = fail,
        .count_prepared = fbc_tickets_held,
    };
    if (!host.start && !fbc_python_open(settings, &host.start, error))
        return FBC_FAILED;
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    api.root = manager->vt->get_root_directory(manager);
    error->text[0] = 0;
    if (host.start(&api, settings->connector_config, settings->logging_config,
                   settings->python_dirs, error->text, sizeof error->text) == FBC_OK)
        return FBC_OK;
    if (!error->text[0])
        fbc_error_set(
            error, 0,
            "the bridge's Python code failed to load; its error is on the server's "
            "standard error. Check PythonDirs in plugins.conf, or run: firebird-cdc check");
    return FBC_FAILED;
}

int fbc_host_ready(const struct fbc_settings *settings, struct fbc_error *error) {
    struct fbc_error why;
    if (atomic_load_explicit(&host.ready, memory_order_acquire) && !fbc_tickets_are_retired(&why))
        return FBC_OK;
    pthread_mutex_lock(&host.start_lock);
    if (host.ready && fbc_tickets_are_retired(&why)) {
        host.ready = 0;
        host.reason = why;
    }
    int64_t now = fbc_now_us();
    if (!host.ready && (now - host.tried_us > RETRY_MS * 1000 || now < host.tried_us)) {
        int done = start_bridge(settings, &host.reason);
        host.tried_us = fbc_now_us();
        if (done)
            host.distrusted = 0;
        atomic_store_explicit(&host.ready, done, memory_order_release);
    }
    int ready = host.ready;
    if (!ready)
        *error = host.reason;
    pthread_mutex_unlock(&host.start_lock);
    return ready ? FBC_OK : FBC_FAILED;
}

void fbc_host_fail(const struct fbc_error *error) {
    pthread_mutex_lock(&host.start_lock);
    host.ready = 0;
    host.reason = *error;
    pthread_mutex_unlock(&host.start_lock);
}

void fbc_host_distrust(const struct fbc_error *error) {
    fbc_host_fail(error);
    host.distrusted = 1;
}

int fbc_host_trusted(const struct fbc_settings *settings, struct fbc_error *error) {
    return !host.distrusted || fbc_host_ready(settings, error);
}

int fbc_host_folder_in_place(struct fbc_error *error) {
    int in_place = fbc_folder_is_in_place(error);
    if (!in_place)
        fbc_host_fail(error);
    return in_place;
}

int fbc_host_is_folder(int folder) {
    return host.ready && fbc_folder_is(folder);
}

int fbc_host_take_journal(const char *name, int *folder, struct fbc_error *error) {
    int fd = fbc_folder_take_journal(name, folder, error);
    if (fd < 0 && errno != ENOSPC && errno != EDQUOT) /* a new start mends no full disk */
        fbc_host_fail(error);
    return fd;
}

/* ---- What holds without the bridge --------------------------------------------------------- */

static const char *root_directory(void) {
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    const char *root = manager->vt->get_root_directory(manager);
    return root ? root : "";
}

/* The path of the connector's file, as config/locate.py finds it but for jvm.args. */
static void connector_file(const struct fbc_settings *settings, char *path, size_t size) {
    const char *name = secure_getenv("FIREBIRD_CONNECTOR_CONFIG");
    if (!name || !*name)
        name = settings->connector_config;
    if (!*name)
        name = "reddatabase.connector.yaml";
    if (*name == '/')
        snprintf(path, size, "%s", name);
    else
        snprintf(path, size, "%s/%s", root_directory(), name);
}

int fbc_host_mode_is_gap(const struct fbc_settings *settings) {
    char path[8192], mode[32];
    if (host.ready)
        return host.mode_is_gap;
    connector_file(settings, path, sizeof path);
    if (!fbc_policy_option(path, "connector.capture.failure.mode", mode, sizeof mode))
        return host.mode_is_gap; /* as it was when the bridge ran; else refuse */
    return strcmp(mode, "gap") == 0;
}

int fbc_host_heeds_errors(struct fbc_database *database) {
    enum { DIRECTORY_CONF = 2 }; /* IConfigManager::DIR_CONF */
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    const char *directory = manager->vt->get_directory(manager, DIRECTORY_CONF);
    char path[8192];
    if (!directory || !*directory)
        directory = root_directory();
    snprintf(path, sizeof path, "%s/replication.conf", directory);
    if (!fbc_policy_heeds_errors(path, root_directory(), database->path))
        database->ignores_errors = 1;
    return !database->ignores_errors;
}

void fbc_host_tell(const char *text) {
    if (!host.ready)
        fbc_policy_tell(text);
}

int fbc_host_make_ownerless(const struct fbc_settings *settings, const char *name, int *folder,
                            struct fbc_error *error) {
    char file[8192], path[4096];
    connector_file(settings, file, sizeof file);
    *folder = -1;
    if (fbc_policy_option(file, "connector.journal.directory", path, sizeof path) && *path == '/')
        return fbc_folder_make_ownerless(path, name, folder, error);
    fbc_error_set(error, 0, "no connector.journal.directory is found in %.300s", file);
    return -1;
}

/* The path by which the state folder knows the connector's file, whether that exists or not: its
 * folder without links, as journal/folder/failures.py spells it. */
static void connector_key(const struct fbc_settings *settings, char *path, size_t size) {
    char given[8192], folder[PATH_MAX];
    connector_file(settings, given, sizeof given);
    char *slash = strrchr(given, '/');
    *slash = 0;
    const char *real = realpath(*given ? given : "/", folder) ? folder : given;
    snprintf(path, size, "%.4095s/%.1023s", strcmp(real, "/") == 0 ? "" : real, slash + 1);
}

void fbc_host_count_failure(const struct fbc_settings *settings, struct fbc_database *database,
                            enum fbc_counter kind) {
    enum { DIRECTORY_LOG = 14 }; /* IConfigManager::DIR_LOG */
    char config[8192], text[1024];
    const char *path = database ? database->path : "";
    struct fbc_error error = {"plugins.conf names no StateDirectory; run: firebird-cdc install"};
    fbc_folder_hold();
    int in_place = fbc_counters_in_place(fbc_folder.path);
    fbc_folder_release();
    if (in_place) {
        fbc_count_failure(fbc_database_tally(database), kind);
        return;
    }
    connector_key(settings, config, sizeof config);
    if (settings->state_directory[0] &&
        fbc_count_failure_in(settings->state_directory, config, path, kind, &error))
        return;
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    const char *logs = manager->vt->get_directory(manager, DIRECTORY_LOG);
    snprintf(text, sizeof text, "transactions were %s, and that is counted nowhere: %.500s",
             kind == FBC_GAPS ? "committed whose changes are not recorded" : "refused", error.text);
    fbc_policy_log(logs && *logs ? logs : root_directory(), path, text);
}
