/* An attachment of ours inside this process: what became of transactions, many with one
 * statement, and what the system tables say.
 *
 * An answer of RDB$GET_TRANSACTION_CN may be seen before it is on disk. So it is asked inside
 * a snapshot transaction, and that one is ended before anybody acts: its own end takes the same
 * inventory page exclusively, and so waits for the write (tra.cpp, cch.cpp).
 *
 * Used by the bridge's own threads, never by a user's, and with no lock of ours held: the
 * attachment may itself find dead transactions and call back into this plugin.
 */
#include "own_attachment.h"

#include "catalogue.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTIONS = 64, MOST_MESSAGE = 4096, DIALECT = 3 };

enum { /* parameter blocks (consts_pub.h) */
       DPB_VERSION1 = 1,
       DPB_NO_GARBAGE_COLLECT = 16,
       DPB_USER_NAME = 28,
       DPB_CHARSET = 48, /* isc_dpb_lc_ctype */
       DPB_NO_DB_TRIGGERS = 72,
       DPB_PROCESS_NAME = 74, /* by which a DBA knows our attachments */
       DPB_UTF8_FILENAME = 77,
       TPB_VERSION3 = 3,
       TPB_CONCURRENCY = 2,
       TPB_NOWAIT = 7,
       TPB_READ = 8
};

struct own_attachment {
    struct fbi_status *status;
    struct fbi_attachment *attachment;
    struct fbi_transaction *reading; /* in which the system tables are read; null: one for each */
    struct fbi_statement *statement;
    struct fbi_message_metadata *in, *out;
    unsigned in_offsets[QUESTIONS], in_nulls[QUESTIONS];
    unsigned out_offsets[QUESTIONS], out_nulls[QUESTIONS];
    _Alignas(16) unsigned char in_message[MOST_MESSAGE], out_message[MOST_MESSAGE];
};

static struct fbi_master *master;
static atomic_int is_ending;

/* An engine that is shutting down must not be asked any more. */
int fbc_engine_ends(char *error, int error_size) {
    if (!is_ending && !master->vt->get_process_exiting(master))
        return 0;
    snprintf(error, (size_t)error_size, "the server is shutting down");
    return 1;
}

void fbc_own_attachment_end(void) {
    is_ending = 1;
}

void fbc_own_attachment_init(struct fbi_master *engine) {
    master = engine;
}

struct fbi_status *fbc_engine_status(void) {
    return master->vt->get_status(master);
}

static int has_errors(struct fbi_status *status) {
    return (status->vt->get_state(status) & FBI_STATE_ERRORS) != 0;
}

static int failed(const struct own_attachment *own) {
    return has_errors(own->status);
}

void fbc_engine_words(struct fbi_status *status, char *text, int size) {
    struct fbi_util *util = master->vt->get_util_interface(master);
    util->vt->format_status(util, text, (unsigned)size, status);
}

static void tell(const struct own_attachment *own, char *error, int error_size) {
    fbc_engine_words(own->status, error, error_size);
}

/* End what METHOD ends; an object whose end failed is at least let go. */
#define END(object, method)                                                                        \
    do {                                                                                           \
        own->status->vt->init(own->status);                                                        \
        (object)->vt->method((object), own->status);                                               \
        if (failed(own))                                                                           \
            (object)->vt->release(object);                                                         \
    } while (0)

void fbc_own_attachment_close(void *handle) {
    struct own_attachment *own = handle;
    char ignored[1];
    if (!own || fbc_engine_ends(ignored, sizeof ignored))
        return; /* a server that ends closes all attachments itself */
    if (own->in)
        own->in->vt->release(own->in);
    if (own->out)
        own->out->vt->release(own->out);
    if (own->statement) {
        if (own->statement->vt->version >= FBI_STATEMENT_HAS_FREE)
            END(own->statement, free);
        else
            END(own->statement, deprecated_free);
    }
    if (own->attachment)
        fbc_engine_detach(own->status, own->attachment);
    own->status->vt->dispose(own->status);
    free(own);
}

/* Start a transaction to ask in; NULL with an ERROR if the engine can't or its process ends. */
static struct fbi_transaction *start(struct own_attachment *own, char *error, int error_size) {
    static const unsigned char tpb[] = {TPB_VERSION3, TPB_CONCURRENCY, TPB_NOWAIT, TPB_READ};
    if (fbc_engine_ends(error, error_size))
        return NULL;
    own->status->vt->init(own->status);
    struct fbi_transaction *transaction =
        own->attachment->vt->start_transaction(own->attachment, own->status, sizeof tpb, tpb);
    if (!failed(own))
        return transaction;
    tell(own, error, error_size);
    return NULL;
}

