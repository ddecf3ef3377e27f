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

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalogue.h"
#include "engine_version.h"
#include "failpoint.h"
#include "pool.h"
#include "sync.h"

enum { SETTLE_MS = 2000 };   /* how long a leaving attachment waits for its commits' verdicts */
enum { DESCRIBED_MS = 500 }; /* and a DDL for the one before it to be described */

/* To look at the clock twice takes as long as a twentieth of a short row: of a transaction's calls
 * for rows the first ones are timed, then one in 16, at random, which stands for all. */
enum { TIMED_CALLS = 16, SAMPLED_BITS = 4 };

static atomic_int sessions; /* of this process */

struct sequence {
    struct sequence *next;
    int64_t value;
    int changed;         /* since it was last in a journal that was committed */
    uint64_t written_by; /* transaction whose journal has it, not committed yet; 0: none */
    int64_t written;     /* the value there */
    char name[];
};

struct session {
    struct fbi_replicated_session base;
    atomic_int references;
    void *owner;
    const struct fbc_settings *settings;
    const char *refusal;               /* why this engine can't be served, or null */
    struct fbi_attachment *attachment; /* borrowed: the session belongs to it */
    struct fbc_database *database;     /* null until the first transaction */
    struct fbc_error unidentified;     /* why it is not known exactly which one; empty: it is */
    int heeds_errors;                  /* the engine does, and goes on asking us */
    int is_rootless;                   /* its transactions are, as the engine tells of them */
    char user[1024];                   /* UTF-8 */
    struct fbc_shape *shapes;
    struct sequence *sequences;
    uint64_t last_handed_over; /* 0: nothing to wait for */
    uint64_t database_inode;   /* 0: unknown */
    uint64_t counted_changes;  /* of rows, by the attachment, when they were last counted */
    int64_t last_refused;      /* number of a transaction that could not begin; 0: none */
};

/* A table definition in a journal. */
struct table_use {
    uint64_t shape;                /* id of its shape */
    int is_complete;               /* it was when it was written */
    struct fbc_question *question; /* for what is missing; null: none */
};

struct transaction {
    struct fbi_replicated_transaction base;
    struct session *session;
    struct fbi_transaction *engine; /* borrowed: ours ends before it */
    uint64_t number;
    struct fbc_journal journal;
    struct fbc_sync sync; /* of the sealed journal, begun in prepare */
    int has_journal;
    int broken;     /* a change of it could not be recorded: prepare must refuse */
    int is_lenient; /* or let it through and leave a gap: no callback gives an error */
    int is_gap;     /* the journal, sealed, holds a gap in place of the changes */
    int folder;     /* where an ownerless journal lies; -1: it has an owner */
    int has_ddl;
    int changes_tables; /* a DDL of it may */
    int changes_indexes;
    int is_committing_ddl;    /* between prepare and what comes after it */
    uint64_t changes;         /* that were reported, recorded or not */
    int is_unresolved;        /* a table definition stays incomplete after the seal */
    struct fbc_error error;   /* why it is broken */
    struct table_use *tables; /* by table number - 1 */
    uint32_t tables_used;     /* also of definitions that were cut off again */
    uint32_t table_capacity;
    struct fbi_status *status;       /* for our own questions to the engine */
    struct fbc_position *savepoints; /* where each began */
    unsigned savepoint_count, savepoint_capacity;
    unsigned savepoint_rollbacks;
    int is_rootless; /* no savepoint is the transaction's own, that is left to the commit */
    int is_ended;    /* commit or rollback was called */
    int has_tickets; /* it may draw one: see fbc_host_hold_tickets */
    int is_limited;  /* the journal may not take more disk than connector.journal.max.bytes */
    uint64_t calls, calls_ns; /* for rows, statements and savepoints; the time partly sampled */
};

/* ---- Helpers ------------------------------------------------------------------------------ */

static void report(struct fbi_status *status, const char *text) {
    const intptr_t vector[] = {FBI_ARG_GDS, FBI_ISC_RANDOM, FBI_ARG_STRING, (intptr_t)text,
                               FBI_ARG_END};
    status->vt->set_errors(status, vector);
}

/* Count a transaction that was refused or lost where somebody finds it. */
static void count_failure(const struct session *session, enum fbc_counter kind) {
    fbc_host_count_failure(session->settings, session->database, kind);
}

/* Count TXN, of whose changes nothing is left, and have a gap marked for it. */
static void count_lost(const struct transaction *txn) {
    count_failure(txn->session, FBC_GAPS);
    fbc_host_count_gap(txn->session->database, txn->error.text);
}

static struct fbc_tally *tally_of(const struct transaction *txn) {
    return fbc_host_tally(txn->session->database);
}

/* Give back the room on disk that TXN's journal has beyond LEFT bytes. */
static void account_less(struct transaction *txn, uint64_t left) {
    struct fbc_journal *journal = &txn->journal;
    if (txn->folder < 0 && journal->reserved > left) {
        fbc_disk_grow(-(int64_t)(journal->reserved - left));
        journal->reserved = left;
    }
}

/* Cut the journal of TXN, which stays broken: nobody needs what is in it, and others the room. */
static void shrink(struct transaction *txn) {
    if (txn->has_journal && !txn->journal.sealed_at && txn->journal.reserved > FBC_POOL_BYTES &&
        ftruncate(txn->journal.fd, FBC_POOL_BYTES) == 0)
        account_less(txn, FBC_POOL_BYTES);
}

/* Remember the first failure of TXN, and tell the engine unless it is to be let through. */
static void refuse(struct transaction *txn, struct fbi_status *status,
                   const struct fbc_error *error) {
    if (!txn->broken) {
        txn->broken = 1;
        txn->error = *error;
        shrink(txn);
        if (!txn->is_lenient)
            count_failure(txn->session, FBC_REFUSED);
    }
    if (txn->is_lenient)
        return;
    char text[1024];
    snprintf(text, sizeof text,
             "firebird-cdc: %s; transaction %llu can't be committed, no change of it is lost "
             "silently. Roll it back, mend the cause and try again",
             txn->error.text, (unsigned long long)txn->number);
    report(status, text);
}

static struct fbc_source source_of(struct transaction *txn) {
    return (struct fbc_source){txn->session->attachment, txn->engine, txn->status};
}

static void parse_guid(const char *text, unsigned char guid[16]) {
    /* 32 hexadecimal digits in groups, in braces */
    unsigned count = 0;
    memset(guid, 0, 16);
    for (; *text && count < 32; text++) {
        unsigned digit;
        if (*text >= '0' && *text <= '9')
            digit = (unsigned)(*text - '0');
        else if ((*text | 32) >= 'a' && (*text | 32) <= 'f')
            digit = (unsigned)((*text | 32) - 'a' + 10);
        else
            continue;
        guid[count / 2] = (unsigned char)(guid[count / 2] << 4 | digit);
        count++;
    }
}

