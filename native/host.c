/* The plugin's side of the border to the bridge: pool, events, databases; see host.h. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "catalogue.h"
#include "crc32c.h"
#include "failpoint.h"
#include "policy.h"
#include "pool.h"
#include "threads.h"
#include "witness.h"

enum {
    MOST_OPEN_EVENTS = 256, /* descriptors that wait for the bridge; beyond, it opens by name */
    RETRY_MS = 1000,
    GENERATIONS_AHEAD = 1 << 16, /* as journal/folder/journal_folder.py */
    SILENCE_MS = 1000 /* a bridge that does not call for so long is not working on anything */
};

enum { /* the shared counters; those between are the bridge's */
       TICKETS = 0,
       GENERATION = 2,
       TABLE_DDL = 5,    /* ticket of the last DDL of tables, */
       TABLE_DDL_MS = 6, /* and when that was, by CLOCK_MONOTONIC */
       DESCRIBED = 7,    /* up to which ticket such DDL is described, or can't be */
       AWAITED = 8,      /* ticket of such DDL that a transaction waits for, in prepare */
       TABLE_DDL_AT = 9, /* key of the database of the last one */
       RETIRED = 13      /* not 0: the file has lost its name, see fbc_host_hold_tickets */
};

/* Gaps that are counted in the shared page, so that they outlive a process. */
enum { SLOTS_AT = 1024, SLOTS_END = FBC_SHARED_BYTES };
struct gap_slot {
    uint64_t database; /* its key; 0: the slot is free */
    uint64_t count;
    int64_t first_us, last_us;
};
enum { SLOTS = (SLOTS_END - SLOTS_AT) / sizeof(struct gap_slot) };

struct event_node {
    struct event_node *next;
    struct fbc_event event;
};

static struct {
    struct fbi_master *master;

    pthread_mutex_t start_lock; /* one start at a time; taken before any other lock */
    atomic_int ready;
    atomic_int distrusted; /* a sync failed after prepare; until a start works */
    int64_t tried_us;
    struct fbc_error reason;
    fbc_bridge_start_function start;

    pthread_rwlock_t folder_lock; /* the descriptors below, changed by a new start only */
    int journal_directory, pool_directory, fsync, gap;
    char journal_path[4096];
    dev_t journal_device;
    ino_t journal_inode;
    unsigned char owner[16];
    pthread_mutex_t ticket_lock; /* with flock on tickets_fd: against other processes */
    _Atomic(uint64_t) *shared;   /* counters: TICKETS and others */
    int tickets_fd;
    atomic_int prepared; /* transactions that may draw a ticket without asking again */

    pthread_mutex_t event_lock;
    pthread_cond_t event_added, event_settled;
    struct event_node *first, *last;
    int open_events;
    uint64_t handed_over, settled;
    uint64_t lost;  /* number of the last event that there was no memory for */
    uint64_t calls; /* of the bridge for events: it is alive */

    pthread_mutex_t database_lock;
    struct fbc_database *databases;
} host = {
    .start_lock = PTHREAD_MUTEX_INITIALIZER,
    .folder_lock = PTHREAD_RWLOCK_INITIALIZER,
    .journal_directory = -1,
    .ticket_lock = PTHREAD_MUTEX_INITIALIZER,
    .tickets_fd = -1,
    .event_lock = PTHREAD_MUTEX_INITIALIZER,
    .database_lock = PTHREAD_MUTEX_INITIALIZER,
};

