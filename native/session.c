/* Sessions and transactions: the callbacks of the engine, in the order in which it makes them.
 *
 *   init                     at an attachment's first replicated write
 *   startTransaction         at a transaction's first replicated change
 *   startSavepoint ...       every open savepoint first; every statement is one
 *   insertRecord ...         row by row
 *   prepare                  the last call that can refuse the commit; may come twice
 *   commit, dispose          before the engine's own commit mark is written: it may still die
 *   rollback, dispose        instead
 *
 * Every callback runs on the user's thread inside the server. None enters Python but the very
 * first startTransaction of the process, none waits for the network, and every failure ends in
 * the status that came with the call.
 */
#define _GNU_SOURCE
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "databases.h"
#include "events.h"
#include "gap_counts.h"
#include "host.h"
#include "transaction.h"

enum { SETTLE_MS = 2000 }; /* how long a leaving attachment waits for the decision on its commits */

static atomic_int sessions; /* of this process */

static struct fbc_session *session_of(struct fbi_replicated_session *self) {
    return (struct fbc_session *)self;
}

int fbc_sessions(void) {
    return sessions;
}

static void session_add_ref(struct fbi_replicated_session *self) {
    session_of(self)->references++;
}

static void await_settled(struct fbc_session *session, int is_last) {
    if (fbc_host_is_joined() && fbc_host_await_others(session->settings, SETTLE_MS))
        return;
    if (is_last)
        session->last_handed_over =
            fbc_events_hand_over(&(struct fbc_event){.kind = FBC_LAST_SESSION_LEFT, .fd = -1});
    if (session->last_handed_over)
        fbc_events_await_settled(session->last_handed_over, SETTLE_MS);
}

static int session_release(struct fbi_replicated_session *self) {
    struct fbc_session *session = session_of(self);
    int left = --session->references;
    if (left > 0)
        return left;
    uint64_t since = fbc_clock_ns();
    /* The last attachment may take the database and the process with it: give the bridge the
     * moment it needs to learn what became of this session's commits, and to let go. */
    int is_last = --sessions == 0;
    if (session->database)
        await_settled(session, is_last);
    else if (is_last)
        fbc_host_await_start();
    if (session->database) {
        fbc_observe(fbc_database_tally(session->database), FBC_TIME_DETACH, fbc_clock_ns() - since);
        fbc_database_leave(session->database);
    }
    fbc_session_free_shapes(session);
    fbc_session_free_sequences(session);
    free(session);
    return 0;
}

static void session_set_owner(struct fbi_replicated_session *self, void *owner) {
    session_of(self)->owner = owner;
}

static void *session_get_owner(struct fbi_replicated_session *self) {
    return session_of(self)->owner;
}

/* Never fails and never answers false: the engine would go on without capture, in silence. */
static fbi_bool session_init(struct fbi_replicated_session *self, struct fbi_status *status,
                             struct fbi_attachment *attachment) {
    (void)status;
    session_of(self)->attachment = attachment;
    return 1;
}

static struct fbi_replicated_transaction *
session_start_transaction(struct fbi_replicated_session *self, struct fbi_status *status,
                          struct fbi_transaction *engine, int64_t number) {
    struct fbc_error error = {{0}};
    uint64_t since = fbc_clock_ns();
    struct fbc_session *session = session_of(self);
    struct fbc_transaction *txn = fbc_txn_new(session, engine, number, &error);
    struct fbc_tally *tally = fbc_database_tally(session->database);
    fbc_observe(tally, FBC_TIME_START, fbc_clock_ns() - since);
    if (txn)
        return &txn->base;
    if (!session->refusal && session->database && fbc_session_is_lenient(session)) { /* no memory */
        fbc_session_count_failure(session, FBC_GAPS);
        fbc_gaps_count(session->database, error.text);
        return NULL;
    }
    if (session->last_refused != number) /* each of its changes asks again */
        fbc_session_count_failure(session, FBC_REFUSED);
    session->last_refused = number;
    char text[1024];
    snprintf(text, sizeof text,
             "firebird-cdc: capture can't start, so writes to captured tables are refused: %s",
             error.text);
    fbc_report(status, text);
    return NULL;
}

static void session_cleanup_transaction(struct fbi_replicated_session *self,
                                        struct fbi_status *status, int64_t number) {
    struct fbc_session *session = session_of(self);
    struct fbc_error error;
    (void)status; /* an error here would refuse the first attachment after a crash */
    if (!session->refusal && fbc_host_ready(session->settings, &error))
        fbc_events_hand_over(
            &(struct fbc_event){.kind = FBC_DEAD_TRANSACTIONS,
                                .database = session->database ? session->database->id : 0,
                                .transaction = (uint64_t)number,
                                .fd = -1});
}

static const struct fbi_replicated_session_vt session_vt = {
    .version = FBI_REPLICATED_SESSION_VERSION,
    .add_ref = session_add_ref,
    .release = session_release,
    .set_owner = session_set_owner,
    .get_owner = session_get_owner,
    .init = session_init,
    .start_transaction = session_start_transaction,
    .cleanup_transaction = session_cleanup_transaction,
    .set_sequence = fbc_session_set_sequence,
};

struct fbi_replicated_session *fbc_session_new(const struct fbc_settings *settings,
                                               const char *refusal, struct fbi_status *status) {
    struct fbc_session *session = calloc(1, sizeof *session);
    if (!session) { /* with no error the engine would go on without capture, in silence */
        fbc_host_count_failure(settings, NULL, FBC_REFUSED);
        fbc_report(status, "firebird-cdc: no memory for a session, so this write to a captured "
                           "table is refused; try it again");
        return NULL;
    }
    session->base.vt = &session_vt;
    session->references = 1;
    sessions++;
    session->settings = settings;
    session->refusal = refusal;
    return &session->base;
}
