/* The border between the plugin and the bridge: one per server process.
 *
 * The bridge (Python) opens the journal folder, makes journals beforehand, decides what
 * becomes of committed ones, and owns all policy. The plugin (C) takes ready-made journals,
 * fills them on the user's thread without ever entering Python, and hands them over in
 * commit(). What crosses the border is this file: plain structs and functions, which the
 * bridge calls without the interpreter's lock.
 */
#ifndef FIREBIRD_CDC_HOST_H
#define FIREBIRD_CDC_HOST_H

#include <stdatomic.h>
#include <stdint.h>

#include "bridge_api.h"
#include "counters.h"
#include "firebird_abi.h"
#include "journal.h"

struct fbc_database {
    struct fbc_database *next;
    unsigned id;    /* from 1, in this process */
    char path[256]; /* the engine tells no longer ones */
    unsigned char guid[16];
    unsigned sessions;           /* that are there; under a lock of host.c */
    struct fbc_gap gap;          /* counted here, not in the folder; under a lock of host.c */
    atomic_int ignores_errors;   /* or did once: see fbc_host_heeds_errors */
    _Atomic(uint64_t) table_ddl; /* ticket of the last DDL of tables, by this process; 0: none */
    _Atomic(struct fbc_tally *) tally; /* see fbc_host_tally */
};

/* Settings of the plugin's section in plugins.conf; empty: not set. */
struct fbc_settings {
    char connector_config[1024], logging_config[1024], python_dirs[4096], python[1024],
        python_home[1024], state_directory[1024];
};

/* fbc_host_init remembers the engine; called once, when the engine loads the plugin. */
void fbc_host_init(struct fbi_master *master);

/* fbc_host_ready starts the bridge if it does not run yet, and says why if it can't. A failed
 * start is tried again, at most once a second. May take a second the first time: Python. */
int fbc_host_ready(const struct fbc_settings *settings, struct fbc_error *error);

/* fbc_host_mode_is_gap tells whether the connector's options let transactions through that can't
 * be recorded; read without the bridge where that does not run. */
int fbc_host_mode_is_gap(const struct fbc_settings *settings);

/* fbc_host_heeds_errors tells whether the engine acts upon errors that we report for DATABASE,
 * and asks us again afterwards. It reads replication.conf when it opens a database, we for each
 * session: one that was changed since may not count yet, so all that was read has to say so. */
int fbc_host_heeds_errors(struct fbc_database *database);

/* fbc_host_count_gap notes that a transaction of DATABASE committed and left nothing, so that a gap
 * is marked for it later. */
void fbc_host_count_gap(struct fbc_database *database, const char *reason);

/* fbc_host_tally returns where things of DATABASE are counted; null as long as nothing can be. A
 * null DATABASE is one that is not known. */
struct fbc_tally *fbc_host_tally(struct fbc_database *database);

/* fbc_host_count_failure counts a transaction that was refused (FBC_REFUSED) or lost (FBC_GAPS)
 * where the count outlives this process: in the journal folder, else in the state folder, else
 * replication.log says that it is counted nowhere. A null DATABASE is one that is not known. */
void fbc_host_count_failure(const struct fbc_settings *settings, struct fbc_database *database,
                            enum fbc_counter kind);

/* fbc_host_has_room tells whether connector.journal.max.bytes lets a transaction through that has
 * accounted for OWN bytes. */
int fbc_host_has_room(uint64_t own, struct fbc_error *error);

/* fbc_host_tell says loudly what can't be recorded, unless the bridge runs, which logs it. */
void fbc_host_tell(const char *text);

/* fbc_host_distrust puts the bridge back to "not started", as a sync failed after it was too
 * late to refuse. fbc_host_trusted tells whether a new start has since shown that the disk can
 * be written, and tries one. */
void fbc_host_distrust(const struct fbc_error *error);
int fbc_host_trusted(const struct fbc_settings *settings, struct fbc_error *error);

/* fbc_host_fail puts the bridge back to "not started" after ERROR, which a new start may mend,
 * such as a journal folder that went away. */
void fbc_host_fail(const struct fbc_error *error);

/* fbc_host_folder_in_place tells whether the journal folder's path still leads to the folder that
 * journals are written to; if not, ERROR says so and the bridge is put back as above. */
int fbc_host_folder_in_place(struct fbc_error *error);