int64_t fbc_now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void fbc_host_init(struct fbi_master *master) {
    pthread_condattr_t attributes;
    host.master = master;
    fbc_witness_init(master);
    fbc_catalogue_init();
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&host.event_added, &attributes);
    pthread_cond_init(&host.event_settled, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct fbi_status *fbc_host_new_status(void) {
    return host.master->vt->get_status(host.master);
}

/* ---- What the bridge calls ---------------------------------------------------------------- */

static void lock_file(int fd) {
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
}

/* Keep every thread of every process from drawing tickets, and the folder from changing. */
static void lock_tickets(void) {
    pthread_rwlock_rdlock(&host.folder_lock);
    pthread_mutex_lock(&host.ticket_lock);
    lock_file(host.tickets_fd);
}

static void unlock_tickets(void) {
    flock(host.tickets_fd, LOCK_UN);
    pthread_mutex_unlock(&host.ticket_lock);
    pthread_rwlock_unlock(&host.folder_lock);
}

static struct fbc_database *database_by_id(uint32_t id) {
    pthread_mutex_lock(&host.database_lock);
    struct fbc_database *database = host.databases;
    while (database && database->id != id)
        database = database->next;
    pthread_mutex_unlock(&host.database_lock);
    return database;
}

/* ---- Gaps --------------------------------------------------------------------------------- */

static uint64_t key_of(const struct fbc_database *database) {
    uint32_t path = fbc_crc32c(0, database->path, strlen(database->path));
    return (uint64_t)path << 32 | fbc_crc32c(path, database->guid, 16) | 1;
}

static struct gap_slot *slots(void) {
    return (struct gap_slot *)((char *)host.shared + SLOTS_AT);
}

/* The slot of the database KEY; a free one if IS_WANTED says so. Called with the tickets locked. */
static struct gap_slot *slot_with(uint64_t key, int is_wanted) {
    struct gap_slot *vacant = NULL;
    for (unsigned i = 0; i < SLOTS; i++) {
        if (slots()[i].database == key)
            return &slots()[i];
        if (!slots()[i].database && !vacant)
            vacant = &slots()[i];
    }
    if (!is_wanted || !vacant)
        return NULL;
    *vacant = (struct gap_slot){.database = key};
    return vacant;
}

static struct gap_slot *slot_of(const struct fbc_database *database, int is_wanted) {
    return slot_with(key_of(database), is_wanted);
}

static void add_slot(struct fbc_gap *gap, const struct gap_slot *slot) {
    if (!gap->count || slot->first_us < gap->first_us)
        gap->first_us = slot->first_us;
    if (slot->last_us > gap->last_us)
        gap->last_us = slot->last_us;
    gap->count += slot->count;
}

/* Wait until what was counted in the page is on disk, as journals are. Tickets may be drawn
 * meanwhile. Where that fails the page is still the best place: it outlives this process. */
static void sync_page(void) {
    pthread_rwlock_rdlock(&host.folder_lock);
    int reason = host.fsync && msync(host.shared, FBC_SHARED_BYTES, MS_SYNC) != 0 ? errno : 0;
    pthread_rwlock_unlock(&host.folder_lock);
    if (reason) {
        struct fbc_error error;
        fbc_error_set(&error, reason,
                      "the count of gaps in .firebird-cdc/tickets of connector.journal.directory "
                      "can't be synced: a power cut may take it back");
        fbc_policy_tell(error.text);
    }
}

/* Take what is counted out of the page of now, into TAKEN; return how many slots were in use. */
static unsigned take_slots(struct gap_slot taken[SLOTS]) {
    unsigned count = 0;
    lock_file(host.tickets_fd);
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots()[i].database) {
            taken[count++] = slots()[i];
            slots()[i].database = 0;
        }
    flock(host.tickets_fd, LOCK_UN);
    return count;
}

/* Add COUNT slots that were TAKEN out of another page to the page of now, or to the databases where
 * that is full. Called with the databases locked. */
static void give_slots(const struct gap_slot taken[SLOTS], unsigned count) {
    lock_file(host.tickets_fd);
    for (unsigned i = 0; i < count; i++) {
        struct gap_slot *slot = slot_with(taken[i].database, 1);
        struct fbc_database *known = host.databases;
        while (!slot && known && key_of(known) != taken[i].database)
            known = known->next;
        if (slot) {
            struct fbc_gap sum = {
                .count = slot->count, .first_us = slot->first_us, .last_us = slot->last_us};
            add_slot(&sum, &taken[i]);
            slot->first_us = sum.first_us;
            slot->last_us = sum.last_us;
            slot->count = sum.count;
        } else if (known)
            add_slot(&known->gap, &taken[i]);
        else
            fbc_policy_tell("gaps of a database were counted that nothing has been captured from "
                            "since, and there is no room in .firebird-cdc/tickets to keep that");
    }
    flock(host.tickets_fd, LOCK_UN);
}

