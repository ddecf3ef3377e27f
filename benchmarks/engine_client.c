/* A client of the embedded engine that costs the machine as little as one can: prepared
 * statements through the C API. engine.py compiles it and runs one process per measurement.
 *
 *   engine_client LIBRARY DATABASE create PUBLISH    makes the database and table T
 *   engine_client LIBRARY DATABASE commits N WARM    N single-row transactions, after WARM more
 *   engine_client LIBRARY DATABASE bulk N WARM       one transaction of N rows, after WARM rows
 *
 * Prints the seconds that the work took, without attaching and without the warm-up.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef intptr_t status_vector[20];
typedef unsigned handle;

static void *library;
static status_vector status;

static void *function(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the client library lacks %s\n", name);
        exit(2);
    }
    return found;
}

static void check(const char *what) {
    if (status[0] == 1 && status[1]) {
        char text[512];
        const intptr_t *vector = status;
        unsigned (*interpret)(char *, unsigned, const intptr_t **);
        *(void **)&interpret = function("fb_interpret");
        fprintf(stderr, "%s failed:\n", what);
        while (interpret(text, sizeof text, &vector))
            fprintf(stderr, "  %s\n", text);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static intptr_t (*start_transaction)(intptr_t *, handle *, short, handle *, unsigned short,
                                     const char *);
static intptr_t (*commit)(intptr_t *, handle *);
static intptr_t (*execute)(intptr_t *, handle *, handle *, unsigned short, const void *);
static intptr_t (*execute_immediate)(intptr_t *, handle *, handle *, unsigned short, const char *,
                                     unsigned short, const void *);

static void begin(handle *database, handle *transaction) {
    start_transaction(status, transaction, 1, database, 0, NULL);
    check("start of a transaction");
}

static void finish(handle *transaction) {
    commit(status, transaction);
    check("commit");
}

static void run(handle *database, handle *transaction, const char *sql) {
    execute_immediate(status, database, transaction, 0, sql, 3, NULL);
    check(sql);
}

static void statement(handle *database, const char *sql) {
    handle transaction = 0;
    begin(database, &transaction);
    run(database, &transaction, sql);
    finish(&transaction);
}

static double commits(handle *database, int count, int warm) {
    intptr_t (*allocate)(intptr_t *, handle *, handle *);
    intptr_t (*prepare)(intptr_t *, handle *, handle *, unsigned short, const char *,
                        unsigned short, void *);
    handle insert = 0, transaction = 0;
    double started = 0;
    *(void **)&allocate = function("isc_dsql_allocate_statement");
    *(void **)&prepare = function("isc_dsql_prepare");
    allocate(status, database, &insert);
    check("allocation of a statement");
    begin(database, &transaction);
    prepare(status, &transaction, &insert, 0,
            "INSERT INTO T VALUES (CURRENT_TRANSACTION, 'the name of a thing', 12.34, "
            "CURRENT_TIMESTAMP)",
            3, NULL);
    check("prepare");
    finish(&transaction);
    for (int i = -warm; i < count; i++) {
        if (i == 0)
            started = now();
        begin(database, &transaction);
        execute(status, &transaction, &insert, 3, NULL);
        check("insert");
        finish(&transaction);
    }
    return now() - started;
}

static void insert_rows(handle *database, int64_t first, int count) {
    char sql[512];
    snprintf(sql, sizeof sql,
             "EXECUTE BLOCK AS DECLARE I BIGINT = %lld; BEGIN WHILE (I < %lld) DO BEGIN "
             "INSERT INTO T VALUES (:I, 'the name of a thing', 12.34, CURRENT_TIMESTAMP); "
             "I = I + 1; END END",
             (long long)first, (long long)(first + count));
    statement(database, sql);
}

static double bulk(handle *database, int count, int warm) {
    int64_t first = (int64_t)time(NULL) * 1000000000;
    insert_rows(database, first, warm);
    double started = now();
    insert_rows(database, first + warm, count);
    return now() - started;
}

static void create(const char *path, int publish) {
    char sql[1200];
    handle database = 0, none = 0;
    snprintf(sql, sizeof sql, "CREATE DATABASE '%s' USER 'SYSDBA' DEFAULT CHARACTER SET UTF8",
             path);
    execute_immediate(status, &database, &none, 0, sql, 3, NULL);
    check("CREATE DATABASE");
    statement(&database, "CREATE TABLE T (ID BIGINT NOT NULL PRIMARY KEY, NAME VARCHAR(40), "
                         "AMOUNT NUMERIC(12,2), CHANGED TIMESTAMP)");
    if (publish) {
        statement(&database, "ALTER DATABASE INCLUDE ALL TO PUBLICATION");
        statement(&database, "ALTER DATABASE ENABLE PUBLICATION");
    }
}

int main(int count, char **arguments) {
    static const char dpb[] = "\1\34\6SYSDBA"; /* version 1, isc_dpb_user_name */
    intptr_t (*attach)(intptr_t *, short, const char *, handle *, short, const char *);
    intptr_t (*detach)(intptr_t *, handle *);
    if (count < 5 || !(library = dlopen(arguments[1], RTLD_NOW))) {
        fprintf(stderr, "usage: engine_client LIBRARY DATABASE create|commits|bulk N WARM\n");
        return 2;
    }
    *(void **)&attach = function("isc_attach_database");
    *(void **)&detach = function("isc_detach_database");
    *(void **)&start_transaction = function("isc_start_transaction");
    *(void **)&commit = function("isc_commit_transaction");
    *(void **)&execute = function("isc_dsql_execute");
    *(void **)&execute_immediate = function("isc_dsql_execute_immediate");
    int amount = atoi(arguments[4]);
    if (strcmp(arguments[3], "create") == 0) {
        create(arguments[2], amount);
        return 0;
    }
    handle database = 0;
    int warm = count > 5 ? atoi(arguments[5]) : 0;
    attach(status, 0, arguments[2], &database, sizeof dpb - 1, dpb);
    check("attach");
    double seconds = strcmp(arguments[3], "bulk") == 0 ? bulk(&database, amount, warm)
                                                       : commits(&database, amount, warm);
    detach(status, &database);
    check("detach");
    printf("%.9f\n", seconds);
    return 0;
}
