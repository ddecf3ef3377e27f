/* The bridge as the plugin sees it: one per server process.
 *
 * The bridge (Python) opens the journal folder, decides what becomes of committed journals, and
 * owns all policy. The plugin (C) takes ready-made journals, fills them on the user's thread
 * without ever entering Python, and hands them over in commit(). What crosses the border is
 * bridge_api.h: plain structs and functions, which the bridge calls without the interpreter's lock.
 */
#ifndef FIREBIRD_CDC_HOST_H
#define FIREBIRD_CDC_HOST_H

#include <stdint.h>

#include "bridge_api.h"
#include "counters.h"
#include "databases.h"
#include "firebird_abi.h"
#include "journal.h"

/* Settings of the plugin's section in plugins.conf; empty: not set. */
struct fbc_settings {
    char connector_config[1024], logging_config[1024], python_dirs[4096], python[1024],
        python_home[1024], state_directory[1024];
};

/* fbc_host_init remembers the engine; called when the engine loads the plugin, which it does once
 * for each path that plugins.conf has of it. */
void fbc_host_init(struct fbi_master *master);

/* fbc_host_ready starts the bridge if it does not run yet, or joins others, and says why if it
 * can't. A failed
 * start is tried again, at most once a second. May take a second the first time: Python. */
int fbc_host_ready(const struct fbc_settings *settings, struct fbc_error *error);

/* fbc_host_is_joined tells whether this process records without a bridge of its own, as others
 * confirm in the folder that it has joined (join.h). */
int fbc_host_is_joined(void);

/* fbc_host_need_bridge starts the bridge now where that is so, for what nobody else can do. Takes
 * as long as fbc_host_ready the first time. */
int fbc_host_need_bridge(const struct fbc_settings *settings, struct fbc_error *error);

/* fbc_host_want_bridge has a thread do so soon; never waits. */
void fbc_host_want_bridge(void);

/* fbc_host_await_start waits until no bridge is being started: Python must not begin while the
 * process ends. */
void fbc_host_await_start(void);

/* fbc_host_await_others waits, at most TIMEOUT_MS, until others have decided all commits of this
 * process. Returns 0 if there is a bridge now, which has to do that. */
int fbc_host_await_others(const struct fbc_settings *settings, int timeout_ms);

/* fbc_host_mode_is_gap tells whether the connector's options let transactions through that can't
 * be recorded; read without the bridge where that does not run. */
int fbc_host_mode_is_gap(const struct fbc_settings *settings);

/* fbc_host_engine_propagates_errors tells whether the engine acts upon errors that we report for
 * DATABASE, and asks us again afterwards. It reads replication.conf when it opens a database, we
 * for each session: one that was changed since may not count yet, so all that was read has to say
 * so. What can't be read just now changes nothing. */
int fbc_host_engine_propagates_errors(struct fbc_database *database);

/* fbc_host_count_failure counts a transaction that was refused (FBC_REFUSED) or lost (FBC_GAPS)
 * where the count outlives this process: in the journal folder, else in the state folder, else
 * replication.log says that it is counted nowhere. A null DATABASE is one that is not known. */
void fbc_host_count_failure(const struct fbc_settings *settings, struct fbc_database *database,
                            enum fbc_counter kind);

/* fbc_host_tell says loudly what can't be recorded, unless the bridge runs, which logs it. */
void fbc_host_tell(const char *text);

/* fbc_host_suspend_capture puts the bridge back to "not started", as a sync failed after it was too
 * late to refuse. fbc_host_resume_capture tells whether a new start has since shown that the disk
 * can be written, and tries one. */
void fbc_host_suspend_capture(const struct fbc_error *error);
int fbc_host_resume_capture(const struct fbc_settings *settings, struct fbc_error *error);

/* fbc_host_fail puts the bridge back to "not started" after ERROR, which a new start may mend,
 * such as a journal folder that went away. */
void fbc_host_fail(const struct fbc_error *error);

/* fbc_host_folder_in_place tells whether the journal folder's path still leads to the folder that
 * journals are written to; if not, ERROR says so and the bridge is put back as above. */
int fbc_host_folder_in_place(struct fbc_error *error);

/* fbc_host_take_journal is fbc_folder_take_journal, and puts the bridge back as above where that
 * fails. */
int fbc_host_take_journal(const char *name, int *folder, struct fbc_error *error);

/* fbc_host_make_ownerless creates a journal where no bridge ran yet, in the folder that the
 * connector's file names, if it is there. *FOLDER is a descriptor of it, the caller's too. */
int fbc_host_make_ownerless(const struct fbc_settings *settings, const char *name, int *folder,
                            struct fbc_error *error);

/* fbc_host_is_folder tells whether the descriptor FOLDER is the journal folder of a bridge that
 * runs now. */
int fbc_host_is_folder(int folder);

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