/* One item of an information buffer; null if it is not there. */
static const unsigned char *info_item(const unsigned char *buffer, size_t size, unsigned char item,
                                      size_t *length) {
    const unsigned char *at = buffer;
    while (at + 3 <= buffer + size && *at != FBI_INFO_END) {
        *length = (size_t)(at[1] | at[2] << 8);
        if (at + 3 + *length > buffer + size)
            break;
        if (*at == item)
            return at + 3;
        at += 3 + *length;
    }
    return NULL;
}

/* Learn which database this is and who works in it, once per session. The engine's information
 * calls wait for nothing, so they may be made inside its callbacks; statements may not. Only for
 * lack of memory is no database known afterwards. */
static void identify(struct transaction *txn, struct fbc_error *error) {
    enum { LONGEST_PATH = 254 }; /* the engine cuts longer ones to 255 bytes */
    static const unsigned char place[] = {FBI_INFO_DB_ID, FBI_INFO_DB_GUID,
                                          FBI_INFO_FIREBIRD_VERSION};
    static const unsigned char user[] = {FBI_INFO_USERNAME};
    struct session *session = txn->session;
    unsigned char buffer[1024] = {FBI_INFO_END}, guid[16] = {0};
    char path[LONGEST_PATH + 1], text[64];
    struct stat file;
    size_t length = 0;
    txn->status->vt->init(txn->status);
    session->attachment->vt->get_info(session->attachment, txn->status, sizeof place, place,
                                      sizeof buffer, buffer);
    /* the item holds: 2, length of the path, path, length of the host's name, name */
    const unsigned char *item = info_item(buffer, sizeof buffer, FBI_INFO_DB_ID, &length);
    size_t known = item && length >= 2 ? item[1] : 0;
    if (!known || known > LONGEST_PATH || known + 2 > length) {
        fbc_error_set(&session->unidentified, 0,
                      known ? "the database's path is longer than 254 bytes, and the engine "
                              "does not tell more of it"
                            : "the engine does not tell the database's path");
        known = known > LONGEST_PATH ? LONGEST_PATH : 0;
    }
    memcpy(path, known ? (const char *)item + 2 : "", known);
    path[known] = 0;
    if (stat(path, &file) == 0)
        session->database_inode = (uint64_t)file.st_ino;
    item = info_item(buffer, sizeof buffer, FBI_INFO_DB_GUID, &length);
    if (item && length < sizeof text) {
        memcpy(text, item, length);
        text[length] = 0;
        parse_guid(text, guid);
    }
    /* the item holds: 1, length of the text, text */
    item = info_item(buffer, sizeof buffer, FBI_INFO_FIREBIRD_VERSION, &length);
    if (item && length > 2) {
        struct fbc_engine_version version = fbc_engine_version_of(item + 2, length - 2);
        session->is_rootless = !fbc_engine_announces_root(&version);
        session->refusal = fbc_engine_refusal(&version);
    }
    memset(buffer, FBI_INFO_END, sizeof buffer);
    txn->status->vt->init(txn->status);
    session->attachment->vt->get_info(session->attachment, txn->status, sizeof user, user,
                                      sizeof buffer, buffer);
    item = info_item(buffer, sizeof buffer, FBI_INFO_USERNAME, &length);
    if (item && length < sizeof session->user) {
        memcpy(session->user, item, length);
        session->user[length] = 0;
    }
    session->database = fbc_host_enter(path, guid, error);
    session->heeds_errors = session->database && fbc_host_heeds_errors(session->database);
}

static void free_shapes(struct session *session) {
    while (session->shapes) {
        struct fbc_shape *shape = session->shapes;
        session->shapes = shape->next;
        fbc_shape_free(shape);
    }
}

/* The link to the shape of TABLE, or the end of the list. */
static struct fbc_shape **find_shape(struct session *session, const char *table) {
    struct fbc_shape **link = &session->shapes;
    while (*link && strcmp((*link)->name, table) != 0)
        link = &(*link)->next;
    return link;
}

/* Give SHAPE its complete definition, if the bridge has found it out. */
static void resolve(struct session *session, struct fbc_shape *shape) {
    size_t length = 0;
    shape->version = fbc_catalogue_version();
    char *complete = fbc_catalogue_find(session->database->id, shape->generation, shape->definition,
                                        shape->definition_length, &length);
    if (!complete)
        return;
    free(shape->definition);
    shape->definition = complete;
    shape->definition_length = length;
    shape->is_resolved = 1;
}

/* The shape of TABLE; made anew from RECORD after a DDL, when its definition may have become
 * complete, and when IS_STALE says that the one at hand does not fit. */
static struct fbc_shape *shape_of(struct transaction *txn, const char *table, int is_stale,
                                  struct fbi_replicated_record *record, struct fbc_error *error) {
    struct session *session = txn->session;
    struct fbc_shape **link = find_shape(session, table);
    struct fbc_shape *shape = *link;
    uint64_t generation = fbc_host_generation();
    if (shape && shape->generation == generation && !is_stale &&
        (shape->is_resolved || shape->version == fbc_catalogue_version()))
        return shape;
    struct fbc_shape *fresh = fbc_shape_of(table, record, error);
    if (!fresh)
        return NULL;
    fresh->generation = generation;
    resolve(session, fresh);
    if (shape) {
        *link = shape->next;
        if (shape->definition_length == fresh->definition_length &&
            memcmp(shape->definition, fresh->definition, fresh->definition_length) == 0)
            fresh->id = shape->id; /* the DDL was about something else */
        fbc_shape_free(shape);
    }
    fresh->next = session->shapes;
    session->shapes = fresh;
    return fresh;
}

static int hold_tickets(struct transaction *txn, struct fbc_error *error) {
    txn->has_tickets = txn->has_tickets || fbc_host_hold_tickets(error);
    return txn->has_tickets;
}

static void release_tickets(struct transaction *txn) {
    if (txn->has_tickets)
        fbc_host_release_tickets();
    txn->has_tickets = 0;
}

/* Wait for the sync that a prepare began. */
static int await_sync(struct transaction *txn, struct fbc_error *error) {
    int reason = fbc_sync_wait(&txn->sync);
    return reason ? fbc_journal_sync_failed(&txn->journal, reason, error) : FBC_OK;
}

/* Whether the journal of TXN has to be on disk. Where no bridge runs nobody knows what the user
 * wants of that: it has to, then. */
static int needs_sync(const struct transaction *txn) {
    return fbc_host_fsync() || txn->folder >= 0;
}

/* Take a seal back, durably, before anything but commit follows a prepare. Also fails where the
 * sync did that the prepare began: what it was to write would be missing in the next one's. */
static int unseal(struct transaction *txn, struct fbc_error *error) {
    struct fbc_error ignored;
    if (!txn->journal.sealed_at)
        return FBC_OK;
    int is_synced = await_sync(txn, error);
    FBC_FAILPOINT("unseal.before");
    int is_broken =
        fbc_journal_break_seal(&txn->journal, needs_sync(txn), is_synced ? error : &ignored);
    FBC_FAILPOINT("unseal.after");
    release_tickets(txn);
    return is_synced && is_broken;
}

/* Account for a journal that is about to be written up to END. */
static int reserve(struct fbc_journal *journal, uint64_t end, struct fbc_error *error) {
    struct transaction *txn =
        (struct transaction *)((char *)journal - offsetof(struct transaction, journal));
    fbc_disk_grow((int64_t)(end - journal->reserved));
    journal->reserved = end;
    return !txn->is_limited || fbc_host_has_room(end, error);
}

