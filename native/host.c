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
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "catalogue.h"
#include "counters.h"
#include "databases.h"
#include "definitions.h"
#include "events.h"
#include "failpoint.h"
#include "folder.h"
#include "gap_counts.h"
#include "join.h"
#include "own_attachment.h"
#include "policy.h"
#include "reading.h"
#include "session.h"
#include "shared_page.h"
#include "threads.h"

enum {
    RETRY_MS = 1000,
    GENERATIONS_AHEAD = 1 << 16 /* as journal/folder/journal_folder.py */
};

static struct {
    struct fbi_master *master;
    pthread_mutex_t start_lock; /* one start at a time; taken before any other lock */
    atomic_int ready;
    atomic_int is_suspended; /* a sync failed after prepare; until a start works */
    int64_t tried_us;
    struct fbc_error reason;
    fbc_bridge_start_function start;
    atomic_int mode_is_gap;     /* connector.capture.failure.mode, as the bridge last read it */
    atomic_int is_joined;       /* this process works without a bridge so far (join.h), */
    struct fbc_workplace place; /* here */
    char path[4096];            /* of that folder */
    const struct fbc_settings *settings;
} host = {.start_lock = PTHREAD_MUTEX_INITIALIZER};

int64_t fbc_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void init_need(void);

void fbc_host_init(struct fbi_master *master) {
    int is_first = !host.master;
    host.master = master;
    fbc_own_attachment_init(master);
    if (!is_first)
        return; /* threads wait for what was made then */
    fbc_catalogue_init();
    fbc_events_init();
    fbc_join_init();
    init_need();
}

struct fbi_status *fbc_host_new_status(void) {
    return host.master->vt->get_status(host.master);
}

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

/* Tell whether that is the file which the bridge would read: jvm.args may name another one. */
static int connector_file_is_certain(const struct fbc_settings *settings) {
    char path[8192];
    const char *name = secure_getenv("FIREBIRD_CONNECTOR_CONFIG");
    snprintf(path, sizeof path, "%s/jvm.args", root_directory());
    return (name && *name) || settings->connector_config[0] || access(path, F_OK) != 0;
}

/* ---- Starting the bridge ------------------------------------------------------------------ */

