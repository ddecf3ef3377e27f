/* What becomes of a transaction whose changes can't be recorded: refused, or let through with a
 * marked gap. Read here in C, so that it holds also where Python can't start; see policy.c.
 */
#ifndef FIREBIRD_CDC_POLICY_H
#define FIREBIRD_CDC_POLICY_H

#include <stddef.h>

/* What becomes of an error that we report. */
enum fbc_errors { FBC_ERRORS_UNKNOWN, FBC_ERRORS_IGNORED, FBC_ERRORS_HEEDED };

/* fbc_policy_errors tells from the engine's own replication.conf, the file at PATH, whether it
 * refuses a commit of DATABASE when we report an error, and goes on asking us afterwards:
 * report_errors = true and disable_on_error = false. ROOT is the server's folder, for macros.
 * Unknown: not all of it could be read; the engine did so when it opened the database. */
enum fbc_errors fbc_policy_errors(const char *path, const char *root, const char *database);

/* fbc_policy_option finds the value of KEY, written flat on a line of its own as in the sample, in
 * the connector's YAML file at PATH. Returns 1, or 0 if it is not there or longer than SIZE. For
 * when the bridge, which reads all of YAML, could not start. */
int fbc_policy_option(const char *path, const char *key, char *value, size_t size);

/* fbc_policy_log writes TEXT about DATABASE to syslog, standard error and replication.log, which is
 * in the folder LOGS, in the engine's form, the same one at most once in five seconds. */
void fbc_policy_log(const char *logs, const char *database, const char *text);

/* fbc_policy_tell writes TEXT to syslog and standard error: the same one at most once a minute, and
 * no more than eight in that time. */
void fbc_policy_tell(const char *text);

#endif