/* Begin TXN's journal in the file FD, which it owns from then on. */
static int begin_journal(struct transaction *txn, int fd, const char *name,
                         const unsigned char *uuid, struct fbc_error *error) {
    struct session *session = txn->session;
    struct fbc_journal_identity identity = {.transaction = txn->number,
                                            .started_us = fbc_now_us(),
                                            .database_inode = session->database_inode};
    memcpy(identity.uuid, uuid, 16);
    memcpy(identity.database_guid, session->database->guid, 16);
    if (txn->folder < 0)
        memcpy(identity.owner, fbc_host_owner(), 16);
    fbc_journal_open(&txn->journal, fd, name, &identity);
    txn->has_journal = 1;
    txn->journal.reserved = FBC_POOL_BYTES;
    txn->journal.reserve = txn->folder < 0 ? reserve : NULL;
    /* At once in the file: if the process is killed between the phases of a two-phase commit,
     * this is all that tells of the transaction. */
    return fbc_journal_begin(&txn->journal, session->database->path,
                             strlen(session->database->path), session->user, strlen(session->user),
                             error) &&
           fbc_journal_flush(&txn->journal, error);
}

/* Make sure that TXN has a journal that can take a record. */
static int open_journal(struct transaction *txn, struct fbc_error *error) {
    char name[40];
    unsigned char uuid[16];
    if (txn->broken) {
        if (txn->has_journal && (unseal(txn, error) || txn->journal.is_untrusted))
            txn->is_gap = 0;
        *error = txn->error;
        return FBC_FAILED;
    }
    if (txn->has_journal)
        return unseal(txn, error);
    int fd = fbc_host_take_journal(name, uuid, error);
    if (fd < 0)
        return FBC_FAILED;
    fbc_count(tally_of(txn), FBC_OPENED, 1);
    return begin_journal(txn, fd, name, uuid, error);
}

static void drop_question(struct table_use *use) {
    if (use->question)
        fbc_question_drop(use->question);
    use->question = NULL;
}

/* The number of SHAPE in the journal; its TABLE record is written at the first use, and what that
 * can't show is asked for. */
static unsigned table_number(struct transaction *txn, const struct fbc_shape *shape,
                             struct fbc_error *error) {
    uint32_t count = txn->journal.at.tables;
    for (uint32_t i = count; i-- > 0;)
        if (txn->tables[i].shape == shape->id)
            return i + 1;
    if (count == UINT16_MAX) {
        fbc_error_set(error, 0, "more than %u table definitions in one transaction", UINT16_MAX);
        return 0;
    }
    if (count == txn->table_capacity) {
        uint32_t capacity = count ? 2 * count : 8;
        struct table_use *tables = realloc(txn->tables, capacity * sizeof *tables);
        if (!tables) {
            fbc_error_set(error, 0, "no memory for the tables of a transaction");
            return 0;
        }
        txn->tables = tables;
        txn->table_capacity = capacity;
    }
    char *body = fbc_record_begin(&txn->journal, shape->definition_length, error);
    if (!body)
        return 0;
    memcpy(body, shape->definition, shape->definition_length);
    fbc_record_end(&txn->journal, FBC_TABLE, shape->is_resolved ? 0 : FBC_TABLE_UNRESOLVED,
                   count + 1, shape->definition_length);
    struct table_use *use = &txn->tables[count];
    if (count < txn->tables_used)
        drop_question(use);
    else
        txn->tables_used = count + 1;
    *use = (struct table_use){shape->id, shape->is_resolved, NULL};
    if (!shape->is_resolved)
        use->question =
            fbc_question_ask(FBC_COMPLETE, txn->session->database->id, shape->generation,
                             shape->definition, shape->definition_length);
    txn->journal.at.tables = count + 1;
    return count + 1;
}

/* Remove the journal of TXN so that no power cut brings it back: it is made void, and where a sync
 * of it has failed, its name must be gone from the disk. If neither can be had, later transactions
 * are refused until the disk works. */
static int drop_journal(struct transaction *txn) {
    struct fbc_error text, error = {"a sync of it had failed before"};
    release_tickets(txn);
    if (!txn->has_journal)
        return FBC_OK;
    int is_void = await_sync(txn, &error); /* it has the descriptor */
    FBC_FAILPOINT("discard.before");
    is_void = fbc_journal_void(&txn->journal, needs_sync(txn), &error) && is_void &&
              !txn->journal.is_untrusted;
    FBC_FAILPOINT("discard.voided");
    account_less(txn, 0);
    int is_gone = 1, must_go = !is_void && needs_sync(txn);
    if (txn->folder >= 0) {
        char live[64];
        snprintf(live, sizeof live, "%s.log.live", txn->journal.name);
        unlinkat(txn->folder, live, 0);
        is_gone = !must_go || fsync(txn->folder) == 0;
        close(txn->folder);
        txn->folder = -1;
    } else
        is_gone = fbc_host_discard_journal(txn->journal.name, must_go);
    FBC_FAILPOINT("discard.after");
    if (!is_gone) {
        fbc_error_set(&text, 0,
                      "the journal of transaction %llu, which is not to be published, could not be "
                      "removed for good, and a power cut may bring it back: %.300s",
                      (unsigned long long)txn->number, error.text);
        fbc_host_distrust(&text);
        fbc_host_tell(text.text);
    }
    fbc_journal_free(&txn->journal);
    txn->has_journal = 0;
    return is_gone;
}

static void free_transaction(struct transaction *txn) {
    struct fbi_replicated_session *session = &txn->session->base;
    txn->status->vt->dispose(txn->status);
    for (uint32_t i = 0; i < txn->tables_used; i++)
        drop_question(&txn->tables[i]);
    free(txn->tables);
    free(txn->savepoints);
    free(txn);
    session->vt->release(session);
}

/* ---- IReplicatedTransaction --------------------------------------------------------------- */

static struct transaction *transaction_of(struct fbi_replicated_transaction *self) {
    return (struct transaction *)self;
}

static int is_system_table(const char *table) {
    return table[3] == '$' && (strncmp(table, "RDB", 3) == 0 || strncmp(table, "MON", 3) == 0 ||
                               strncmp(table, "SEC", 3) == 0);
}

static void row_change(struct fbi_replicated_transaction *self, struct fbi_status *status,
                       const char *table, struct fbi_replicated_record *old_record,
                       struct fbi_replicated_record *new_record) {
    struct transaction *txn = transaction_of(self);
    struct fbc_error error;
    int result = FBC_STALE;
    if (strlen(table) > 3 && is_system_table(table))
        return; /* direct changes of system tables are not captured */
    txn->changes++;
    if (!open_journal(txn, &error)) {
        refuse(txn, status, &error);
        return;
    }
    for (int is_stale = 0; result == FBC_STALE && is_stale < 2; is_stale++) {
        struct fbc_source source = source_of(txn);
        struct fbc_shape *shape =
            shape_of(txn, table, is_stale, new_record ? new_record : old_record, &error);
        unsigned number = shape ? table_number(txn, shape, &error) : 0;
        result = number ? fbc_row_write(&txn->journal, &source, shape, number, old_record,
                                        new_record, &error)
                        : FBC_FAILED;
    }
    if (result == FBC_STALE)
        fbc_error_set(&error, 0, "the old and the new row of table %s differ in their columns",
                      table);
    if (result != FBC_OK)
        refuse(txn, status, &error);
    FBC_FAILPOINT("row.written");
}

