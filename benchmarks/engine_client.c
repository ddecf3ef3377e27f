/* A client of a server that costs the machine as little as one can: prepared statements through
 * the C API, one thread per connection. engine.py compiles it and runs one process per server.
 *
 *   engine_client LIBRARY DATABASE PASSWORD
 *
 * It reads commands, one a line, and answers each with the seconds that it took:
 *   create PUBLISH               makes the database and table T, in its publication or not
 *   sql STATEMENT                one statement in a transaction of its own, on the first connection
 *   attach CONNECTIONS           opens connections until there are so many
 *   commits CONNECTIONS N WARM   N single-row transactions on each of the first connections at
 *                                once, after WARM more that are not timed
 *   bulk N                       one transaction of N rows
 *   first                        one single-row transaction on a new connection, which is closed
 *                                then; to open and to close it is not timed
 *   pace RATE N FILE             N single-row transactions on the first connection, RATE a second,
 *                                each begun at its time however long the last one took; FILE gets
 *                                one line for each: when commit returned, CLOCK_MONOTONIC in ns
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CONNECTIONS = 64 };

typedef intptr_t status_vector[20];
typedef unsigned handle;

static void *library;
static const char *path, *password;
static _Thread_local status_vector status;

static struct connection {
    handle database, insert;
    int count, warm;
} connections[MOST_CONNECTIONS];
static int attached;
static pthread_barrier_t start;

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

static intptr_t (*attach_database)(intptr_t *, short, const char *, handle *, short, const char *);
static intptr_t (*detach_database)(intptr_t *, handle *);
static intptr_t (*start_transaction)(intptr_t *, handle *, short, handle *, unsigned short,
                                     const char *);
static intptr_t (*commit)(intptr_t *, handle *);
static intptr_t (*allocate)(intptr_t *, handle *, handle *);
static intptr_t (*prepare)(intptr_t *, handle *, handle *, unsigned short, const char *,
                           unsigned short, void *);
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

static void create(int publish) {
    char sql[1200];
    handle database = 0, none = 0;
    snprintf(sql, sizeof sql,
             "CREATE DATABASE '%s' USER 'SYSDBA' PASSWORD '%s' DEFAULT CHARACTER SET UTF8", path,
             password);
    execute_immediate(status, &database, &none, 0, sql, 3, NULL);
    check("CREATE DATABASE");
    statement(&database, "CREATE TABLE T (ID BIGINT NOT NULL PRIMARY KEY, NAME VARCHAR(40), "
                         "AMOUNT NUMERIC(12,2), CHANGED TIMESTAMP)");
    if (publish) {
        statement(&database, "ALTER DATABASE INCLUDE ALL TO PUBLICATION");
        statement(&database, "ALTER DATABASE ENABLE PUBLICATION");
    }
    detach_database(status, &database);
    check("detach");
}

static void connect_to(struct connection *self) {
    char dpb[300];
    int length = snprintf(dpb, sizeof dpb, "\1\34\6SYSDBA\35%c%s", (int)strlen(password), password);
    handle transaction = 0;
    attach_database(status, 0, path, &self->database, (short)length, dpb);
    check("attach");
    allocate(status, &self->database, &self->insert);
    check("allocation of a statement");
    begin(&self->database, &transaction);
    prepare(status, &transaction, &self->insert, 0,
            "INSERT INTO T VALUES (CURRENT_TRANSACTION, 'the name of a thing', 12.34, "
            "CURRENT_TIMESTAMP)",
            3, NULL);
    check("prepare");
    finish(&transaction);
}

static void attach(int count) {
    for (; attached < count; attached++)
        connect_to(&connections[attached]);
}

static void commit_row(struct connection *self) {
    handle transaction = 0;
    begin(&self->database, &transaction);
    execute(status, &transaction, &self->insert, 3, NULL);
    check("insert");
    finish(&transaction);
}

static double first(void) {
    struct connection new = {0};
    connect_to(&new);
    double started = now();
    commit_row(&new);
    double taken = now() - started;
    detach_database(status, &new.database);
    check("detach");
    return taken;
}

static void *commit_rows(void *argument) {
    struct connection *self = argument;
    for (int i = -self->warm; i < self->count; i++) {
        if (i == 0)
            pthread_barrier_wait(&start);
        commit_row(self);
    }
    return NULL;
}

static double commits(int count, int transactions, int warm) {
    pthread_t threads[MOST_CONNECTIONS];
    pthread_barrier_init(&start, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        connections[i].count = transactions;
        connections[i].warm = warm;
        if (pthread_create(&threads[i], NULL, commit_rows, &connections[i])) {
            fprintf(stderr, "cannot start a thread\n");
            exit(1);
        }
    }
    pthread_barrier_wait(&start);
    double started = now();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    return now() - started;
}

static double timed(const char *sql) {
    double started = now();
    statement(&connections[0].database, sql);
    return now() - started;
}

static double bulk(int count) {
    static int64_t first;
    char sql[512];
    if (!first) { /* two runs begin within a second: keys from the nanosecond on */
        struct timespec begun;
        clock_gettime(CLOCK_REALTIME, &begun);
        first = (int64_t)begun.tv_sec * 1000000000 + begun.tv_nsec;
    }
    snprintf(sql, sizeof sql,
             "EXECUTE BLOCK AS DECLARE I BIGINT = %lld; BEGIN WHILE (I < %lld) DO BEGIN "
             "INSERT INTO T VALUES (:I, 'the name of a thing', 12.34, CURRENT_TIMESTAMP); "
             "I = I + 1; END END",
             (long long)first, (long long)(first + count));
    first += count;
    return timed(sql);
}

