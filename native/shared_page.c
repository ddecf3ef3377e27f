/* Tickets and the generation of the system tables, in the page that all processes share. */
#define _GNU_SOURCE
#include "shared_page.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <time.h>

#include "databases.h"
#include "folder.h"
#include "threads.h"

static pthread_mutex_t ticket_lock = PTHREAD_MUTEX_INITIALIZER; /* and flock: other processes */
static atomic_int held; /* transactions that may draw a ticket without asking again */

struct fbc_shared_page *fbc_page(void) {
    return fbc_folder.page;
}

void fbc_tickets_lock(void) {
    fbc_folder_hold();
    pthread_mutex_lock(&ticket_lock);
    fbc_lock_file(fbc_folder.tickets);
}

void fbc_tickets_unlock(void) {
    flock(fbc_folder.tickets, LOCK_UN);
    pthread_mutex_unlock(&ticket_lock);
    fbc_folder_release();
}

int fbc_tickets_are_retired(struct fbc_error *error) {
    if (!fbc_page() || !fbc_page()->is_retired)
        return 0;
    if (!fbc_folder_is_in_place(error)) /* they went with it */
        return 1;
    fbc_folder_hold();
    fbc_error_set(error, 0,
                  "%.300s/.firebird-cdc/tickets was removed or replaced while the server runs; "
                  "transactions that began before are refused, later ones use the file that is "
                  "there now. Leave the files in that folder alone",
                  fbc_folder.path);
    fbc_folder_release();
    return 1;
}

/* First counted, then asked: who retires the file and then counts misses nobody. */
int fbc_tickets_hold(struct fbc_error *error) {
    atomic_fetch_add(&held, 1);
    if (!fbc_tickets_are_retired(error))
        return FBC_OK;
    fbc_tickets_release();
    return FBC_FAILED;
}

void fbc_tickets_release(void) {
    atomic_fetch_sub(&held, 1);
}

int fbc_tickets_held(void) {
    return held;
}

uint64_t fbc_tickets_begin_commit(struct fbc_database *database, int changes_tables) {
    fbc_tickets_lock();
    struct fbc_shared_page *page = fbc_page();
    uint64_t ticket = ++page->ticket;
    if (changes_tables) {
        page->table_ddl_ms = fbc_monotonic_ms();
        page->table_ddl_database = fbc_database_key(database);
        page->table_ddl = ticket;
        database->table_ddl = ticket;
    }
    return ticket;
}

void fbc_tickets_end_commit(void) {
    fbc_tickets_unlock();
}

uint64_t fbc_tickets_last(void) {
    fbc_tickets_lock();
    uint64_t last = fbc_page()->ticket;
    fbc_tickets_unlock();
    return last;
}

uint64_t fbc_tickets_next(void) {
    struct fbc_shared_page *page = fbc_page();
    return page ? atomic_load_explicit(&page->ticket, memory_order_relaxed) + 1 : 0;
}

static uint64_t last_table_ddl(const struct fbc_database *database) {
    struct fbc_shared_page *page = fbc_page();
    uint64_t last = database->table_ddl;
    if (page->table_ddl_database == fbc_database_key(database) && page->table_ddl > last)
        last = page->table_ddl;
    return last;
}

void fbc_await_described(const struct fbc_database *database, int also_later, int patience_ms) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t patience = (uint64_t)patience_ms;
    if (!fbc_page())
        return; /* what was shared once stays so */
    uint64_t since = fbc_monotonic_ms(), last = last_table_ddl(database);
    for (uint64_t now = since;
         now - since < patience && now - fbc_page()->table_ddl_ms < patience &&
         fbc_page()->described < last;
         now = fbc_monotonic_ms()) {
        fbc_page()->awaited = last;
        nanosleep(&pause, NULL);
        if (also_later)
            last = last_table_ddl(database);
    }
}

uint64_t fbc_generation(void) {
    return fbc_page()->generation;
}

void fbc_new_generation(void) {
    if (fbc_page()) /* else nobody has read anything yet */
        fbc_page()->generation++;
}