/* The word at *TEXT in capitals, up to 15 letters, behind blanks and comments; empty if there is
 * none. *TEXT moves behind it. */
static void next_word(const char **text, char word[16]) {
    const char *at = *text;
    unsigned length = 0;
    for (;;) {
        if (strncmp(at, "--", 2) == 0)
            at += strcspn(at, "\n");
        else if (strncmp(at, "/*", 2) == 0) {
            const char *end = strstr(at + 2, "*/");
            at = end ? end + 2 : at + strlen(at);
        } else if (*at && strchr(" \t\r\n\f\v", *at))
            at++;
        else
            break;
    }
    for (; (*at | 32) >= 'a' && (*at | 32) <= 'z'; at++)
        if (length < 15)
            word[length++] = (char)(*at & ~32);
    word[length] = 0;
    *text = at;
}

enum table_ddl { NO_TABLE_DDL, TABLE_DDL, INDEX_DDL };

/* Tell whether the DDL statement SQL may change a table; journal/format/ddl_text.py tells exactly. */
static enum table_ddl table_ddl_of(const char *sql) {
    enum { MOST_WORDS = 4 }; /* CREATE UNIQUE DESCENDING INDEX */
    char word[16];
    int alters = 0;
    for (int i = 0; i < MOST_WORDS; i++) {
        next_word(&sql, word);
        alters |= i == 0 && strcmp(word, "ALTER") == 0;
        if (strcmp(word, "INDEX") == 0)
            return INDEX_DDL;
        if (strcmp(word, "TABLE") == 0 || (alters && strcmp(word, "DOMAIN") == 0))
            return TABLE_DDL;
    }
    return NO_TABLE_DDL;
}

static void transaction_execute_intl(struct fbi_replicated_transaction *self,
                                     struct fbi_status *status, unsigned charset, const char *sql) {
    struct transaction *txn = transaction_of(self);
    struct fbc_error error;
    size_t length = strlen(sql);
    char *body = NULL;
    txn->changes++;
    txn->has_ddl = 1;
    enum table_ddl kind = table_ddl_of(sql);
    txn->changes_tables |= kind != NO_TABLE_DDL;
    txn->changes_indexes |= kind == INDEX_DDL;
    if (open_journal(txn, &error) && (body = fbc_record_begin(&txn->journal, 2 + length, &error))) {
        fbc_put16(body, (uint16_t)charset);
        memcpy(body + 2, sql, length);
        fbc_record_end(&txn->journal, FBC_DDL, 0, 0, 2 + length);
        fbc_host_new_generation();
        return;
    }
    refuse(txn, status, &error);
}

static void transaction_start_savepoint(struct fbi_replicated_transaction *self,
                                        struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    struct fbc_error error;
    if (txn->savepoint_count == txn->savepoint_capacity) {
        unsigned capacity = txn->savepoint_count ? 2 * txn->savepoint_count : 8;
        struct fbc_position *savepoints = realloc(txn->savepoints, capacity * sizeof *savepoints);
        if (!savepoints) {
            fbc_error_set(&error, 0, "no memory for a savepoint");
            refuse(txn, status, &error);
            return;
        }
        txn->savepoints = savepoints;
        txn->savepoint_capacity = capacity;
    }
    if (!txn->broken && !open_journal(txn, &error))
        refuse(txn, status, &error);
    txn->savepoints[txn->savepoint_count++] = txn->journal.at;
}

static void transaction_release_savepoint(struct fbi_replicated_transaction *self,
                                          struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    (void)status;
    if (txn->savepoint_count)
        txn->savepoint_count--;
    txn->is_rootless |= !txn->savepoint_count;
}

static void transaction_rollback_savepoint(struct fbi_replicated_transaction *self,
                                           struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    struct fbc_error error;
    if (!txn->savepoint_count) {
        fbc_error_set(&error, 0, "the engine rolled back a savepoint that it never announced");
        refuse(txn, status, &error);
        return;
    }
    struct fbc_position *savepoint = &txn->savepoints[--txn->savepoint_count];
    txn->savepoint_rollbacks++;
    txn->is_rootless |= !txn->savepoint_count;
    if (!txn->has_journal)
        return;
    if (txn->broken)
        open_journal(txn, &error); /* it stays broken, but is not sealed */
    else if (!unseal(txn, &error) || !fbc_journal_cut(&txn->journal, savepoint, &error))
        refuse(txn, status, &error);
    for (struct sequence *each = txn->session->sequences; each; each = each->next)
        if (each->written_by == txn->number)
            each->written_by = 0;
}

/* Append the last values of the session's sequences that no journal has yet. */
static int write_sequences(struct transaction *txn, struct fbc_error *error) {
    for (struct sequence *sequence = txn->session->sequences; sequence; sequence = sequence->next) {
        if (!sequence->changed ||
            (sequence->written_by == txn->number && sequence->written == sequence->value))
            continue;
        size_t length = strlen(sequence->name);
        char *body =
            open_journal(txn, error) ? fbc_record_begin(&txn->journal, 8 + length, error) : NULL;
        if (!body)
            return FBC_FAILED;
        fbc_put64(body, (uint64_t)sequence->value);
        memcpy(body + 8, sequence->name, length);
        fbc_record_end(&txn->journal, FBC_SEQUENCE, 0, 0, 8 + length);
        sequence->written_by = txn->number;
        sequence->written = sequence->value;
    }
    return FBC_OK;
}

/* Tell that the journal was cut at the wrong place. The engine does not tell of a savepoint that it
 * ends out of turn: RELEASE SAVEPOINT ... ONLY, or the same name set again while a later one
 * exists. */
static int cut_wrongly(struct fbc_error *error) {
    fbc_error_set(
        error, 0,
        "a savepoint was released out of turn (RELEASE SAVEPOINT ... ONLY, or a name that "
        "was set again) and another one rolled back, which the engine does not report "
        "exactly enough to record the changes that remain");
    return FBC_FAILED;
}

/* Before prepare the engine has released every savepoint but the transaction's own. */
static int savepoints_add_up(const struct transaction *txn, struct fbc_error *error) {
    unsigned own = !txn->is_rootless;
    return txn->savepoint_count <= own || !txn->savepoint_rollbacks ? FBC_OK : cut_wrongly(error);
}

/* The rows that the attachment has changed, in all tables, captured or not, since this was last
 * asked. A number that is too large where the engine does not tell. */
