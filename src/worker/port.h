/*
 * port.h
 *		The worker process's side of nv_port: how engine threads get requests,
 *		answer them, sleep, and reach the main thread.
 *
 * Functions marked [engine] run on engine threads as well and call nothing of
 * PostgreSQL but SetLatch on another process's latch.
 */
#ifndef NAVIS_PORT_H
#define NAVIS_PORT_H

#include "postgres.h"

#include "access/xlogdefs.h"

#include "navis/engine.h"
#include "slots.h"

#define NAVIS_LOG_LINE 512

/* Once in the life of the process; false: no memory or no descriptor. */
extern bool navis_port_init(NavisControl *control);

/* What the engine is started with. */
extern const nv_port *navis_port(void);

/* Requests of this incarnation are handed out from now on. */
extern void navis_port_open(uint64 incarnation);

/*
 * No request is handed out any more.  With mailbox, waits for WAL end too and
 * later ones fail.
 */
extern void navis_port_close(bool mailbox);

/*
 * Answers every request that is open with NV_EUNUSABLE and wakes its owner.
 * With running = false only those no engine thread has claimed.
 */
extern void navis_port_fail_requests(NavisControl *control, bool running);

/* Wakes every owner of an unanswered request, to look at the incarnation. */
extern void navis_port_wake_owners(NavisControl *control);

/* Readable when the main thread has something to do; [engine] raises it. */
extern int navis_port_event(void);
extern void navis_port_event_clear(void);
extern void navis_port_attention(void); /* [engine] */

/* The log: [engine] writes, the main thread takes line by line. */
extern void navis_port_log(void *arg, nv_log_level level, const char *line);
extern void navis_port_log_debug(bool wanted);
extern bool navis_port_next_line(nv_log_level *level, char *line);

/*
 * WAL flush: engine threads wait, the main thread asks how far (Invalid:
 * nobody waits), flushes, and says how far it came.
 */
extern XLogRecPtr navis_port_flush_wanted(void);
extern void navis_port_flush_done(XLogRecPtr flushed);

#endif