static double pace(int rate, int count, const char *file) {
    enum { SECOND = 1000000000 };
    struct connection *self = &connections[0];
    struct timespec due, returned;
    int64_t *returns = malloc((size_t)count * sizeof *returns);
    FILE *out = fopen(file, "w");
    if (!returns || !out) {
        fprintf(stderr, "cannot keep the times in %s\n", file);
        exit(1);
    }
    clock_gettime(CLOCK_MONOTONIC, &due);
    double started = now();
    for (int i = 0; i < count; i++) {
        due.tv_nsec += SECOND / rate;
        if (due.tv_nsec >= SECOND) {
            due.tv_nsec -= SECOND;
            due.tv_sec++;
        }
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            ;
        commit_row(self);
        clock_gettime(CLOCK_MONOTONIC, &returned);
        returns[i] = (int64_t)returned.tv_sec * SECOND + returned.tv_nsec;
    }
    double taken = now() - started;
    for (int i = 0; i < count; i++)
        fprintf(out, "%lld\n", (long long)returns[i]);
    if (fclose(out)) {
        fprintf(stderr, "cannot write %s\n", file);
        exit(1);
    }
    free(returns);
    return taken;
}

int main(int count, char **arguments) {
    char line[4000], file[4000];
    int numbers[3];
    if (count != 4 || !(library = dlopen(arguments[1], RTLD_NOW))) {
        fprintf(stderr, "usage: engine_client LIBRARY DATABASE PASSWORD\n");
        return 2;
    }
    path = arguments[2];
    password = arguments[3];
    *(void **)&attach_database = function("isc_attach_database");
    *(void **)&detach_database = function("isc_detach_database");
    *(void **)&start_transaction = function("isc_start_transaction");
    *(void **)&commit = function("isc_commit_transaction");
    *(void **)&allocate = function("isc_dsql_allocate_statement");
    *(void **)&prepare = function("isc_dsql_prepare");
    *(void **)&execute = function("isc_dsql_execute");
    *(void **)&execute_immediate = function("isc_dsql_execute_immediate");
    while (fgets(line, sizeof line, stdin)) {
        double seconds = 0;
        if (sscanf(line, "create %d", &numbers[0]) == 1)
            create(numbers[0]);
        else if (strncmp(line, "sql ", 4) == 0 && attached)
            seconds = timed(line + 4);
        else if (sscanf(line, "attach %d", &numbers[0]) == 1 && numbers[0] <= MOST_CONNECTIONS)
            attach(numbers[0]);
        else if (sscanf(line, "commits %d %d %d", &numbers[0], &numbers[1], &numbers[2]) == 3 &&
                 numbers[0] <= attached)
            seconds = commits(numbers[0], numbers[1], numbers[2]);
        else if (sscanf(line, "bulk %d", &numbers[0]) == 1 && attached)
            seconds = bulk(numbers[0]);
        else if (strncmp(line, "first", 5) == 0)
            seconds = first();
        else if (sscanf(line, "pace %d %d %s", &numbers[0], &numbers[1], file) == 3 && attached)
            seconds = pace(numbers[0], numbers[1], file);
        else {
            fprintf(stderr, "not a command: %s", line);
            return 2;
        }
        printf("%.9f\n", seconds);
        fflush(stdout);
    }
    return 0;
}
