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

/* The bridge's side: take_events and settle of struct fbc_host_api. */
int fbc_events_take(struct fbc_event *to, int most, int timeout_ms);
void fbc_events_settle(uint64_t number);

#endif
