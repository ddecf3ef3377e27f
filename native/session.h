/* Replication sessions: what the engine calls while users work. */
#ifndef FIREBIRD_CDC_SESSION_H
#define FIREBIRD_CDC_SESSION_H

#include "firebird_abi.h"
#include "host.h"

/* fbc_session_new makes a session with one reference, which the engine owns. SETTINGS live as
 * long as the process. REFUSAL: null, or why this engine can't be served. Null, with an error in
 * STATUS: no memory. */
struct fbi_replicated_session *fbc_session_new(const struct fbc_settings *settings,
                                               const char *refusal, struct fbi_status *status);

/* fbc_sessions returns how many there are in this process. */
int fbc_sessions(void);

#endif