static int is_same_file(int one, int other) {
    struct stat first, second;
    return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static void configure(const struct fbc_workplace *workplace) {
    struct stat status = {0};
    fstat(workplace->journals, &status);
    struct fbc_shared_page *before = fbc_page();
    struct fbc_shared_page *now = before && is_same_file(workplace->tickets, fbc_folder.tickets)
                                      ? before /* the bridge has mapped it once more */
                                      : workplace->page;
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

/* ServerMode of firebird.conf; empty: it is not told. */
static void server_mode(char *mode, size_t size) {
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    struct fbi_firebird_conf *conf = manager->vt->get_firebird_conf(manager);
    unsigned key = conf ? conf->vt->get_key(conf, "ServerMode") : UINT_MAX;
    const char *told = key == UINT_MAX ? NULL : conf->vt->as_string(conf, key);
    snprintf(mode, size, "%s", told ? told : "");
    if (conf)
        conf->vt->release(conf);
}

static int is_mode(const char *one, const char *other) {
    char mode[32];
    server_mode(mode, sizeof mode);
    return strcasecmp(mode, one) == 0 || strcasecmp(mode, other) == 0;
}

/* Tell whether each connection has a process of its own, by firebird.conf. */
static int is_classic(void) {
    static atomic_int known; /* 1: no, 2: yes */
    if (!known)
        known = is_mode("Classic", "MultiProcess") ? 2 : 1;
    return known == 2;
}

static void store_definition(uint32_t id, uint64_t generation, const char *shown,
                             size_t shown_length, const char *complete, size_t length) {
    struct fbc_database *database = fbc_database_by_id(id);
    fbc_catalogue_store(id, generation, shown, shown_length, complete, length);
    if (database && is_classic())
        fbc_definition_keep(database, generation, shown, shown_length, complete, length);
}

static int joined(struct fbc_workplace *workplace) {
    *workplace = host.place;
    return host.is_joined;
}

static int sync_file_system(int fd) {
    return syncfs(fd) == 0 ? 0 : -errno;
}

static int start_bridge(const struct fbc_settings *settings, struct fbc_error *error) {
    static struct fbc_host_api api = {
        .size = sizeof api,
        .version = FBC_BRIDGE_ABI,
        .configure = configure,
        .last_ticket = fbc_tickets_last,
        .take_events = fbc_events_take,
        .settle = fbc_events_settle,
        .read_gap = fbc_gaps_read,
        .clear_gap = fbc_gaps_clear,
        .database_path = fbc_database_path,
        .database_guid = fbc_database_guid,
        .attachment_open = fbc_own_attachment_open,
        .attachment_ask = fbc_own_attachment_ask,
        .attachment_begin_reading = fbc_own_attachment_begin_reading,
        .attachment_end_reading = fbc_own_attachment_end_reading,
        .attachment_describe = fbc_own_attachment_describe,
        .attachment_select = fbc_own_attachment_select,
        .attachment_free = fbc_own_attachment_free,
        .attachment_close = fbc_own_attachment_close,
        .reading_attach = fbc_reading_attach,
        .reading_stand = fbc_reading_stand,
        .reading_detach = fbc_reading_detach,
        .reading_cancel = fbc_reading_cancel,
        .reading_begin = fbc_reading_begin,
        .reading_end = fbc_reading_end,
        .reading_info = fbc_reading_info,
        .reading_prepare = fbc_reading_prepare,
        .reading_open = fbc_reading_open,
        .reading_fetch = fbc_reading_fetch,
        .reading_free = fbc_reading_free,
        .reading_open_blob = fbc_reading_open_blob,
        .reading_blob_piece = fbc_reading_blob_piece,
        .reading_blob_length = fbc_reading_blob_length,
        .reading_close_blob = fbc_reading_close_blob,
        .store_definition = store_definition,
        .take_questions = fbc_question_take,
        .answer_question = fbc_question_answer,
        .sync_file_system = sync_file_system,
        .new_generation = fbc_new_generation,
        .spawn = fbc_spawn,
        .limit_disk = fbc_disk_limit,
        .measure_disk = fbc_folder_measure,
        .fail = fail,
        .count_prepared = fbc_tickets_held,
        .joined = joined,
    };
    if (is_classic())
        memcpy(api.plugin, fbc_join_plugin(), sizeof api.plugin);
    api.is_super = is_mode("Super", "ThreadedDedicated");
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

/* With the lock: start the bridge, unless that was tried just now. */
static void start(const struct fbc_settings *settings) {
    int64_t now = fbc_now_us();
    if (now - host.tried_us <= RETRY_MS * 1000 && now >= host.tried_us)
        return;
    if (host.is_joined)
        fbc_events_end_unheard();
    int done = start_bridge(settings, &host.reason);
    host.tried_us = fbc_now_us();
    if (done) {
        host.is_suspended = 0;
        host.is_joined = 0;
        if (is_classic())
            fbc_calls_listen();
    } else if (host.is_joined)
        fbc_events_begin_unheard();
    atomic_store_explicit(&host.ready, done, memory_order_release);
}

/* ---- Without a bridge, where others confirm ------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_there; /* of a bridge */
} need = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void init_need(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&need.changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void fbc_host_want_bridge(void) {
    pthread_mutex_lock(&need.lock);
    need.is_there = 1;
    pthread_cond_signal(&need.changed);
    pthread_mutex_unlock(&need.lock);
}

static int await_need(int timeout_ms) {
    struct timespec until = fbc_monotonic_in(timeout_ms);
    pthread_mutex_lock(&need.lock);
    while (!need.is_there)
        if (pthread_cond_timedwait(&need.changed, &need.lock, &until) == ETIMEDOUT)
            break;
    int is_there = need.is_there;
    pthread_mutex_unlock(&need.lock);
    return is_there;
}

/* The thread fbc-bridge: gives this process its own bridge once it has lived for a while, so that
 * who confirms may end, or earlier if something needs one. Never when nobody is connected: the
 * process is about to end then. */
static void *start_later(void *unused) {
    enum { LOOK_MS = 250, LATER_MS = 3000 };
    static const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    (void)unused;
    uint64_t since = fbc_monotonic_ms();
    while (host.is_joined) {
        int is_needed = await_need(LOOK_MS) || fbc_join_confirmers() == FBC_NOBODY;
        if (!is_needed && fbc_monotonic_ms() - since < LATER_MS)
            continue;
        pthread_mutex_lock(&host.start_lock);
        int was_ready = host.ready;
        if (host.is_joined && fbc_sessions() && !host.master->vt->get_process_exiting(host.master))
            start(host.settings);
        if (host.is_joined && was_ready && !is_needed) /* who confirms goes on doing so */
            host.ready = 1;
        pthread_mutex_unlock(&host.start_lock);
        if (host.is_joined)
            nanosleep(&pause, NULL);
    }
    return NULL;
}

/* With the lock. Returns 0 if this process needs a bridge from the beginning. */
static int join(const struct fbc_settings *settings) {
    char config[8192];
    uint64_t most_bytes;
    if (host.tried_us || fbc_has_folder() || !is_classic() || !connector_file_is_certain(settings))
        return 0;
    connector_file(settings, config, sizeof config);
    if (!fbc_join(config, host.path, sizeof host.path, &host.place, &most_bytes))
        return 0;
    configure(&host.place);
    fbc_disk_limit(most_bytes);
    host.settings = settings;
    fbc_events_begin_unheard();
    host.is_joined = 1;
    FBC_FAILPOINT("join.done");
    return fbc_thread_start_large("fbc-bridge", start_later) == 0;
}

int fbc_host_is_joined(void) {
    return host.is_joined;
}

int fbc_host_need_bridge(const struct fbc_settings *settings, struct fbc_error *error) {
    if (!host.is_joined)
        return FBC_OK;
    pthread_mutex_lock(&host.start_lock);
    if (host.is_joined)
        start(settings);
    int is_there = !host.is_joined;
    if (!is_there)
        *error = host.reason;
    pthread_mutex_unlock(&host.start_lock);
    return is_there ? FBC_OK : FBC_FAILED;
}

/* With a limit, as the thread may have been ended together with the program's own Python. */
void fbc_host_await_start(void) {
    enum { PATIENCE_S = 5 };
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE_S;
    if (pthread_mutex_clocklock(&host.start_lock, CLOCK_MONOTONIC, &until) == 0)
        pthread_mutex_unlock(&host.start_lock);
}

/* Tell whether there is still no bridge. */
static int stays_joined(void) {
    if (!fbc_sessions())
        fbc_host_await_start();
    return host.is_joined;
}

int fbc_host_await_others(const struct fbc_settings *settings, int timeout_ms) {
    enum { FOLLOWED_MS = 200, SILENT_MS = 1200 };
    static const struct timespec pause = {.tv_nsec = 1000000};
    struct fbc_error ignored;
    uint64_t since = fbc_monotonic_ms();
    while (host.is_joined) {
        enum fbc_unheard left = fbc_events_unheard();
        int waited = (int)(fbc_monotonic_ms() - since);
        if (left == FBC_NOTHING_UNHEARD || waited > timeout_ms)
            return stays_joined();
        enum fbc_confirmers confirmers =
            left == FBC_BRIDGE_NEEDED ? FBC_NOBODY : fbc_join_confirmers();
        int is_late = waited > FOLLOWED_MS;
        if (is_late && confirmers == FBC_BRIDGE && fbc_page()->undecided)
            return stays_joined(); /* it is looked at, and waits for what may take long */
        if (confirmers == FBC_NOBODY || (is_late && confirmers == FBC_SHIPPER_ALONE) ||
            (waited > SILENT_MS && fbc_monotonic_ms() - fbc_page()->heartbeat_ms > SILENT_MS))
            return !fbc_host_need_bridge(settings, &ignored);
        nanosleep(&pause, NULL);
    }
    return 0;
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
    if (!host.ready && join(settings))
        atomic_store_explicit(&host.ready, 1, memory_order_release);
    else if (!host.ready)
        start(settings);
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

void fbc_host_suspend_capture(const struct fbc_error *error) {
    fbc_host_fail(error);
    host.is_suspended = 1;
}

int fbc_host_resume_capture(const struct fbc_settings *settings, struct fbc_error *error) {
    return !host.is_suspended || fbc_host_ready(settings, error);
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

int fbc_host_mode_is_gap(const struct fbc_settings *settings) {
    char path[8192], mode[32];
    if (host.ready)
        return host.mode_is_gap;
    connector_file(settings, path, sizeof path);
    if (!fbc_policy_option(path, "connector.capture.failure.mode", mode, sizeof mode))
        return host.mode_is_gap; /* as it was when the bridge ran; else refuse */
    return strcmp(mode, "gap") == 0;
}

int fbc_host_engine_propagates_errors(struct fbc_database *database) {
    enum { DIRECTORY_CONF = 2 }; /* IConfigManager::DIR_CONF */
    struct fbi_config_manager *manager = host.master->vt->get_config_manager(host.master);
    const char *directory = manager->vt->get_directory(manager, DIRECTORY_CONF);
    char path[8192];
    if (!directory || !*directory)
        directory = root_directory();
    snprintf(path, sizeof path, "%s/replication.conf", directory);
    enum fbc_errors are = fbc_policy_errors(path, root_directory(), database->path);
    if (are == FBC_ERRORS_IGNORED)
        database->ignores_errors = 1;
    else if (are == FBC_ERRORS_HEEDED)
        database->heeds_errors = 1;
    return database->heeds_errors && !database->ignores_errors;
}

void fbc_host_tell(const char *text) {
    if (!host.ready || host.is_joined)
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