static uint64_t changes_since_last_count(struct transaction *txn) {
    enum { SIZE = 32 * 1024, ENTRY = 6 }; /* u16 relation, u32 count */
    static const unsigned char counts[] = {FBI_INFO_INSERT_COUNT, FBI_INFO_UPDATE_COUNT,
                                           FBI_INFO_DELETE_COUNT};
    struct session *session = txn->session;
    unsigned char *buffer = malloc(SIZE);
    uint64_t total = 0;
    if (!buffer)
        return UINT64_MAX;
    memset(buffer, FBI_INFO_END, SIZE);
    txn->status->vt->init(txn->status);
    session->attachment->vt->get_info(session->attachment, txn->status, sizeof counts, counts, SIZE,
                                      buffer);
    for (unsigned i = 0; i < sizeof counts; i++) {
        size_t length = 0;
        const unsigned char *item = info_item(buffer, SIZE, counts[i], &length);
        if (!item) {
            free(buffer);
            return UINT64_MAX;
        }
        for (size_t at = 0; at + ENTRY <= length; at += ENTRY) {
            uint32_t count;
            memcpy(&count, item + at + 2, sizeof count);
            total += count;
        }
    }
    free(buffer);
    uint64_t before = session->counted_changes;
    session->counted_changes = total;
    return total >= before ? total - before : UINT64_MAX;
}

/* Between prepare and commit the engine releases the transaction's own savepoint. If that did not
 * come, what was left was another one, as there is none of its own under NO AUTO UNDO. Only that
 * of a large transaction may be given up without a word (Savepoint::rollforward); large is what it
 * changed in tables that are not captured, too. */
static int root_was_released(struct transaction *txn, struct fbc_error *error) {
    enum { LARGE = 2048 };
    return !txn->savepoint_rollbacks || !txn->savepoint_count || txn->changes >= LARGE ||
                   changes_since_last_count(txn) >= LARGE
               ? FBC_OK
               : cut_wrongly(error);
}

static int is_empty(const struct transaction *txn) {
    return !txn->has_journal || txn->journal.at.records <= 1; /* BEGIN alone */
}

/* Wait until no attachment of ours is open any more for a question of TXN. */
static void await_answers(struct transaction *txn) {
    size_t length;
    for (uint32_t i = 0; i < txn->tables_used; i++)
        if (txn->tables[i].question)
            fbc_question_await(txn->tables[i].question, &length);
}

/* Gather the definitions of TXN that were completed since they were written, in a buffer that
 * the caller frees. What can't be had is left to the bridge, after the commit. */
static struct fbc_appendix gather_catalogue(struct transaction *txn) {
    struct fbc_appendix catalogue = {0};
    size_t size = FBC_BLOCK_HEADER;
    txn->is_unresolved = 0;
    for (uint32_t i = 0; i < txn->journal.at.tables; i++) {
        struct table_use *use = &txn->tables[i];
        size_t length = 0;
        if (use->is_complete)
            continue;
        const char *complete = use->question ? fbc_question_await(use->question, &length) : NULL;
        size_t needed = size + FBC_RECORD_HEADER + length;
        char *block =
            complete && needed <= FBC_BLOCK_LIMIT ? realloc(catalogue.block, needed) : NULL;
        if (!block) {
            txn->is_unresolved = 1;
            continue;
        }
        char *record = block + size;
        memset(record, 0, FBC_RECORD_HEADER);
        record[0] = FBC_TABLE;
        fbc_put16(record + 2, (uint16_t)(i + 1));
        fbc_put32(record + 4, (uint32_t)length);
        memcpy(record + FBC_RECORD_HEADER, complete, length);
        size = needed;
        catalogue.block = block;
        catalogue.payload = size - FBC_BLOCK_HEADER;
        catalogue.records++;
    }
    return catalogue;
}

/* Write what is left of TXN, its seal and the definitions that were completed, and start the
 * sync: all that can fail before the commit. */
static int seal(struct transaction *txn, struct fbc_error *error) {
    if (!savepoints_add_up(txn, error) || !write_sequences(txn, error))
        return FBC_FAILED;
    if (is_empty(txn))
        return FBC_OK;
    if (txn->journal.sealed_at) /* a second prepare with nothing in between */
        return await_sync(txn, error);
    struct fbc_appendix catalogue = gather_catalogue(txn);
    FBC_FAILPOINT("prepare.before_seal");
    uint32_t floor = fbc_host_floor(); /* of the folder that is looked at next */
    int done = fbc_host_trusted(txn->session->settings, error) && fbc_host_folder_in_place(error) &&
               fbc_host_journal_in_place(txn->journal.fd, txn->journal.name, error) &&
               (!txn->is_limited || fbc_host_has_room(txn->journal.reserved, error)) &&
               hold_tickets(txn, error) &&
               fbc_journal_seal(&txn->journal, fbc_now_us(), floor, &catalogue, error);
    free(catalogue.block);
    if (!done) {
        release_tickets(txn);
        return FBC_FAILED;
    }
    FBC_FAILPOINT("prepare.sealed");
    if (fbc_host_fsync())
        fbc_sync_start(&txn->sync, txn->journal.fd);
    FBC_FAILPOINT("prepare.sync_started");
    return FBC_OK;
}

/* ---- Gaps --------------------------------------------------------------------------------- */

/* Make TEXT valid UTF-8: it may quote a path in another character set, or be cut off. */
static void make_utf8(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at;) {
        unsigned length = *at < 0x80                  ? 1
                          : *at >= 0xc2 && *at < 0xe0 ? 2
                          : *at >= 0xe0 && *at < 0xf0 ? 3
                          : *at >= 0xf0 && *at < 0xf5 ? 4
                                                      : 0;
        unsigned good = length > 0;
        while (good && good < length && (at[good] & 0xc0) == 0x80)
            good++;
        /* overlong forms, surrogates, and what is beyond the last character */
        int is_wrong = (*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) ||
                       (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f);
        if (!length || good < length || is_wrong) {
            *at++ = '?';
            continue;
        }
        at += length;
    }
}

/* Fill the file FD, beginning anew, with BEGIN, GAP and seal. */
static int write_gap(struct transaction *txn, int fd, const char *name, const unsigned char *uuid,
                     const char *reason) {
    struct fbc_error ignored;
    size_t length = strlen(reason);
    uint32_t floor = txn->folder < 0 ? fbc_host_floor() : 0;
    struct stat file;
    if (fstat(fd, &file) == 0 && file.st_size > FBC_POOL_BYTES &&
        ftruncate(fd, FBC_POOL_BYTES) != 0)
        fbc_host_tell("a journal that holds a gap can't be cut"); /* long, but right */
    char *body = begin_journal(txn, fd, name, uuid, &ignored)
                     ? fbc_record_begin(&txn->journal, 2 + length, &ignored)
                     : NULL;
    if (!body)
        return FBC_FAILED;
    fbc_put16(body, (uint16_t)length);
    memcpy(body + 2, reason, length);
    fbc_record_end(&txn->journal, FBC_GAP, 0, 0, 2 + length);
    return fbc_journal_seal(&txn->journal, fbc_now_us(), floor, NULL, &ignored);
}

/* Use the journal that TXN has: its beginning is on disk, so that it can be written again even
 * where nothing else fits. */