static void finish(struct own_attachment *own, struct fbi_transaction *transaction) {
    if (transaction->vt->version >= FBI_TRANSACTION_HAS_COMMIT)
        END(transaction, commit);
    else
        END(transaction, deprecated_commit);
}

int fbc_own_attachment_begin_reading(void *handle, char *error, int error_size) {
    struct own_attachment *own = handle;
    own->reading = start(own, error, error_size);
    return own->reading != NULL;
}

void fbc_own_attachment_end_reading(void *handle) {
    struct own_attachment *own = handle;
    char ignored[1];
    if (own->reading && !fbc_engine_ends(ignored, sizeof ignored))
        finish(own, own->reading);
    own->reading = NULL;
}

/* The transaction to read the system tables in; `leave` ends it unless more is read in it. */
static struct fbi_transaction *enter(struct own_attachment *own, char *error, int error_size) {
    return own->reading ? own->reading : start(own, error, error_size);
}

static void leave(struct own_attachment *own, struct fbi_transaction *transaction) {
    if (transaction != own->reading)
        finish(own, transaction);
}

static int layout(struct own_attachment *own, struct fbi_message_metadata *metadata,
                  unsigned *offsets, unsigned *nulls) {
    struct fbi_status *status = own->status;
    if (failed(own) || !metadata ||
        metadata->vt->get_message_length(metadata, status) > MOST_MESSAGE)
        return 0;
    for (unsigned i = 0; i < QUESTIONS; i++) {
        offsets[i] = metadata->vt->get_offset(metadata, status, i);
        nulls[i] = metadata->vt->get_null_offset(metadata, status, i);
    }
    return !failed(own);
}

static int prepare(struct own_attachment *own, struct fbi_transaction *transaction) {
    static const char question[] = "RDB$GET_TRANSACTION_CN(CAST(? AS BIGINT)), ";
    char sql[sizeof question * QUESTIONS + 64] = "SELECT ";
    struct fbi_status *status = own->status;
    size_t used = strlen(sql);
    for (int i = 0; i < QUESTIONS; i++)
        used += (size_t)snprintf(sql + used, sizeof sql - used, "%s", question);
    snprintf(sql + used - 2, sizeof sql - used + 2, " FROM RDB$DATABASE");
    own->statement =
        own->attachment->vt->prepare(own->attachment, status, transaction, 0, sql, DIALECT, 0);
    if (failed(own) || !own->statement)
        return 0;
    own->in = own->statement->vt->get_input_metadata(own->statement, status);
    if (!layout(own, own->in, own->in_offsets, own->in_nulls))
        return 0;
    own->out = own->statement->vt->get_output_metadata(own->statement, status);
    return layout(own, own->out, own->out_offsets, own->out_nulls);
}

struct fbi_attachment *fbc_engine_attach(struct fbi_status *status, const char *database,
                                         const char *process, int has_rights) {
    /* clang-format off */
    static const unsigned char all[] = {
        DPB_VERSION1,
        DPB_CHARSET, 4, 'N', 'O', 'N', 'E', /* texts come as they are stored */
        DPB_NO_GARBAGE_COLLECT, 1, 1,
        DPB_UTF8_FILENAME, 0,
    };
    static const unsigned char privileged[] = {
        DPB_USER_NAME, 6, 'S', 'Y', 'S', 'D', 'B', 'A',
        DPB_NO_DB_TRIGGERS, 1, 1,
    };
    static const unsigned char without_rights[] = {
        DPB_USER_NAME, 12, 'F', 'I', 'R', 'E', 'B', 'I', 'R', 'D', '_', 'C', 'D', 'C',
    };
    /* clang-format on */
    unsigned char dpb[sizeof all + sizeof privileged + sizeof without_rights + 2 + UINT8_MAX];
    size_t used = sizeof all, length = strlen(process) < UINT8_MAX ? strlen(process) : UINT8_MAX;
    memcpy(dpb, all, sizeof all);
    memcpy(dpb + used, has_rights ? privileged : without_rights,
           has_rights ? sizeof privileged : sizeof without_rights);
    used += has_rights ? sizeof privileged : sizeof without_rights;
    dpb[used++] = DPB_PROCESS_NAME;
    dpb[used++] = (unsigned char)length;
    memcpy(dpb + used, process, length);
    used += length;
    struct fbi_provider *provider = master->vt->get_dispatcher(master);
    status->vt->init(status);
    struct fbi_attachment *attachment =
        provider->vt->attach_database(provider, status, database, (unsigned)used, dpb);
    provider->vt->release(provider);
    return has_errors(status) ? NULL : attachment;
}

