/* The queue of what the bridge has to know: commits above all. */
#ifndef FIREBIRD_CDC_EVENTS_H
#define FIREBIRD_CDC_EVENTS_H

#include <stdint.h>

#include "bridge_api.h"

/* fbc_events_init is called once, when the engine loads the plugin. */
void fbc_events_init(void);

/* fbc_events_hand_over gives EVENT to the bridge and returns its number; never fails, never waits.
 * A descriptor in it belongs to the bridge from then on. */
uint64_t fbc_events_hand_over(const struct fbc_event *event);

/* fbc_events_await_settled waits until the bridge has decided event NUMBER and all before it, at
 * most TIMEOUT_MS. */
void fbc_events_await_settled(uint64_t number, int timeout_ms);

/* fbc_events_call has the bridge look for commits of other processes. */
void fbc_events_call(void);

/* fbc_events_are_taken tells whether the bridge has asked for events within the last seconds, or
 * has just begun. */
int fbc_events_are_taken(void);

/* ---- While there is no bridge, as this process has joined others (join.h) ------------------- */

/* Between fbc_events_begin_unheard and fbc_events_end_unheard nobody takes events: commits are
 * forgotten once others have decided them. Where that is not enough a bridge is asked for
 * (fbc_host_want_bridge), and hears of all that is left. */
void fbc_events_begin_unheard(void);
void fbc_events_end_unheard(void);

/* fbc_events_unheard tells what is left. */
enum fbc_unheard { FBC_NOTHING_UNHEARD, FBC_COMMITS_UNDECIDED, FBC_BRIDGE_NEEDED };
enum fbc_unheard fbc_events_unheard(void);

/* The bridge's side: take_events and settle of struct fbc_host_api. */
int fbc_events_take(struct fbc_event *to, int most, int timeout_ms);
void fbc_events_settle(uint64_t number);

#endif