static int rewrite_as_gap(struct transaction *txn, const char *reason) {
    char name[40];
    unsigned char uuid[16];
    struct fbc_error ignored;
    if (!unseal(txn, &ignored) || txn->journal.is_untrusted)
        return FBC_FAILED;
    int fd = txn->journal.fd;
    account_less(txn, FBC_POOL_BYTES); /* it is cut */
    memcpy(name, txn->journal.name, sizeof name);
    memcpy(uuid, txn->journal.uuid, sizeof uuid);
    txn->journal.fd = -1;
    fbc_journal_free(&txn->journal);
    return write_gap(txn, fd, name, uuid, reason);
}

static int gap_in_new_file(struct transaction *txn, const char *reason) {
    char name[40];
    unsigned char uuid[16];
    struct fbc_error ignored;
    int fd = fbc_host_has_folder() ? fbc_host_take_journal(name, uuid, &ignored)
                                   : fbc_host_make_ownerless(txn->session->settings, name, uuid,
                                                             &txn->folder, &ignored);
    return fd >= 0 && write_gap(txn, fd, name, uuid, reason);
}

/* Put a sealed gap in the place of what TXN changed. Where nothing can be written there is none
 * afterwards, and commit counts it. A transaction that changed nothing leaves nothing. */
static void seal_gap(struct transaction *txn) {
    char reason[640];
    struct fbc_error ignored;
    if (txn->is_gap)
        return; /* a second prepare with nothing in between */
    if (!txn->changes) {
        drop_journal(txn);
        return;
    }
    snprintf(reason, sizeof reason,
             "transaction %llu was committed, but its changes could not be recorded: %s",
             (unsigned long long)txn->number, txn->error.text);
    make_utf8(reason);
    fbc_host_tell(reason);
    if (txn->session->unidentified.text[0] || txn->session->refusal ||
        (fbc_host_has_folder() && !fbc_host_folder_in_place(&ignored))) {
        drop_journal(txn); /* nobody could ask what became of it, or find it */
        return;
    }
    if (txn->has_journal && fbc_host_has_folder() &&
        !fbc_host_journal_in_place(txn->journal.fd, txn->journal.name, &ignored))
        drop_journal(txn);
    if (txn->has_journal) {
        txn->is_gap = rewrite_as_gap(txn, reason);
        if (!txn->is_gap)
            drop_journal(txn);
    }
    if (!txn->has_journal) {
        txn->is_gap = gap_in_new_file(txn, reason);
        if (!txn->is_gap)
            drop_journal(txn);
    }
    if (txn->is_gap && needs_sync(txn))
        fbc_sync_start(&txn->sync, txn->journal.fd);
}

static void set_committing_ddl(struct transaction *txn, int state) {
    if (txn->is_committing_ddl != state)
        fbc_question_ddl(state - txn->is_committing_ddl);
    txn->is_committing_ddl = state;
}

/* Wait until what DDL before this transaction made of tables is read: another DDL would hide it.
 * The bridge reads it now, as nobody can drop the database meanwhile: a DROP DATABASE right behind
 * a commit that meets an attachment of ours, or a half open one, fails, or leaves the file there,
 * unusable. Then have it find out which indexes are keys, as this transaction may drop one. */
static void await_described(struct transaction *txn) {
    size_t length;
    if (txn->broken)
        return;
    fbc_host_await_described(txn->session->database, txn->changes_tables, DESCRIBED_MS);
    struct fbc_question *question =
        txn->changes_indexes ? fbc_question_ask(FBC_KNOW_INDEXES, txn->session->database->id,
                                                fbc_host_generation(), "", 0)
                             : NULL;
    if (!question)
        return;
    fbc_question_await(question, &length);
    fbc_question_drop(question);
}

static void transaction_prepare(struct fbi_replicated_transaction *self,
                                struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    struct fbc_error error = txn->error;
    /* The engine has taken none of its exclusive locks yet: our attachment is not in its way, and
     * sees the tables as they were before a DDL of this transaction. */
    await_answers(txn);
    await_described(txn);
    set_committing_ddl(txn, txn->has_ddl);
    if (!txn->broken && seal(txn, &error))
        return;
    refuse(txn, status, &error);
    if (txn->is_lenient)
        seal_gap(txn);
}

static void end_without_commit(struct transaction *txn, struct fbi_status *status) {
    struct fbc_error error;
    set_committing_ddl(txn, 0);
    await_answers(txn); /* the next thing may be to drop the database */
    if (!txn->has_journal)
        return;
    int is_broken = unseal(txn, &error); /* one of both has to do */
    if (!drop_journal(txn) && !is_broken && status && !txn->is_lenient)
        report(status, error.text);
}

/* End the work on a gap that was written where no bridge ran. Whoever works in its folder next
 * finds it; returns 0 if that is the bridge of this process, which has been started since. */
static int leave_ownerless(struct transaction *txn, int is_synced) {
    int is_left = !fbc_host_is_folder(txn->folder);
    is_synced = fsync(txn->folder) == 0 && is_synced;
    close(txn->folder);
    txn->folder = -1;
    if (is_left) {
        release_tickets(txn);
        if (!is_synced) /* it may be gone after a power cut */
            fbc_host_count_gap(txn->session->database, txn->error.text);
        fbc_journal_free(&txn->journal);
        txn->has_journal = 0;
    }
    return is_left;
}

