/* The databases that sessions of this process write in; see databases.h. */
#define _GNU_SOURCE
#include "databases.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "events.h"
#include "shared_journal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fbc_database *databases;

struct fbc_database *fbc_databases_lock(void) {
    pthread_mutex_lock(&lock);
    return databases;
}

void fbc_databases_unlock(void) {
    pthread_mutex_unlock(&lock);
}

/* Called with the databases locked, so that the bridge hears of coming and going in their order. */
static void tell_of(const struct fbc_database *database, uint32_t kind) {
    fbc_events_hand_over(&(struct fbc_event){.kind = kind, .database = database->id, .fd = -1});
}

struct fbc_database *fbc_database_enter(const char *path, const unsigned char *guid,
                                        struct fbc_error *error) {
    pthread_mutex_lock(&lock);
    struct fbc_database *database = databases;
    while (database && (strcmp(database->path, path) != 0 || memcmp(database->guid, guid, 16) != 0))
        database = database->next;
    if (!database && (database = calloc(1, sizeof *database))) {
        database->id = databases ? databases->id + 1 : 1;
        snprintf(database->path, sizeof database->path, "%s", path);
        memcpy(database->guid, guid, 16);
        database->next = databases;
        databases = database;
    }
    if (!database)
        fbc_error_set(error, 0, "no memory");
    else if (!database->sessions++)
        tell_of(database, FBC_DATABASE_SEEN);
    pthread_mutex_unlock(&lock);
    return database;
}

void fbc_database_leave(struct fbc_database *database) {
    pthread_mutex_lock(&lock);
    int is_last = !--database->sessions;
    if (is_last)
        tell_of(database, FBC_DATABASE_LEFT);
    pthread_mutex_unlock(&lock);
    if (is_last)
        fbc_shared_spare(database);
}

uint64_t fbc_database_key(const struct fbc_database *database) {
    uint32_t path = fbc_crc32c(0, database->path, strlen(database->path));
    return (uint64_t)path << 32 | fbc_crc32c(path, database->guid, 16) | 1;
}

struct fbc_tally *fbc_database_tally(struct fbc_database *database) {
    if (!database)
        return fbc_counters_of("", NULL);
    struct fbc_tally *known = atomic_load_explicit(&database->tally, memory_order_relaxed);
    struct fbc_tally *tally = fbc_counters_of(database->path, known);
    if (tally != known)
        atomic_store_explicit(&database->tally, tally, memory_order_relaxed);
    return tally;
}

struct fbc_database *fbc_database_by_id(uint32_t id) {
    pthread_mutex_lock(&lock);
    struct fbc_database *database = databases;
    while (database && database->id != id)
        database = database->next;
    pthread_mutex_unlock(&lock);
    return database;
}

const char *fbc_database_path(uint32_t id) {
    struct fbc_database *database = fbc_database_by_id(id);
    return database ? database->path : "";
}

const unsigned char *fbc_database_guid(uint32_t id) {
    static const unsigned char unknown[16];
    struct fbc_database *database = fbc_database_by_id(id);
    return database ? database->guid : unknown;
}
