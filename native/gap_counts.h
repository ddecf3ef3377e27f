/* Gaps that no journal marks: counted per database in the page that all processes share, so that
 * the count outlives a process, or in this process where there is no page or no room in it. */
#ifndef FIREBIRD_CDC_GAP_COUNTS_H
#define FIREBIRD_CDC_GAP_COUNTS_H

#include <stdint.h>

#include "bridge_api.h"
#include "databases.h"
#include "shared_page.h"

/* fbc_gaps_count notes that a transaction of DATABASE committed and left nothing, so that a gap is
 * marked for it later. */
void fbc_gaps_count(struct fbc_database *database, const char *reason);

/* The bridge's side: read_gap and clear_gap of struct fbc_host_api. */
int fbc_gaps_read(uint32_t database, struct fbc_gap *gap);
void fbc_gaps_clear(uint32_t database, const struct fbc_gap *gap);

/* ---- When the journal folder is changed ----------------------------------------------------- */

/* Gaps on their way from one page to another. */
struct fbc_moved_gaps {
    unsigned count;
    struct fbc_gap_slot
        slots[sizeof((struct fbc_shared_page *)0)->gaps / sizeof(struct fbc_gap_slot)];
};

/* fbc_gaps_take takes all gaps out of the page of now. Called with the folder held alone, as
 * fbc_gaps_give. */
void fbc_gaps_take(struct fbc_moved_gaps *moved);

/* fbc_gaps_give adds MOVED to the page of now, or to DATABASES, which are locked, where that is
 * full. */
void fbc_gaps_give(const struct fbc_moved_gaps *moved, struct fbc_database *databases);

/* fbc_gaps_announce has the bridge look what is counted of each of DATABASES, which are locked. */
void fbc_gaps_announce(struct fbc_database *databases);

/* fbc_gaps_sync waits until what is counted in the page is on disk, as journals are. Tickets may be
 * drawn meanwhile. Where that fails the page is still the best place: it outlives this process. */
void fbc_gaps_sync(void);

#endif
