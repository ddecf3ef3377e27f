/* A process with the engine and no Python in it, as a server is: one command per line.
 *
 *   attach PATH | execute SQL | commit | rollback | children
 *
 * Answers each with a line: "ok", "error" and the engine's text, or for `children` the number
 * of SIGCHLDs that came and of children that can be waited for. Ends at the end of its input.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

typedef intptr_t status_vector[20];
typedef unsigned handle;

intptr_t isc_attach_database(intptr_t *, short, const char *, handle *, short, const char *);
intptr_t isc_detach_database(intptr_t *, handle *);
intptr_t isc_start_transaction(intptr_t *, handle *, short, handle *, unsigned short, const char *);
intptr_t isc_commit_transaction(intptr_t *, handle *);
intptr_t isc_rollback_transaction(intptr_t *, handle *);
intptr_t isc_dsql_execute_immediate(intptr_t *, handle *, handle *, unsigned short, const char *,
                                    unsigned short, const void *);
unsigned fb_interpret(char *, unsigned, const intptr_t **);

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

static void answer(const intptr_t *status) {
    if (status[0] == 1 && status[1]) {
        char text[1024];
        printf("error");
        while (fb_interpret(text, sizeof text, &status))
            printf(" %s", text);
        printf("\n");
    } else
        printf("ok\n");
    fflush(stdout);
}

int main(void) {
    static const char dpb[] = {1, 28, 6, 'S', 'Y', 'S', 'D', 'B', 'A', 48, 4, 'U', 'T', 'F', '8'};
    handle database = 0, transaction = 0;
    char line[64 * 1024];
    signal(SIGCHLD, count_signal);
    while (fgets(line, sizeof line, stdin)) {
        status_vector status = {0};
        line[strcspn(line, "\n")] = 0;
        char *argument = strchr(line, ' ');
        argument = argument ? argument + 1 : line;
        if (strncmp(line, "attach", 6) == 0)
            isc_attach_database(status, 0, argument, &database, sizeof dpb, dpb);
        else if (strncmp(line, "execute", 7) == 0) {
            if (!transaction)
                isc_start_transaction(status, &transaction, 1, &database, 0, NULL);
            if (transaction)
                isc_dsql_execute_immediate(status, &database, &transaction, 0, argument, 3, NULL);
        } else if (strcmp(line, "commit") == 0)
            isc_commit_transaction(status, &transaction);
        else if (strcmp(line, "rollback") == 0)
            isc_rollback_transaction(status, &transaction);
        else if (strcmp(line, "children") == 0) {
            int left = waitpid(-1, NULL, WNOHANG | __WALL) >= 0 || errno != ECHILD;
            printf("%d %d\n", (int)signals, left);
            fflush(stdout);
            continue;
        }
        answer(status);
    }
    status_vector status = {0};
    if (transaction)
        isc_rollback_transaction(status, &transaction);
    if (database)
        isc_detach_database(status, &database);
    return 0;
}