static void transaction_commit(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    struct session *session = txn->session;
    struct fbc_error error;
    int may_report = !txn->is_lenient;
    txn->is_lenient = 1; /* it can't be refused any more */
    txn->is_limited = 0;
    if (txn->has_ddl)
        fbc_host_new_generation();
    if (!txn->has_journal || !txn->journal.sealed_at) /* the engine did not ask for a prepare, */
        transaction_prepare(self, status);            /* or did not heed the answer */
    set_committing_ddl(txn, 0);
    txn->is_ended = 1;
    if (!txn->broken && !root_was_released(txn, &error)) {
        refuse(txn, status, &error);
        seal_gap(txn);
    }
    /* Without a ticket that all draw from one file its place would mean nothing: count it then. */
    if (txn->is_gap && !hold_tickets(txn, &error))
        txn->is_gap = 0;
    if (txn->broken && !txn->is_gap) {
        if (txn->changes)
            count_lost(txn);
        drop_journal(txn);
        return;
    }
    if (is_empty(txn)) {
        drop_journal(txn);
        return;
    }
    FBC_FAILPOINT("commit.before_sync");
    int sync_error = fbc_sync_wait(&txn->sync);
    FBC_FAILPOINT("commit.synced");
    if (sync_error) { /* too late to refuse this one: refuse the next, until a new start works */
        fbc_error_set(&error, sync_error, "cannot sync %s.log.live of committed transaction %llu",
                      txn->journal.name, (unsigned long long)txn->number);
        if (may_report)
            report(status, error.text);
        fbc_host_tell(error.text);
        fbc_host_distrust(&error);
    }
    if (txn->is_gap)
        count_failure(session, FBC_GAPS);
    if (txn->folder >= 0 && leave_ownerless(txn, !sync_error))
        return;
    struct fbc_event event = {
        .kind = FBC_COMMITTED,
        .database = session->database->id,
        .transaction = txn->number,
        .ticket = fbc_host_begin_commit(session->database, txn->changes_tables),
        .commit_us = fbc_now_us(),
        .length = txn->journal.length,
        .catalogue_offset = txn->journal.catalogue_at,
        .events = txn->journal.at.events,
        .has_ddl = (uint32_t)txn->has_ddl,
        .is_unresolved = (uint32_t)(txn->is_unresolved && !txn->is_gap),
        .is_unsynced = sync_error != 0,
        .is_gap = (uint32_t)txn->is_gap,
        .fd = txn->journal.fd,
    };
    FBC_FAILPOINT("commit.ticket_drawn");
    memcpy(event.uuid, txn->journal.uuid, 16);
    if (txn->is_gap || sync_error)
        snprintf(event.reason, sizeof event.reason, "%.255s",
                 txn->is_gap ? txn->error.text : error.text);
    /* The mark is for readers of the file; the hand-over below does not depend on it. */
    if (!fbc_journal_mark_commit(&txn->journal, event.ticket, event.commit_us, txn->number,
                                 sync_error != 0, &error) &&
        may_report)
        report(status, error.text);
    FBC_FAILPOINT("commit.marked");
    txn->journal.fd = -1;
    session->last_handed_over = fbc_host_hand_over(&event);
    FBC_FAILPOINT("commit.handed_over");
    fbc_host_end_commit();
    release_tickets(txn);
    FBC_FAILPOINT("commit.end");
    if (!event.is_gap) {
        fbc_count(tally_of(txn), FBC_CAPTURED, 1);
        fbc_count(tally_of(txn), FBC_CHANGES, event.events);
        fbc_count(tally_of(txn), FBC_BYTES, event.length);
    }
    for (struct sequence *each = session->sequences; each; each = each->next)
        if (each->written_by == txn->number) {
            each->changed = each->value != each->written;
            each->written_by = 0;
        }
    fbc_journal_free(&txn->journal);
    txn->has_journal = 0;
}

/* The engine lets TXN go without a word on its end: it is in limbo, between the phases of a
 * two-phase commit, or publication was switched off. Leave all that is known of it on disk for the
 * bridge, which can tell the two apart. What is lost counts now: nobody asks us once it is
 * committed.
 */
static void abandon(struct transaction *txn) {
    struct fbc_error error = txn->error;
    txn->is_limited = 0; /* it is in limbo, or has committed */
    await_answers(txn);
    txn->is_lenient = 1;
    if (txn->broken || !seal(txn, &error)) {
        refuse(txn, NULL, &error);
        seal_gap(txn);
    }
    if (is_empty(txn) || txn->folder >= 0) {
        if (txn->broken && txn->changes)
            count_lost(txn);
        drop_journal(txn);
        return;
    }
    if (txn->is_gap)
        count_failure(txn->session, FBC_GAPS);
    int sync_error = fbc_sync_wait(&txn->sync);
    if (sync_error) {
        fbc_error_set(&error, sync_error, "cannot sync %s.log.live of transaction %llu in limbo",
                      txn->journal.name, (unsigned long long)txn->number);
        fbc_host_tell(error.text);
        fbc_host_distrust(&error);
    }
    struct fbc_event event = {.kind = FBC_ABANDONED,
                              .database = txn->session->database->id,
                              .transaction = txn->number,
                              .is_unsynced = sync_error != 0,
                              .fd = -1};
    memcpy(event.uuid, txn->journal.uuid, 16);
    /* It has no ticket, but who builds on it once it is resolved needs a higher floor. */
    fbc_host_begin_commit(txn->session->database, 0);
    fbc_host_end_commit();
    txn->session->last_handed_over = fbc_host_hand_over(&event);
    release_tickets(txn);
    fbc_journal_free(&txn->journal);
    txn->has_journal = 0;
}

static void transaction_rollback(struct fbi_replicated_transaction *self,
                                 struct fbi_status *status) {
    struct transaction *txn = transaction_of(self);
    txn->is_ended = 1;
    fbc_count(tally_of(txn), FBC_ROLLED_BACK, txn->changes > 0);
    fbc_count(tally_of(txn), FBC_OPENED_IN_VAIN, (uint64_t)txn->has_journal);
    end_without_commit(txn, status);
}

static void transaction_dispose(struct fbi_replicated_transaction *self) {
    struct transaction *txn = transaction_of(self);
    int is_lost = txn->is_lenient && txn->broken && txn->changes;
    if ((txn->has_journal || is_lost) && !txn->is_ended)
        abandon(txn);
    end_without_commit(txn, NULL);
    fbc_journal_free(&txn->journal);
    free_transaction(txn);
}

/* ---- The time that all this takes ---------------------------------------------------------- */

static void timed_prepare(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    transaction_prepare(self, status);
    fbc_observe(tally_of(transaction_of(self)), FBC_TIME_PREPARE, fbc_clock_ns() - since);
}

static void timed_commit(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    transaction_commit(self, status);
    fbc_observe(tally_of(transaction_of(self)), FBC_TIME_COMMIT, fbc_clock_ns() - since);
}

static void timed_rollback(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    transaction_rollback(self, status);
    fbc_observe(tally_of(transaction_of(self)), FBC_TIME_ROLLBACK, fbc_clock_ns() - since);
}

static void timed_dispose(struct fbi_replicated_transaction *self) {
    struct transaction *txn = transaction_of(self);
    if (txn->calls)
        fbc_observe(tally_of(txn), FBC_TIME_ROWS, txn->calls_ns);
    transaction_dispose(self);
}

/* The time at the beginning of a call for rows; 0: it is not looked at. */
static uint64_t call_begins(struct fbi_replicated_transaction *self) {
    struct transaction *txn = transaction_of(self);
    uint32_t hash = (uint32_t)++txn->calls * 2654435761u; /* 2^32 over the golden ratio */
    return txn->calls <= TIMED_CALLS || !(hash >> (32 - SAMPLED_BITS)) ? fbc_clock_ns() : 0;
}

static void call_ends(struct fbi_replicated_transaction *self, uint64_t since) {
    struct transaction *txn = transaction_of(self);
    if (since)
        txn->calls_ns += (fbc_clock_ns() - since) << (txn->calls <= TIMED_CALLS ? 0 : SAMPLED_BITS);
}

static void timed_start_savepoint(struct fbi_replicated_transaction *self,
                                  struct fbi_status *status) {
    uint64_t since = call_begins(self);
    transaction_start_savepoint(self, status);
    call_ends(self, since);
}

static void timed_rollback_savepoint(struct fbi_replicated_transaction *self,
                                     struct fbi_status *status) {
    uint64_t since = call_begins(self);
    transaction_rollback_savepoint(self, status);
    call_ends(self, since);
}

static void timed_insert(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *record) {
    uint64_t since = call_begins(self);
    row_change(self, status, table, NULL, record);
    call_ends(self, since);
}

static void timed_update(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *old_record,
                         struct fbi_replicated_record *new_record) {
    uint64_t since = call_begins(self);
    row_change(self, status, table, old_record, new_record);
    call_ends(self, since);
}

