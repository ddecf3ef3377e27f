/* The file commits in .firebird-cdc: for each ticket which transaction was committed under it, and
 * where that lies. So whoever confirms learns of the commits of processes that live, and after a
 * kill in which order they came. */
#ifndef FIREBIRD_CDC_COMMITS_H
#define FIREBIRD_CDC_COMMITS_H

#include "bridge_api.h"
#include "journal.h"

enum { FBC_COMMIT_ENTRY = 128 }; /* bytes, at the ticket's multiple of them */

/* fbc_commits_reserve makes room on disk for the tickets that are drawn next, and gives back that
 * of those that are decided: an entry is written in commit, which can't be refused. */
int fbc_commits_reserve(struct fbc_error *error);

/* fbc_commits_write writes the entry of EVENT, a commit; between
 * fbc_tickets_begin_commit and fbc_tickets_end_commit. Returns 0 or an errno. */
int fbc_commits_write(const struct fbc_event *event);

#endif
