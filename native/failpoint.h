/* Points between two steps at which a build for tests can be made to die, as kill -9 would.
 *
 * Nothing in any other build: setup.py defines FBC_FAILPOINTS only where the environment says
 * FIREBIRD_CDC_FAILPOINTS=1. Such a build looks for FBC_FAILPOINT=<name>:<count> in its own
 * environment at every point, and dies the count-th time it comes to that one (tests/faults). */
#ifndef FBC_FAILPOINT_H
#define FBC_FAILPOINT_H

#ifdef FBC_FAILPOINTS
/* Called on any thread. NAME is one of the literals in this folder's sources. */
void fbc_failpoint(const char *name);
#define FBC_FAILPOINT(name) fbc_failpoint(name)
#else
#define FBC_FAILPOINT(name) ((void)0)
#endif

#endif
