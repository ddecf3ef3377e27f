/* Begins three transactions of a session, of which the engine tells nothing at first, and prints in
 * which database each is, and why it is broken. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transaction.h"

static int has_failed; /* the last call of the engine */
static int entered;    /* sessions in databases */

static void nothing(struct fbi_status *status) {
    (void)status;
}

static unsigned get_state(const struct fbi_status *status) {
    (void)status;
    return has_failed ? FBI_STATE_ERRORS : 0;
}

static const intptr_t *get_errors(const struct fbi_status *status) {
    static const intptr_t errors[] = {FBI_ARG_GDS, 335544321, FBI_ARG_END};
    (void)status;
    return errors;
}

static const struct fbi_status_vt status_vt = {
    .dispose = nothing, .init = nothing, .get_state = get_state, .get_errors = get_errors};
static struct fbi_status status = {.vt = &status_vt};

static void get_info(struct fbi_attachment *self, struct fbi_status *to, unsigned count,
                     const unsigned char *items, unsigned size, unsigned char *buffer) {
    static const unsigned char answer[] = {
        FBI_INFO_DB_ID, 10, 0, 2, 7, '/', 'd', 'b', '.', 'f', 'd', 'b', 0, FBI_INFO_END};
    static int calls;
    (void)self, (void)to, (void)count, (void)items, (void)size;
    has_failed = calls++ < 2;
    if (!has_failed)
        memcpy(buffer, answer, sizeof answer);
}

static const struct fbi_attachment_vt attachment_vt = {.get_info = get_info};

static void add_ref(struct fbi_replicated_session *self) {
    (void)self;
}

static const struct fbi_replicated_session_vt session_vt = {.add_ref = add_ref};
const struct fbi_replicated_transaction_vt fbc_transaction_vt;

struct fbi_status *fbc_host_new_status(void) {
    return &status;
}

int fbc_host_ready(const struct fbc_settings *settings, struct fbc_error *error) {
    (void)settings, (void)error;
    return FBC_OK;
}

int fbc_host_mode_is_gap(const struct fbc_settings *settings) {
    (void)settings;
    return 1;
}

int fbc_host_engine_propagates_errors(struct fbc_database *database) {
    (void)database;
    return 1;
}

struct fbc_database *fbc_database_enter(const char *path, const unsigned char *guid,
                                        struct fbc_error *error) {
    static struct fbc_database databases[2];
    struct fbc_database *database = &databases[*path != 0];
    (void)guid, (void)error;
    snprintf(database->path, sizeof database->path, "%s", path);
    entered++;
    return database;
}

void fbc_database_leave(struct fbc_database *database) {
    (void)database;
    entered--;
}

void fbc_error_set(struct fbc_error *error, int error_number, const char *text, ...) {
    va_list arguments;
    (void)error_number;
    va_start(arguments, text);
    vsnprintf(error->text, sizeof error->text, text, arguments);
    va_end(arguments);
}

int main(void) {
    struct fbi_attachment attachment = {.vt = &attachment_vt};
    struct fbc_session session = {.base = {.vt = &session_vt}, .attachment = &attachment};
    for (int number = 1; number <= 3; number++) {
        struct fbc_error error = {{0}};
        struct fbc_transaction *txn = fbc_txn_new(&session, NULL, number, &error);
        printf("[%s] %s\n", session.database->path, txn->broken ? txn->error.text : "captured");
        free(txn);
    }
    printf("%d\n", entered);
    return 0;
}
