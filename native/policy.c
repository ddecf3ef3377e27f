/* What becomes of a transaction whose changes can't be recorded; see policy.h.
 *
 * The engine reads replication.conf with the parser of all its configuration files
 * (src/common/config/config_file.cpp), and takes from it, in order, every section "database"
 * without a value and the one with this database's path, which is the last that counts
 * (src/jrd/replication/Config.cpp). A file with an error makes it replicate nothing, so that we
 * are never asked; here such a file is read as far as it goes.
 */
#define _GNU_SOURCE
#include "policy.h"

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

enum { INCLUDE_LIMIT = 10 };

struct reading {
    const char *root, *database;
    int report_errors, disable_on_error;
    int level;    /* of sections that are open */
    int applies;  /* the open section is about this database */
    int is_exact; /* it names it */
    int is_done;  /* what follows does not count */
    int last_is_database;
    char last_value[PATH_MAX]; /* of the last entry outside of sections */
    int depth;                 /* of includes */
    int is_partial;            /* not all could be read */
};

enum line_kind { LINE_ENTRY, LINE_INCLUDE, LINE_OPENS, LINE_CLOSES, LINE_BAD };

static char *trim(char *text, const char *blanks) {
    text += strspn(text, blanks);
    size_t length = strlen(text);
    while (length && strchr(blanks, text[length - 1]))
        text[--length] = 0;
    return text;
}

/* Take LINE apart in place, as ConfigFile::parseLine does. What a '}' leaves before it is an entry
 * of its own: it is in *VALUE then. */
static enum line_kind parse_line(char *line, char **name, char **value) {
    static const char blanks[] = " \t\r";
    char *equals = NULL, *end = NULL;
    int quotes = 0, opens = 0;
    *name = *value = line + strlen(line);
    for (char *at = line; *at; at++) {
        if (*at == '"') {
            if (!equals || quotes >= 2)
                return LINE_BAD;
            quotes++;
        } else if (*at == '=') {
            if (equals ? quotes >= 2 : at == line)
                return LINE_BAD;
            if (!equals)
                equals = at;
        } else if (*at == '#') {
            if (quotes == 1)
                continue;
            end = at; /* behind a '{' that becomes a part of the entry, for the engine too */
            break;
        } else if (*at == '{' || *at == '}') {
            if (at[1] == *at)
                memmove(at, at + 1, strlen(at));
            else if (quotes != 1 && *at == '}') {
                *at = 0;
                *value = line;
                return LINE_CLOSES;
            } else if (quotes != 1) {
                opens = 1;
                quotes = 2;
                end = at;
            }
        } else if ((*at == ' ' || *at == '\t') && !equals && at - line == 7 &&
                   strncasecmp(line, "include", 7) == 0) {
            *value = trim(at, blanks);
            return LINE_INCLUDE;
        } else if (!strchr(blanks, *at) && quotes >= 2)
            return LINE_BAD;
    }
    if (quotes == 1)
        return LINE_BAD;
    if (end)
        *end = 0;
    if (equals) {
        *equals = 0;
        *value = trim(trim(equals + 1, blanks), "\"");
    }
    *name = trim(line, blanks);
    return opens ? LINE_OPENS : LINE_ENTRY;
}

/* Copy FROM with the macros that name folders; the others stay as they are. */
static void expand(const char *from, const struct reading *reading, const char *file, char *to,
                   size_t size) {
    static const char root[] = "$(root)", here[] = "$(this)";
    size_t used = 0;
    while (*from && used + 1 < size) {
        int is_root = strncasecmp(from, root, strlen(root)) == 0;
        if (is_root || strncasecmp(from, here, strlen(here)) == 0) {
            const char *slash = strrchr(file, '/');
            int length = is_root ? (int)strlen(reading->root) : slash ? (int)(slash - file) : 0;
            int written =
                snprintf(to + used, size - used, "%.*s", length, is_root ? reading->root : file);
            used += (size_t)written < size - used ? (size_t)written : size - used - 1;
            from += strlen(root);
            if (used && to[used - 1] == '/' && *from == '/')
                from++;
        } else
            to[used++] = *from++;
    }
    to[used] = 0;
}

static int is_same_file(const char *one, const char *other) {
    char first[PATH_MAX], second[PATH_MAX];
    return strcmp(realpath(one, first) ? first : one, realpath(other, second) ? second : other) ==
           0;
}