static void timed_delete(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *record) {
    uint64_t since = call_begins(self);
    row_change(self, status, table, record, NULL);
    call_ends(self, since);
}

static void timed_execute_intl(struct fbi_replicated_transaction *self, struct fbi_status *status,
                               unsigned charset, const char *sql) {
    uint64_t since = call_begins(self);
    transaction_execute_intl(self, status, charset, sql);
    call_ends(self, since);
}

static void timed_execute(struct fbi_replicated_transaction *self, struct fbi_status *status,
                          const char *sql) {
    enum { CHARSET_UTF8 = 4 };
    timed_execute_intl(self, status, CHARSET_UTF8, sql);
}

static const struct fbi_replicated_transaction_vt transaction_vt = {
    .version = FBI_REPLICATED_TRANSACTION_VERSION,
    .dispose = timed_dispose,
    .prepare = timed_prepare,
    .commit = timed_commit,
    .rollback = timed_rollback,
    .start_savepoint = timed_start_savepoint,
    .release_savepoint = transaction_release_savepoint,
    .rollback_savepoint = timed_rollback_savepoint,
    .insert_record = timed_insert,
    .update_record = timed_update,
    .delete_record = timed_delete,
    .execute_sql = timed_execute,
    .execute_sql_intl = timed_execute_intl,
};

/* ---- IReplicatedSession ------------------------------------------------------------------- */

static struct session *session_of(struct fbi_replicated_session *self) {
    return (struct session *)self;
}

static void session_add_ref(struct fbi_replicated_session *self) {
    session_of(self)->references++;
}

static int session_release(struct fbi_replicated_session *self) {
    struct session *session = session_of(self);
    int left = --session->references;
    if (left > 0)
        return left;
    uint64_t since = fbc_clock_ns();
    /* The last attachment may take the database and the process with it: give the bridge the
     * moment it needs to learn what became of this session's commits, and to let go. */
    int is_last = --sessions == 0;
    if (session->database && is_last)
        session->last_handed_over =
            fbc_host_hand_over(&(struct fbc_event){.kind = FBC_LAST_SESSION_LEFT, .fd = -1});
    if (session->last_handed_over)
        fbc_host_await_settled(session->last_handed_over, SETTLE_MS);
    if (session->database) {
        fbc_observe(fbc_host_tally(session->database), FBC_TIME_DETACH, fbc_clock_ns() - since);
        fbc_host_leave(session->database);
    }
    free_shapes(session);
    while (session->sequences) {
        struct sequence *sequence = session->sequences;
        session->sequences = sequence->next;
        free(sequence);
    }
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

/* Whether what can't be recorded is let through: the user wants that, or the engine would stop
 * asking us at the first error. */
static int is_lenient(const struct session *session) {
    return !session->heeds_errors || fbc_host_mode_is_gap(session->settings);
}

static struct transaction *new_transaction(struct session *session, struct fbi_transaction *engine,
                                           int64_t number, struct fbc_error *error) {
    if (session->refusal && (!session->database || session->heeds_errors)) {
        fbc_error_set(error, 0, "%s", session->refusal);
        return NULL;
    }
    struct transaction *txn = calloc(1, sizeof *txn);
    if (!txn || !(txn->status = fbc_host_new_status())) {
        fbc_error_set(error, 0, "no memory for a transaction");
        free(txn);
        return NULL;
    }
    txn->base.vt = &transaction_vt;
    txn->session = session;
    txn->engine = engine;
    txn->number = (uint64_t)number;
    txn->journal.fd = -1;
    txn->folder = -1;
    session_add_ref(&session->base);
    if (!session->database)
        identify(txn, error);
    if (!session->database) {
        free_transaction(txn);
        return NULL;
    }
    txn->is_rootless = session->is_rootless;
    txn->is_lenient = is_lenient(session);
    txn->is_limited = 1;
    int is_ready = fbc_host_ready(session->settings, error);
    if (is_ready && !session->unidentified.text[0] && !session->refusal)
        return txn;
    if (session->refusal)
        fbc_error_set(error, 0, "%s", session->refusal);
    else if (is_ready)
        *error = session->unidentified;
    /* Of an engine that can't be served not even a gap may be left in a file. */
    if (txn->is_lenient && !(session->refusal && session->heeds_errors)) {
        txn->broken = 1;
        txn->error = *error;
        return txn;
    }
    free_transaction(txn);
    return NULL;
}

static struct fbi_replicated_transaction *
session_start_transaction(struct fbi_replicated_session *self, struct fbi_status *status,
                          struct fbi_transaction *engine, int64_t number) {
    struct fbc_error error = {{0}};
    uint64_t since = fbc_clock_ns();
    struct session *session = session_of(self);
    struct transaction *txn = new_transaction(session, engine, number, &error);
    struct fbc_tally *tally = fbc_host_tally(session->database);
    fbc_observe(tally, FBC_TIME_START, fbc_clock_ns() - since);
    if (txn)
        return &txn->base;
    if (!session->refusal && session->database && is_lenient(session)) { /* no memory */
        count_failure(session, FBC_GAPS);
        fbc_host_count_gap(session->database, error.text);
        return NULL;
    }
    if (session->last_refused != number) /* each of its changes asks again */
        count_failure(session, FBC_REFUSED);
    session->last_refused = number;
    char text[1024];
    snprintf(text, sizeof text,
             "firebird-cdc: capture can't start, so writes to captured tables are refused: %s",
             error.text);
    report(status, text);
    return NULL;
}

static void session_cleanup_transaction(struct fbi_replicated_session *self,
                                        struct fbi_status *status, int64_t number) {
    struct session *session = session_of(self);
    struct fbc_error error;
    (void)status; /* an error here would refuse the first attachment after a crash */
    if (!session->refusal && fbc_host_ready(session->settings, &error))
        fbc_host_hand_over(
            &(struct fbc_event){.kind = FBC_DEAD_TRANSACTIONS,
                                .database = session->database ? session->database->id : 0,
                                .transaction = (uint64_t)number,
                                .fd = -1});
}

static void session_set_sequence(struct fbi_replicated_session *self, struct fbi_status *status,
                                 const char *name, int64_t value) {
    struct session *session = session_of(self);
    (void)status;
    struct sequence *sequence = session->sequences;
    while (sequence && strcmp(sequence->name, name) != 0)
        sequence = sequence->next;
    if (!sequence) {
        sequence = calloc(1, sizeof *sequence + strlen(name) + 1);
        if (!sequence) {
            fbc_host_tell("no memory for the value of a sequence; it is not recorded");
            return;
        }
        memcpy(sequence->name, name, strlen(name) + 1);
        sequence->next = session->sequences;
        session->sequences = sequence;
    }
    sequence->value = value;
    sequence->changed = 1;
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
    .set_sequence = session_set_sequence,
};

struct fbi_replicated_session *fbc_session_new(const struct fbc_settings *settings,
                                               const char *refusal) {
    struct session *session = calloc(1, sizeof *session);
    if (!session)
        return NULL;
    session->base.vt = &session_vt;
    session->references = 1;
    sessions++;
    session->settings = settings;
    session->refusal = refusal;
    return &session->base;
}
