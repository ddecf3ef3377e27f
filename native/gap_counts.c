/* Gaps that no journal marks; see gap_counts.h. */
#define _GNU_SOURCE
#include "gap_counts.h"

#include <errno.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>

#include "events.h"
#include "folder.h"
#include "host.h"
#include "policy.h"

enum { SLOTS = sizeof((struct fbc_shared_page *)0)->gaps / sizeof(struct fbc_gap_slot) };

/* The slot of the database KEY; a free one if IS_WANTED says so. Called with the tickets locked. */
static struct fbc_gap_slot *slot_with(uint64_t key, int is_wanted) {
    struct fbc_gap_slot *vacant = NULL, *slots = fbc_page()->gaps;
    for (unsigned i = 0; i < SLOTS; i++) {
        if (slots[i].database == key)
            return &slots[i];
        if (!slots[i].database && !vacant)
            vacant = &slots[i];
    }
    if (!is_wanted || !vacant)
        return NULL;
    *vacant = (struct fbc_gap_slot){.database = key};
    return vacant;
}

static struct fbc_gap_slot *slot_of(const struct fbc_database *database, int is_wanted) {
    return slot_with(fbc_database_key(database), is_wanted);
}

static void add_slot(struct fbc_gap *gap, const struct fbc_gap_slot *slot) {
    if (!gap->count || slot->first_us < gap->first_us)
        gap->first_us = slot->first_us;
    if (slot->last_us > gap->last_us)
        gap->last_us = slot->last_us;
    gap->count += slot->count;
}

void fbc_gaps_sync(void) {
    fbc_folder_hold();
    int reason =
        fbc_folder.is_synced && msync(fbc_page(), FBC_SHARED_BYTES, MS_SYNC) != 0 ? errno : 0;
    fbc_folder_release();
    if (reason) {
        struct fbc_error error;
        fbc_error_set(&error, reason,
                      "the count of gaps in .firebird-cdc/tickets of connector.journal.directory "
                      "can't be synced: a power cut may take it back");
        fbc_policy_tell(error.text);
    }
}

void fbc_gaps_take(struct fbc_moved_gaps *moved) {
    struct fbc_gap_slot *slots = fbc_page()->gaps;
    moved->count = 0;
    fbc_lock_file(fbc_folder.tickets);
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].database) {
            moved->slots[moved->count++] = slots[i];
            slots[i].database = 0;
        }
    flock(fbc_folder.tickets, LOCK_UN);
}

void fbc_gaps_give(const struct fbc_moved_gaps *moved, struct fbc_database *databases) {
    fbc_lock_file(fbc_folder.tickets);
    for (unsigned i = 0; i < moved->count; i++) {
        const struct fbc_gap_slot *own = &moved->slots[i];
        struct fbc_gap_slot *slot = slot_with(own->database, 1);
        struct fbc_database *known = databases;
        while (!slot && known && fbc_database_key(known) != own->database)
            known = known->next;
        if (slot) {
            struct fbc_gap sum = {
                .count = slot->count, .first_us = slot->first_us, .last_us = slot->last_us};
            add_slot(&sum, own);
            slot->first_us = sum.first_us;
            slot->last_us = sum.last_us;
            slot->count = sum.count;
        } else if (known)
            add_slot(&known->gap, own);
        else
            fbc_policy_tell("gaps of a database were counted that nothing has been captured from "
                            "since, and there is no room in .firebird-cdc/tickets to keep that");
    }
    flock(fbc_folder.tickets, LOCK_UN);
}

static void announce(const struct fbc_database *database) {
    fbc_events_hand_over(
        &(struct fbc_event){.kind = FBC_GAPS_COUNTED, .database = database->id, .fd = -1});
}

void fbc_gaps_announce(struct fbc_database *databases) {
    for (struct fbc_database *each = databases; each; each = each->next)
        announce(each);
}

int fbc_gaps_read(uint32_t id, struct fbc_gap *gap) {
    struct fbc_database *database = fbc_database_by_id(id);
    if (!database || !fbc_page())
        return 0;
    fbc_databases_lock();
    fbc_tickets_lock();
    *gap = database->gap;
    struct fbc_gap_slot *slot = slot_of(database, 0);
    if (slot)
        add_slot(gap, slot);
    fbc_tickets_unlock();
    fbc_databases_unlock();
    return gap->count != 0;
}

void fbc_gaps_clear(uint32_t id, const struct fbc_gap *gap) {
    struct fbc_database *database = fbc_database_by_id(id);
    uint64_t left = gap->count;
    if (!database || !fbc_page())
        return;
    fbc_databases_lock();
    fbc_tickets_lock();
    struct fbc_gap_slot *slot = slot_of(database, 0);
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
    fbc_tickets_unlock();
    fbc_databases_unlock();
    if (slot)
        fbc_gaps_sync(); /* else a power cut brings the count back, and the gap is told twice */
}

void fbc_gaps_count(struct fbc_database *database, const char *reason) {
    struct fbc_error ignored;
    int64_t now = fbc_now_us();
    int is_first = 0, is_counted = 0, in_folder = fbc_page() && fbc_host_folder_in_place(&ignored);
    fbc_databases_lock();
    if (in_folder) {
        fbc_tickets_lock();
        struct fbc_gap_slot *slot = slot_of(database, 1);
        if (slot) {
            is_counted = 1;
            is_first = !slot->count++;
            slot->first_us = is_first ? now : slot->first_us;
            slot->last_us = now;
        }
        fbc_tickets_unlock();
    }
    if (!is_counted) {
        is_first = !database->gap.count++;
        database->gap.first_us = is_first ? now : database->gap.first_us;
        database->gap.last_us = now;
    }
    if (!database->gap.reason[0])
        snprintf(database->gap.reason, sizeof database->gap.reason, "%.255s", reason);
    fbc_databases_unlock();
    if (is_counted)
        fbc_gaps_sync();
    if (is_first)
        announce(database);
}