static void set_boolean(const char *value, int *to) {
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (unsigned i = 0; i < sizeof yes / sizeof *yes; i++)
        if (strcmp(value, yes[i]) == 0)
            *to = 1;
        else if (strcmp(value, no[i]) == 0)
            *to = 0;
}

static void take_entry(struct reading *reading, const char *name, const char *value,
                       const char *file) {
    if (reading->level == 0) {
        reading->last_is_database = strcasecmp(name, "database") == 0;
        expand(value, reading, file, reading->last_value, sizeof reading->last_value);
    } else if (reading->level == 1 && reading->applies) {
        /* unlike the name of a section, in this case only */
        if (strcmp(name, "report_errors") == 0)
            set_boolean(value, &reading->report_errors);
        else if (strcmp(name, "disable_on_error") == 0)
            set_boolean(value, &reading->disable_on_error);
    }
}

static void open_section(struct reading *reading) {
    if (++reading->level > 1)
        return;
    reading->is_exact = reading->last_value[0] != 0;
    reading->applies = reading->last_is_database &&
                       (!reading->is_exact || is_same_file(reading->last_value, reading->database));
}

static void close_section(struct reading *reading) {
    if (!reading->level || --reading->level)
        return;
    reading->is_done = reading->applies && reading->is_exact;
    reading->last_is_database = 0;
}

static void read_file(struct reading *reading, const char *path);

static void include(struct reading *reading, const char *what, const char *file) {
    char expanded[PATH_MAX], pattern[2 * PATH_MAX];
    const char *slash = strrchr(file, '/');
    glob_t found;
    expand(what, reading, file, expanded, sizeof expanded);
    if (expanded[0] == '/' || !slash)
        snprintf(pattern, sizeof pattern, "%s", expanded);
    else
        snprintf(pattern, sizeof pattern, "%.*s/%s", (int)(slash - file), file, expanded);
    if (reading->depth >= INCLUDE_LIMIT)
        return;
    int failed = glob(pattern, 0, NULL, &found);
    if (failed) {
        reading->is_partial |= failed != GLOB_NOMATCH;
        return;
    }
    reading->depth++;
    for (size_t i = 0; i < found.gl_pathc && !reading->is_done; i++)
        read_file(reading, found.gl_pathv[i]);
    reading->depth--;
    globfree(&found);
}

static void take_line(struct reading *reading, char *line, const char *file) {
    char *name, *value, *inner_name, *inner_value;
    switch (parse_line(line, &name, &value)) {
    case LINE_ENTRY:
        take_entry(reading, name, value, file);
        break;
    case LINE_INCLUDE:
        include(reading, value, file);
        break;
    case LINE_OPENS:
        if (*name)
            take_entry(reading, name, value, file);
        open_section(reading);
        break;
    case LINE_CLOSES:
        if (*value && parse_line(value, &inner_name, &inner_value) == LINE_ENTRY && *inner_name)
            take_entry(reading, inner_name, inner_value, file);
        close_section(reading);
        break;
    case LINE_BAD:
        reading->is_done = 1; /* the engine takes nothing from such a file */
        break;
    }
}

static void read_file(struct reading *reading, const char *path) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    if (!file) {
        reading->is_partial = 1;
        return;
    }
    while (!reading->is_done && getline(&line, &capacity, file) > 0) {
        char *text = trim(line, " \t\r\n");
        if (*text && *text != '#')
            take_line(reading, text, path);
    }
    reading->is_partial |= !reading->is_done && !feof(file);
    free(line);
    fclose(file);
}

enum fbc_errors fbc_policy_errors(const char *path, const char *root, const char *database) {
    struct reading reading = {.root = root, .database = database, .disable_on_error = 1};
    read_file(&reading, path);
    if (reading.is_partial)
        return FBC_ERRORS_UNKNOWN;
    return reading.report_errors && !reading.disable_on_error ? FBC_ERRORS_HEEDED
                                                              : FBC_ERRORS_IGNORED;
}

/* ---- The connector's options, without Python ------------------------------------------------ */

