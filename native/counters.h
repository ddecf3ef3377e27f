/* What is counted of the server's side, in one page that all processes of a journal folder share.
 *
 * The page is the file counters in .firebird-cdc, mapped; journal/folder/counters.py reads it.
 * Counters only grow, over restarts too. They are added to with relaxed atomics, so that no commit
 * waits for another. Where the file can't be had, the page is this process's own and nobody reads
 * it.
 *
 * What was refused or lost is never counted where nobody reads it: without the folder's page it
 * goes to a file of the same layout in the folder StateDirectory of plugins.conf, named
 * <FNV-1a of the path of the connector's file, 16 hexadecimal digits>.counters. It is opened and
 * written each time and never mapped, as it is the refuge of a server that is in trouble already.
 *
 * A page of another layout is renamed to <name>.damaged, and a new one takes its place: what the
 * old one counted nobody knows, and journal/folder/failures.py says so.
 *
 * Layout, version 1, little-endian; what is not named is zero:
 *   0      "FBCDCCTR", u32 version, u32 slots, u32 bytes of a slot, u32 counters,
 *          u32 histograms, u32 buckets
 *   32     u64 upper bounds of all buckets but the last, in nanoseconds
 *   184    u64 when the file was made, microseconds since 1970: tells it from the one before it
 *   256    what journals take on disk: struct fbc_disk_figures
 *   2048   slots, one per database path; the first is for those that found no other, and its path
 *          is the connector's file in a StateDirectory
 * A slot: u64 in use; char path[256]; u64 counters[16]; histograms, each u64 buckets[20] and u64
 * sum in nanoseconds. The last histogram is written by whoever holds confirmer.lock, in Python.
 */
#ifndef FIREBIRD_CDC_COUNTERS_H
#define FIREBIRD_CDC_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "bridge_api.h"
#include "journal.h"

enum fbc_counter {
    FBC_CAPTURED,       /* transactions whose changes are in a journal, commit() called */
    FBC_GAPS,           /* transactions that left a marked gap instead */
    FBC_REFUSED,        /* transactions that were told that they can't be committed */
    FBC_ROLLED_BACK,    /* transactions with changes that were rolled back */
    FBC_OPENED,         /* journals begun */
    FBC_OPENED_IN_VAIN, /* of these, removed at a rollback */
    FBC_CHANGES,        /* rows, statements and sequences in the journals of FBC_CAPTURED */
    FBC_BYTES,          /* of those journals */
    /* Of FBC_GAPS and FBC_REFUSED, in microseconds since 1970; 0: there was none. */
    FBC_GAPS_FIRST_US,
    FBC_GAPS_LAST_US,
    FBC_REFUSED_FIRST_US,
    FBC_REFUSED_LAST_US,
    FBC_REPLACED /* committed journals that a gap has replaced since; by whoever holds
                    confirmer.lock, in Python */
};

enum fbc_timing {
    FBC_TIME_START,    /* startTransaction; the first of a process starts Python */
    FBC_TIME_ROWS,     /* all rows, statements and savepoints of one transaction, partly sampled */
    FBC_TIME_PREPARE,  /* each prepare */
    FBC_TIME_COMMIT,   /* each commit */
    FBC_TIME_ROLLBACK, /* each rollback */
    FBC_TIME_DETACH,   /* the end of an attachment's session */
    FBC_TIME_CONFIRM   /* from commit() to the journal's final name; the bridge's */
};

struct fbc_tally; /* a slot */

/* fbc_counters_use maps the page of the journal folder DIRECTORY from now on. */
void fbc_counters_use(int directory);

/* fbc_counters_of returns the slot of the database at PATH, or null before the first use. It
 * stays valid for ever; CACHED is what the last call returned for the same path, or null. */
struct fbc_tally *fbc_counters_of(const char *path, struct fbc_tally *cached);

/* Both do nothing where TALLY is null. */
void fbc_count(struct fbc_tally *tally, enum fbc_counter counter, uint64_t by);
void fbc_observe(struct fbc_tally *tally, enum fbc_timing timing, uint64_t nanoseconds);

/* fbc_counters_in_place tells whether the page lies in the journal folder at PATH, where everybody
 * looks for it. */
int fbc_counters_in_place(const char *path);

/* fbc_count_failure counts a transaction of TALLY that was refused (FBC_REFUSED) or lost
 * (FBC_GAPS), and when. fbc_count_failure_in does so in the file for the connector's file CONFIG in
 * the folder STATE, for the database at PATH; what is lost is then on disk. It waits for a moment
 * only, and says why it can't. */
void fbc_count_failure(struct fbc_tally *tally, enum fbc_counter kind);
int fbc_count_failure_in(const char *state, const char *config, const char *path,
                         enum fbc_counter kind, struct fbc_error *error);

static inline uint64_t fbc_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Disk use of journals that wait -------------------------------------------------------- */

/* All processes add what they write to one figure; what others delete is seen when the folder is
 * measured again. So the figure is never too small by more than what is written while it is
 * measured, and at most as much too large as was deleted since then. */
struct fbc_disk_figures {
    _Atomic(int64_t) grown;    /* by journals of all processes, less what they took back */
    _Atomic(int64_t) offset;   /* what was measured, less `grown` at that time */
    _Atomic(uint64_t) full;    /* the limit was reached, and enough room was not made since */
    _Atomic(uint64_t) at_ms;   /* when it was measured, CLOCK_REALTIME; 0: never */
    _Atomic(uint64_t) cost_ms; /* how long that took */
    _Atomic(uint64_t) refused; /* how often the limit refused something */
    _Atomic(uint64_t) limit;   /* connector.journal.max.bytes as it was last heeded; 0: none */
};

/* fbc_disk_limit sets the most bytes that journals may take; 0: no limit. */
void fbc_disk_limit(uint64_t most);

/* fbc_disk_most returns that; 0: no limit. */
uint64_t fbc_disk_most(void);

/* fbc_disk_grow notes that journals take BYTES more, or less. */
void fbc_disk_grow(int64_t bytes);

/* fbc_disk_has_room tells whether the limit lets a transaction through whose journal, OWN bytes, is
 * accounted for. FOLDER, a descriptor, is measured before the answer is no, unless that was done
 * just now; PATH is for ERROR. Once the answer was no, and not for its own size alone, it stays so
 * until nine tenths of the limit are reached again. */
int fbc_disk_has_room(int folder, const char *path, uint64_t own, struct fbc_error *error);

/* fbc_disk_measure measures FOLDER unless somebody did within IF_OLDER_MS, and fills DISK. */
void fbc_disk_measure(int folder, uint32_t if_older_ms, struct fbc_disk *disk);

#endif