void fbc_engine_detach(struct fbi_status *status, struct fbi_attachment *attachment) {
    status->vt->init(status);
    if (attachment->vt->version >= FBI_ATTACHMENT_HAS_DETACH)
        attachment->vt->detach(attachment, status);
    else
        attachment->vt->deprecated_detach(attachment, status);
    if (has_errors(status)) /* it is at least let go */
        attachment->vt->release(attachment);
}

void *fbc_own_attachment_open(const char *database, char *error, int error_size) {
    if (fbc_engine_ends(error, error_size))
        return NULL;
    struct own_attachment *own = calloc(1, sizeof *own);
    if (!own || !(own->status = fbc_engine_status())) {
        snprintf(error, (size_t)error_size, "no memory");
        free(own);
        return NULL;
    }
    own->attachment = fbc_engine_attach(own->status, database, "firebird-cdc", 1);
    if (own->attachment)
        return own;
    tell(own, error, error_size);
    fbc_own_attachment_close(own);
    return NULL;
}

/* Ask COUNT questions at most QUESTIONS; the last one fills the rest of the statement. */
static int ask_some(struct own_attachment *own, struct fbi_transaction *transaction,
                    const uint64_t *transactions, int64_t *answers, int count) {
    for (int i = 0; i < QUESTIONS; i++) {
        memcpy(own->in_message + own->in_offsets[i], &transactions[i < count ? i : count - 1], 8);
        memset(own->in_message + own->in_nulls[i], 0, 2);
    }
    own->status->vt->init(own->status);
    own->statement->vt->execute(own->statement, own->status, transaction, own->in, own->in_message,
                                own->out, own->out_message);
    if (failed(own))
        return 0;
    for (int i = 0; i < count; i++) {
        int16_t is_null;
        memcpy(&is_null, own->out_message + own->out_nulls[i], 2);
        if (is_null)
            answers[i] = FBC_ANSWER_UNKNOWN;
        else
            memcpy(&answers[i], own->out_message + own->out_offsets[i], 8);
    }
    return 1;
}

int fbc_own_attachment_ask(void *handle, const uint64_t *transactions, int64_t *answers, int count,
                           char *error, int error_size) {
    struct own_attachment *own = handle;
    struct fbi_transaction *transaction = start(own, error, error_size);
    if (!transaction)
        return 0;
    int done = own->statement || prepare(own, transaction);
    for (int first = 0; done && first < count; first += QUESTIONS) {
        int some = count - first < QUESTIONS ? count - first : QUESTIONS;
        done = ask_some(own, transaction, transactions + first, answers + first, some);
    }
    if (!done)
        tell(own, error, error_size);
    finish(own, transaction);
    if (done && failed(own)) { /* the answers may not be on disk yet */
        tell(own, error, error_size);
        done = 0;
    }
    return done;
}

int fbc_own_attachment_describe(void *handle, char *definition, int length, int size, char *error,
                                int error_size) {
    struct own_attachment *own = handle;
    struct fbc_error reason = {{0}};
    size_t used = (size_t)length;
    struct fbi_transaction *transaction = enter(own, error, error_size);
    if (!transaction)
        return -1;
    struct fbc_source source = {own->attachment, transaction, own->status};
    int done = fbc_definition_complete(&source, definition, &used, (size_t)size, &reason);
    snprintf(error, (size_t)error_size, "%s", reason.text);
    leave(own, transaction);
    return done ? (int)used : -1;
}

int fbc_own_attachment_select(void *handle, const char *select, int columns, char **rows,
                              size_t *length, char *error, int error_size) {
    struct own_attachment *own = handle;
    struct fbc_error reason = {{0}};
    struct fbi_transaction *transaction = enter(own, error, error_size);
    if (!transaction)
        return 0;
    struct fbc_source source = {own->attachment, transaction, own->status};
    int done = fbc_catalogue_select(&source, select, columns, rows, length, &reason);
    if (!done)
        snprintf(error, (size_t)error_size, "%s", reason.text);
    leave(own, transaction);
    return done;
}

void fbc_own_attachment_free(char *rows) {
    free(rows);
}