/* Have the bridge look what is counted of each database. Called with the databases locked. */
static void announce_gaps(void) {
    for (struct fbc_database *each = host.databases; each; each = each->next)
        fbc_host_hand_over(
            &(struct fbc_event){.kind = FBC_GAPS_COUNTED, .database = each->id, .fd = -1});
}

static int read_gap(uint32_t id, struct fbc_gap *gap) {
    struct fbc_database *database = database_by_id(id);
    if (!database || !host.shared)
        return 0;
    pthread_mutex_lock(&host.database_lock);
    lock_tickets();
    *gap = database->gap;
    struct gap_slot *slot = slot_of(database, 0);
    if (slot)
        add_slot(gap, slot);
    unlock_tickets();
    pthread_mutex_unlock(&host.database_lock);
    return gap->count != 0;
}

static void clear_gap(uint32_t id, const struct fbc_gap *gap) {
    struct fbc_database *database = database_by_id(id);
    uint64_t left = gap->count;
    if (!database || !host.shared)
        return;
    pthread_mutex_lock(&host.database_lock);
    lock_tickets();
    struct gap_slot *slot = slot_of(database, 0);
    uint64_t own = left < database->gap.count ? left : database->gap.count;
    database->gap.count -= own;
    database->gap.first_us = gap->last_us;
    left -= own;
    if (slot) {
        slot->count -= left < slot->count ? left : slot->count;
        slot->first_us = gap->last_us;
        if (!slot->count)
            slot->database = 0;
    }
    if (!database->gap.count && (!slot || !slot->count))
        database->gap.reason[0] = 0;
    unlock_tickets();
    pthread_mutex_unlock(&host.database_lock);
    if (slot)
        sync_page(); /* else a power cut brings the count back, and the gap is told twice */
}

void fbc_host_count_gap(struct fbc_database *database, const char *reason) {
    struct fbc_error ignored;
    int64_t now = fbc_now_us();
    int is_first = 0, is_counted = 0, in_folder = host.shared && fbc_host_folder_in_place(&ignored);
    pthread_mutex_lock(&host.database_lock);
    if (in_folder) {
        lock_tickets();
        struct gap_slot *slot = slot_of(database, 1);
        if (slot) {
            is_counted = 1;
            is_first = !slot->count++;
            slot->first_us = is_first ? now : slot->first_us;
            slot->last_us = now;
        }
        unlock_tickets();
    }
    if (!is_counted) {
        is_first = !database->gap.count++;
        database->gap.first_us = is_first ? now : database->gap.first_us;
        database->gap.last_us = now;
    }
    if (!database->gap.reason[0])
        snprintf(database->gap.reason, sizeof database->gap.reason, "%.255s", reason);
    pthread_mutex_unlock(&host.database_lock);
    if (is_counted)
        sync_page();
    if (is_first)
        fbc_host_hand_over(
            &(struct fbc_event){.kind = FBC_GAPS_COUNTED, .database = database->id, .fd = -1});
}

static void configure(const char *journal_path, int journal_directory, int pool_directory,
                      const unsigned char *owner, uint64_t *shared, int tickets_fd, int fsync,
                      int gap) {
    struct stat status = {0};
    fstat(journal_directory, &status);
    _Atomic(uint64_t) *before = host.shared, *now = (_Atomic(uint64_t) *)shared;
    struct gap_slot taken[SLOTS];
    unsigned taken_count = 0;
    int is_other = before && before != now;
    if (is_other &&
        now[GENERATION] <= before[GENERATION]) /* shapes remember of which one they are */
        now[GENERATION] = before[GENERATION] + GENERATIONS_AHEAD;
    mlock(shared, FBC_SHARED_BYTES); /* in memory to stay, if we may: no fault meets a bad disk */
    pthread_mutex_lock(&host.database_lock);
    pthread_rwlock_wrlock(&host.folder_lock);
    if (is_other) /* by any process: nobody may come to that page again */
        taken_count = take_slots(taken);
    snprintf(host.journal_path, sizeof host.journal_path, "%s", journal_path);
    host.journal_device = status.st_dev;
    host.journal_inode = status.st_ino;
    host.journal_directory = journal_directory;
    host.pool_directory = pool_directory;
    host.fsync = fsync;
    host.gap = gap;
    memcpy(host.owner, owner, 16);
    host.shared = now;
    host.tickets_fd = tickets_fd;
    give_slots(taken, taken_count);
    fbc_counters_use(journal_directory);
    fbc_pool_use(pool_directory, fsync);
    pthread_rwlock_unlock(&host.folder_lock);
    if (is_other)
        announce_gaps();
    pthread_mutex_unlock(&host.database_lock);
    if (taken_count)
        sync_page();
}