/* fbc_host_journal_in_place tells whether <name>.log.live in the journal folder of now is the file
 * FD: it was removed, or the folder was replaced since and the bridge works in another one. */
int fbc_host_journal_in_place(int fd, const char *name, struct fbc_error *error);

/* fbc_host_enter finds or adds the database, and counts one more session there, until
 * fbc_host_leave; the entry lives as long as the process. Null, with ERROR set: no memory. */
struct fbc_database *fbc_host_enter(const char *path, const unsigned char *guid,
                                    struct fbc_error *error);
void fbc_host_leave(struct fbc_database *database);

/* fbc_host_take_journal gives an empty journal file, already named <uuid>.log.live. */
int fbc_host_take_journal(char name[40], unsigned char uuid[16], struct fbc_error *error);

/* fbc_host_has_folder tells whether journals can be made at all: a bridge ran once. */
int fbc_host_has_folder(void);

/* fbc_host_make_ownerless creates a journal where no bridge ran yet, in the folder that the
 * connector's file names, if it is there. *FOLDER is a descriptor of it, the caller's too. */
int fbc_host_make_ownerless(const struct fbc_settings *settings, char name[40],
                            unsigned char uuid[16], int *folder, struct fbc_error *error);

/* fbc_host_is_folder tells whether the descriptor FOLDER is the journal folder of a bridge that
 * runs now. */
int fbc_host_is_folder(int folder);

/* fbc_host_discard_journal removes <name>.log.live; its descriptor stays the caller's. DURABLY: it
 * waits until no power cut can bring it back, and tells whether that is sure. */
int fbc_host_discard_journal(const char *name, int durably);

/* fbc_host_hand_over gives EVENT to the bridge and returns its number; never fails, never
 * waits. A descriptor in it belongs to the bridge from then on. */
uint64_t fbc_host_hand_over(const struct fbc_event *event);

/* fbc_host_await_settled waits until the bridge has decided event NUMBER and all before it,
 * at most TIMEOUT_MS. */
void fbc_host_await_settled(uint64_t number, int timeout_ms);

/* fbc_host_hold_tickets tells whether tickets may be drawn from the file that is in use, and keeps
 * it in use until fbc_host_release_tickets: a ticket is drawn in commit, which can't be refused. It
 * may not where the file was removed or replaced: another process could draw from another one. */
int fbc_host_hold_tickets(struct fbc_error *error);
void fbc_host_release_tickets(void);

/* fbc_host_begin_commit draws a ticket and keeps all others, in every process, from drawing
 * one until fbc_host_end_commit: in between the caller marks its journal and hands it over, so
 * that whoever sees a ticket drawn also finds its journal. Microseconds, never a sync.
 * CHANGES_TABLES: it is a DDL that may, in DATABASE. */
uint64_t fbc_host_begin_commit(struct fbc_database *database, int changes_tables);
void fbc_host_end_commit(void);

/* fbc_host_floor returns the last ticket drawn plus 1, modulo 2^32, for the seal of a journal in
 * the folder of now; 0 where there is none. What the transaction builds on has drawn its ticket by
 * then, and itself draws a later one: so seals tell an order, too. */
uint32_t fbc_host_floor(void);

/* fbc_host_await_described waits until the bridge has read what the last DDL of tables in DATABASE
 * made of them, by any process; with ALSO_LATER, also those that are committed meanwhile. At most
 * PATIENCE_MS, and not if the last such commit anywhere is longer ago. */
void fbc_host_await_described(const struct fbc_database *database, int also_later, int patience_ms);
const unsigned char *fbc_host_owner(void);
int fbc_host_fsync(void);

/* The catalogue's generation in this process: grows with every committed DDL. */
uint64_t fbc_host_generation(void);
void fbc_host_new_generation(void);

struct fbi_status *fbc_host_new_status(void);
int64_t fbc_now_us(void);

/* fbc_python_open loads the embedding built for this process's Python and starts the
 * interpreter if there is none; fills *START with the bridge's entry. */
int fbc_python_open(const struct fbc_settings *settings, fbc_bridge_start_function *start,
                    struct fbc_error *error);

/* fbc_spawn starts PROGRAM detached: no descriptor of this process but 0-2 on /dev/null, no
 * signal to this process when it ends. Returns its process number, or -errno. */
int fbc_spawn(const char *program, char *const arguments[], char *const environment[]);

#endif