int fbc_policy_option(const char *path, const char *key, char *value, size_t size) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0, length = strlen(key);
    int found = 0;
    if (!file)
        return 0;
    while (getline(&line, &capacity, file) > 0) {
        if (strncmp(line, key, length) != 0)
            continue;
        char *text = line + length + strspn(line + length, " \t");
        if (*text != ':' || !strchr(" \t\r\n", text[1]))
            continue;
        text = trim(text + 1, " \t\r\n");
        char quote = *text;
        if (quote == '"' || quote == '\'') {
            char *end = strchr(++text, quote);
            if (end)
                *end = 0;
        } else {
            char *comment = *text == '#' ? text : strstr(text, " #");
            if (comment)
                *comment = 0;
            text = trim(text, " \t");
        }
        found = (size_t)snprintf(value, size, "%s", text) < size;
    }
    free(line);
    fclose(file);
    return found;
}

/* ---- Telling ----------------------------------------------------------------------------------
 */

enum { REMEMBERED = 8, LONGEST = 512 };

/* What was told last, and when, by CLOCK_MONOTONIC; 0: nothing. */
struct told {
    char text[LONGEST];
    time_t at;
};

static int is_within(const struct told *told, time_t now, int pause_s) {
    return told->at && now - told->at < pause_s;
}

/* Tell whether TEXT was not told within PAUSE_S seconds, and remember in TOLD that it is now. MOST:
 * of all texts in that time. */
static int is_news(struct told told[REMEMBERED], const char *text, int pause_s, int most) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct timespec now;
    int oldest = 0, is_new = 1, recent = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REMEMBERED; i++) {
        recent += is_within(&told[i], now.tv_sec, pause_s);
        if (is_within(&told[i], now.tv_sec, pause_s) &&
            strncmp(told[i].text, text, LONGEST - 1) == 0)
            is_new = 0;
        if (told[i].at < told[oldest].at)
            oldest = i;
    }
    is_new = is_new && recent < most;
    if (is_new) {
        snprintf(told[oldest].text, LONGEST, "%s", text);
        told[oldest].at = now.tv_sec ? now.tv_sec : 1;
    }
    pthread_mutex_unlock(&lock);
    return is_new;
}

/* Not by syslog(3), which waits where nobody reads the socket. */
static void tell_syslog(const char *text) {
    static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    char line[2048];
    int length = snprintf(line, sizeof line, "<%d>firebird-cdc[%d]: %.1900s", LOG_DAEMON | LOG_ERR,
                          (int)getpid(), text);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, line, (size_t)length, MSG_NOSIGNAL, (const struct sockaddr *)&address,
           sizeof address);
    close(fd);
}

static void tell(const char *text) {
    struct pollfd output = {.fd = STDERR_FILENO, .events = POLLOUT};
    tell_syslog(text);
    /* A pipe that nobody reads would stop the server's thread, or raise a signal. */
    if (poll(&output, 1, 0) == 1 && output.revents == POLLOUT)
        dprintf(STDERR_FILENO, "firebird-cdc: %s\n", text);
}

void fbc_policy_tell(const char *text) {
    static struct told told[REMEMBERED];
    if (is_news(told, text, 60, REMEMBERED)) /* some name a transaction, or a file of their own */
        tell(text);
}

void fbc_policy_log(const char *logs, const char *database, const char *text) {
    static struct told told[REMEMBERED];
    char path[PATH_MAX], host[256] = "", moment[32] = "", entry[2048];
    time_t now = time(NULL);
    snprintf(entry, sizeof entry, "%.200s (%.300s)", text, database);
    /* An acknowledgement waits for as long (packaging/server/engine_log.py). */
    if (!is_news(told, entry, 5, INT_MAX))
        return;
    tell(entry);
    gethostname(host, sizeof host - 1);
    /* In the server's time zone, as the engine's entries are, which whoever reads it does not know:
     * the seconds since 1970 are for our commands (packaging/server/engine_log.py). */
    if (ctime_r(&now, moment)) /* its names of days and months are in no other language */
        moment[strcspn(moment, "\n")] = 0;
    int length = snprintf(entry, sizeof entry,
                          "\n%s (replica) %s\n\tDatabase: %.300s\n\t"
                          "ERROR: firebird-cdc at %lld: %.1200s\n",
                          host, moment, database, (long long)now, text);
    snprintf(path, sizeof path, "%s/replication.log", logs);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0660);
    /* In one piece: the engine appends to it, too. There is nowhere left to say that it fails. */
    if (fd < 0)
        return;
    ssize_t written = write(fd, entry, (size_t)length);
    (void)written;
    close(fd);
}