static void measure_disk(uint32_t if_older_ms, struct fbc_disk *disk) {
    pthread_rwlock_rdlock(&host.folder_lock);
    int folder = host.journal_directory;
    pthread_rwlock_unlock(&host.folder_lock);
    fbc_disk_measure(folder, if_older_ms, disk); /* descriptors of folders stay open */
}

static int take_events(struct fbc_event *to, int most, int timeout_ms) {
    struct timespec until = fbc_monotonic_in(timeout_ms);
    int taken = 0;
    pthread_mutex_lock(&host.event_lock);
    host.calls++;
    while (!host.first && !host.lost)
        if (pthread_cond_timedwait(&host.event_added, &host.event_lock, &until) == ETIMEDOUT)
            break;
    while (host.first && taken < most) {
        struct event_node *node = host.first;
        host.first = node->next;
        if (!host.first)
            host.last = NULL;
        host.open_events -= node->event.fd >= 0;
        to[taken++] = node->event;
        free(node);
    }
    if (host.lost && taken < most) { /* the journal is in the folder: have it looked for there */
        to[taken++] =
            (struct fbc_event){.kind = FBC_DEAD_TRANSACTIONS, .number = host.lost, .fd = -1};
        host.lost = 0;
    }
    pthread_mutex_unlock(&host.event_lock);
    return taken;
}

static void settle(uint64_t number) {
    pthread_mutex_lock(&host.event_lock);
    if (number > host.settled)
        host.settled = number;
    pthread_cond_broadcast(&host.event_settled);
    pthread_mutex_unlock(&host.event_lock);
}

static uint64_t last_ticket(void) {
    lock_tickets();
    uint64_t last = host.shared[TICKETS];
    unlock_tickets();
    return last;
}

static const char *database_path(uint32_t id) {
    struct fbc_database *database = database_by_id(id);
    return database ? database->path : "";
}

static const unsigned char *database_guid(uint32_t id) {
    static const unsigned char unknown[16];
    struct fbc_database *database = database_by_id(id);
    return database ? database->guid : unknown;
}

static void fail(const char *reason) {
    struct fbc_error error;
    fbc_error_set(&error, 0, "%s", reason);
    fbc_host_fail(&error);
}

static int count_prepared(void) {
    return host.prepared;
}

static int sync_file_system(int fd) {
    return syncfs(fd) == 0 ? 0 : -errno;
}

/* ---- Starting the bridge ------------------------------------------------------------------ */

static int start_bridge(const struct fbc_settings *settings, struct fbc_error *error) {
    static struct fbc_host_api api = {
        .size = sizeof api,
        .version = 1,
        .configure = configure,
        .last_ticket = last_ticket,
        .take_events = take_events,
        .settle = settle,
        .read_gap = read_gap,
        .clear_gap = clear_gap,
        .database_path = database_path,
        .database_guid = database_guid,
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
        .new_generation = fbc_host_new_generation,
        .spawn = fbc_spawn,
        .limit_disk = fbc_disk_limit,
        .measure_disk = measure_disk,
        .fail = fail,
        .count_prepared = count_prepared,
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

/* Tell whether the journal folder's path still leads to the folder of now. */
static int is_folder_in_place(struct fbc_error *error) {
    struct stat now;
    pthread_rwlock_rdlock(&host.folder_lock);
    int failed = stat(host.journal_path, &now) != 0;
    int reason = failed ? errno : 0;
    int in_place = !failed && now.st_dev == host.journal_device && now.st_ino == host.journal_inode;
    if (!in_place)
        fbc_error_set(error, reason, "connector.journal.directory %s was %s while the server runs",
                      host.journal_path, failed ? "removed" : "replaced");
    pthread_rwlock_unlock(&host.folder_lock);
    return in_place;
}

static int has_retired_tickets(struct fbc_error *error) {
    if (!host.shared || !host.shared[RETIRED])
        return 0;
    if (!is_folder_in_place(error)) /* they went with it */
        return 1;
    pthread_rwlock_rdlock(&host.folder_lock);
    fbc_error_set(error, 0,
                  "%.300s/.firebird-cdc/tickets was removed or replaced while the server runs; "
                  "transactions that began before are refused, later ones use the file that is "
                  "there now. Leave the files in that folder alone",
                  host.journal_path);
    pthread_rwlock_unlock(&host.folder_lock);
    return 1;
}

int fbc_host_ready(const struct fbc_settings *settings, struct fbc_error *error) {
    struct fbc_error why;
    if (atomic_load_explicit(&host.ready, memory_order_acquire) && !has_retired_tickets(&why))
        return FBC_OK;
    pthread_mutex_lock(&host.start_lock);
    if (host.ready && has_retired_tickets(&why)) {
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

int fbc_host_has_folder(void) {
    return host.journal_directory >= 0;
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
        return host.gap;
    connector_file(settings, path, sizeof path);
    if (!fbc_policy_option(path, "connector.capture.failure.mode", mode, sizeof mode))
        return host.gap; /* as it was when the bridge ran; else refuse */
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

int fbc_host_folder_in_place(struct fbc_error *error) {
    int in_place = is_folder_in_place(error);
    if (!in_place)
        fbc_host_fail(error);
    return in_place;
}

int fbc_host_journal_in_place(int fd, const char *name, struct fbc_error *error) {
    struct stat own, named;
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    pthread_rwlock_rdlock(&host.folder_lock);
    int in_place = fstat(fd, &own) == 0 &&
                   fstatat(host.journal_directory, live, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                   own.st_dev == named.st_dev && own.st_ino == named.st_ino;
    if (!in_place)
        fbc_error_set(error, 0, "the journal %s is no longer in connector.journal.directory %s",
                      live, host.journal_path);
    pthread_rwlock_unlock(&host.folder_lock);
    return in_place;
}

/* ---- What sessions call ------------------------------------------------------------------- */

struct fbc_tally *fbc_host_tally(struct fbc_database *database) {
    if (!database)
        return fbc_counters_of("", NULL);
    struct fbc_tally *known = atomic_load_explicit(&database->tally, memory_order_relaxed);
    struct fbc_tally *tally = fbc_counters_of(database->path, known);
    if (tally != known)
        atomic_store_explicit(&database->tally, tally, memory_order_relaxed);
    return tally;
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
    pthread_rwlock_rdlock(&host.folder_lock);
    int in_place = fbc_counters_in_place(host.journal_path);
    pthread_rwlock_unlock(&host.folder_lock);
    if (in_place) {
        fbc_count_failure(fbc_host_tally(database), kind);
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

int fbc_host_has_room(uint64_t own, struct fbc_error *error) {
    pthread_rwlock_rdlock(&host.folder_lock);
    int has_room = fbc_disk_has_room(host.journal_directory, host.journal_path, own, error);
    pthread_rwlock_unlock(&host.folder_lock);
    return has_room;
}

/* Called with the databases locked, so that the bridge hears of coming and going in their order. */
static void tell_of(const struct fbc_database *database, uint32_t kind) {
    fbc_host_hand_over(&(struct fbc_event){.kind = kind, .database = database->id, .fd = -1});
}

struct fbc_database *fbc_host_enter(const char *path, const unsigned char *guid,
                                    struct fbc_error *error) {
    pthread_mutex_lock(&host.database_lock);
    struct fbc_database *database = host.databases;
    while (database && (strcmp(database->path, path) != 0 || memcmp(database->guid, guid, 16) != 0))
        database = database->next;
    if (!database && (database = calloc(1, sizeof *database))) {
        database->id = host.databases ? host.databases->id + 1 : 1;
        snprintf(database->path, sizeof database->path, "%s", path);
        memcpy(database->guid, guid, 16);
        database->next = host.databases;
        host.databases = database;
    }
    if (!database)
        fbc_error_set(error, 0, "no memory");
    else if (!database->sessions++)
        tell_of(database, FBC_DATABASE_SEEN);
    pthread_mutex_unlock(&host.database_lock);
    return database;
}

void fbc_host_leave(struct fbc_database *database) {
    pthread_mutex_lock(&host.database_lock);
    if (!--database->sessions)
        tell_of(database, FBC_DATABASE_LEFT);
    pthread_mutex_unlock(&host.database_lock);
}

/* Create a journal with a random name in FOLDER. */
static int create_journal(int folder, struct fbc_pooled *journal, struct fbc_error *error) {
    char live[64];
    int reason = fbc_pool_name(journal);
    if (reason) {
        fbc_error_set(error, reason, "no random bytes for a journal's name");
        return -1;
    }
    snprintf(live, sizeof live, "%s.log.live", journal->name);
    int fd = openat(folder, live, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    reason = fd < 0 ? errno : 0;
    if (fd >= 0 && host.fsync && fsync(folder) != 0) {
        reason = errno;
        unlinkat(folder, live, 0);
        close(fd);
        fd = -1;
    }
    if (fd < 0)
        fbc_error_set(error, reason, "cannot create the journal %s in connector.journal.directory",
                      live);
    return fd;
}

/* Give the journal from the pool its name; -1: that can't be done. */
static int open_pooled(const struct fbc_pooled *journal) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", journal->name);
    FBC_FAILPOINT("take.before");
    if (renameat(host.pool_directory, journal->name, host.journal_directory, live) != 0)
        return -1;
    int fd = openat(host.journal_directory, live, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        unlinkat(host.journal_directory, live, 0);
    return fd;
}

int fbc_host_take_journal(char name[40], unsigned char uuid[16], struct fbc_error *error) {
    struct fbc_pooled journal;
    int fd = -1;
    pthread_rwlock_rdlock(&host.folder_lock);
    if (fbc_pool_take(&journal))
        fd = open_pooled(&journal);
    if (fd < 0)
        fd = create_journal(host.journal_directory, &journal, error);
    pthread_rwlock_unlock(&host.folder_lock);
    if (fd < 0) {
        fbc_host_fail(error);
        return -1;
    }
    FBC_FAILPOINT("take.after");
    fbc_disk_grow(FBC_POOL_BYTES); /* what is in the pool does not count */
    memcpy(name, journal.name, 40);
    memcpy(uuid, journal.uuid, 16);
    return fd;
}

int fbc_host_make_ownerless(const struct fbc_settings *settings, char name[40],
                            unsigned char uuid[16], int *folder, struct fbc_error *error) {
    char file[8192], path[4096];
    connector_file(settings, file, sizeof file);
    *folder = -1;
    if (!fbc_policy_option(file, "connector.journal.directory", path, sizeof path) ||
        *path != '/') {
        fbc_error_set(error, 0, "no connector.journal.directory is found in %.300s", file);
        return -1;
    }
    *folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*folder < 0) {
        fbc_error_set(error, errno, "cannot open connector.journal.directory %.300s", path);
        return -1;
    }
    struct fbc_pooled journal;
    int fd = create_journal(*folder, &journal, error);
    if (fd < 0) {
        close(*folder);
        *folder = -1;
        return -1;
    }
    memcpy(name, journal.name, 40);
    memcpy(uuid, journal.uuid, 16);
    return fd;
}

int fbc_host_is_folder(int folder) {
    struct stat status;
    pthread_rwlock_rdlock(&host.folder_lock);
    int same = host.ready && fstat(folder, &status) == 0 && status.st_dev == host.journal_device &&
               status.st_ino == host.journal_inode;
    pthread_rwlock_unlock(&host.folder_lock);
    return same;
}

int fbc_host_discard_journal(const char *name, int durably) {
    char live[64];
    snprintf(live, sizeof live, "%s.log.live", name);
    pthread_rwlock_rdlock(&host.folder_lock);
    unlinkat(host.journal_directory, live, 0);
    /* without the second one a power cut may take it back into the pool */
    int is_done =
        !durably || (fsync(host.journal_directory) == 0 && fsync(host.pool_directory) == 0);
    pthread_rwlock_unlock(&host.folder_lock);
    return is_done;
}

uint64_t fbc_host_hand_over(const struct fbc_event *event) {
    struct event_node *node = malloc(sizeof *node);
    pthread_mutex_lock(&host.event_lock);
    uint64_t number = ++host.handed_over;
    if (node) {
        node->next = NULL;
        node->event = *event;
        node->event.number = number;
        if (event->fd >= 0 && host.open_events >= MOST_OPEN_EVENTS) {
            close(event->fd);
            node->event.fd = -1;
        }
        host.open_events += node->event.fd >= 0;
        if (host.last)
            host.last->next = node;
        else {
            host.first = node;
            pthread_cond_signal(&host.event_added);
        }
        host.last = node;
    } else {
        if (event->fd >= 0)
            close(event->fd);
        host.lost = number;
        pthread_cond_signal(&host.event_added);
    }
    pthread_mutex_unlock(&host.event_lock);
    return number;
}

void fbc_host_await_settled(uint64_t number, int timeout_ms) {
    pthread_mutex_lock(&host.event_lock);
    uint64_t calls = host.calls;
    for (int waited = 0; host.settled < number && waited < timeout_ms; waited += SILENCE_MS) {
        struct timespec until = fbc_monotonic_in(SILENCE_MS);
        while (host.settled < number)
            if (pthread_cond_timedwait(&host.event_settled, &host.event_lock, &until) == ETIMEDOUT)
                break;
        if (host.calls == calls) /* its threads ended with the interpreter, or hang */
            break;
        calls = host.calls;
    }
    pthread_mutex_unlock(&host.event_lock);
}

/* First counted, then asked: who retires the file and then counts misses nobody. */
int fbc_host_hold_tickets(struct fbc_error *error) {
    atomic_fetch_add(&host.prepared, 1);
    if (!has_retired_tickets(error))
        return FBC_OK;
    fbc_host_release_tickets();
    return FBC_FAILED;
}

void fbc_host_release_tickets(void) {
    atomic_fetch_sub(&host.prepared, 1);
}

static uint64_t monotonic_ms(void) {
    struct timespec now = fbc_monotonic_in(0);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t fbc_host_begin_commit(struct fbc_database *database, int changes_tables) {
    lock_tickets();
    uint64_t ticket = ++host.shared[TICKETS];
    if (changes_tables) {
        host.shared[TABLE_DDL_MS] = monotonic_ms();
        host.shared[TABLE_DDL_AT] = key_of(database);
        host.shared[TABLE_DDL] = ticket;
        database->table_ddl = ticket;
    }
    return ticket;
}

static uint64_t last_table_ddl(const struct fbc_database *database) {
    uint64_t last = database->table_ddl;
    if (host.shared[TABLE_DDL_AT] == key_of(database) && host.shared[TABLE_DDL] > last)
        last = host.shared[TABLE_DDL];
    return last;
}

void fbc_host_await_described(const struct fbc_database *database, int also_later,
                              int patience_ms) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t patience = (uint64_t)patience_ms;
    if (!host.shared)
        return; /* what was shared once stays so */
    uint64_t since = monotonic_ms(), last = last_table_ddl(database);
    for (uint64_t now = since;
         now - since < patience && now - host.shared[TABLE_DDL_MS] < patience &&
         host.shared[DESCRIBED] < last;
         now = monotonic_ms()) {
        host.shared[AWAITED] = last;
        nanosleep(&pause, NULL);
        if (also_later)
            last = last_table_ddl(database);
    }
}

void fbc_host_end_commit(void) {
    unlock_tickets();
}

uint32_t fbc_host_floor(void) {
    return host.shared
               ? (uint32_t)atomic_load_explicit(&host.shared[TICKETS], memory_order_relaxed) + 1
               : 0;
}

const unsigned char *fbc_host_owner(void) {
    return host.owner;
}

int fbc_host_fsync(void) {
    return host.fsync;
}

uint64_t fbc_host_generation(void) {
    return host.shared[GENERATION];
}

void fbc_host_new_generation(void) {
    if (host.shared) /* else nobody has read anything yet */
        host.shared[GENERATION]++;
}
